/* SPDX-License-Identifier: Apache-2.0 */
/* Messages within a node: sends that cross are a mismatch; other orders are not. */
#include "hygiene.h"
#include "lone_rank.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

CDI_SUITE(move);

static cddp_status send_to(struct lone_rank *l, int to)
{
    static const float x = 1;
    const struct cdi_coll op = {
        .kind = CDI_SEND, .in = &x, .count = 1, .dtype = CDDP_FLOAT32, .root = to, .bucket = -1, .lazy = true};

    return lone_rank_do(l, &op);
}

/* Sets the state after `rank` has sent `piece` to rank `to`. */
static void has_sent(struct lone_rank *l, int rank, uint32_t piece, int to)
{
    struct cdi_shm_mail *m = &l->comm.shm->ranks[rank].mail;

    atomic_store(&m->address, (uint64_t)piece << 32 | (uint32_t)to);
    cdi_counter_post(&m->sent, piece);
}

static void was_taken(struct lone_rank *l, int rank, uint32_t piece)
{
    cdi_counter_post(&l->comm.shm->ranks[rank].mail.taken, piece);
}

/* Takes the first piece of rank 0 as soon as it is posted. */
static void *take_first(void *arg)
{
    struct lone_rank *l = arg;

    while (!cdi_counter_reached(&l->comm.shm->ranks[0].mail.sent, 1))
        (void)usleep(100);
    was_taken(l, 0, 1);
    return NULL;
}

Test(exchange, early_answer_is_not_a_crossing)
{
    struct lone_rank l;

    lone_rank_start(&l, 0, 2, 10000);
    was_taken(&l, 0, 1);   /* rank 1 takes the piece at the moment of its posting, */
    has_sent(&l, 1, 1, 0); /* returns from cddp_recv and sends */
    cr_assert_eq(send_to(&l, 1), CDDP_OK, "%s", l.err.msg);
    lone_rank_end(&l);
}

/* Rank 1 sent piece 1 to rank 0 and later piece 2 to rank 2: rank 0 has the old address and the new `taken`. */
Test(exchange, send_to_third_rank_is_not_a_crossing)
{
    struct lone_rank l;
    pthread_t thread;

    lone_rank_start(&l, 0, 3, 10000);
    has_sent(&l, 1, 1, 0);
    was_taken(&l, 1, 2);
    cr_assert_eq(pthread_create(&thread, NULL, take_first, &l), 0);
    cr_assert_eq(send_to(&l, 1), CDDP_OK, "%s", l.err.msg);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    lone_rank_end(&l);
}

/* The same when the numbers of pieces wrap around. */
Test(exchange, piece_numbers_compare_across_wraparound)
{
    struct lone_rank l;
    pthread_t thread;

    lone_rank_start(&l, 0, 3, 10000);
    has_sent(&l, 1, UINT32_MAX, 0);
    was_taken(&l, 1, 1);
    cr_assert_eq(pthread_create(&thread, NULL, take_first, &l), 0);
    cr_assert_eq(send_to(&l, 1), CDDP_OK, "%s", l.err.msg);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    lone_rank_end(&l);
}

Test(exchange, crossing_sends_fail_on_both_ranks)
{
    struct lone_rank l;

    lone_rank_start(&l, 0, 2, 10000);
    has_sent(&l, 1, UINT32_MAX, 0);
    was_taken(&l, 1, UINT32_MAX - 1);
    cr_assert_eq(send_to(&l, 1), CDDP_E_MISMATCH);
    cr_assert_not_null(strstr(l.err.msg, "one of them has to receive first"));
    lone_rank_end(&l);
}

/* ------------------------------------------------------------------------------ real ranks, in many rounds ---- */

#define ROUNDS 20000

static int ping_pong(struct rank *r)
{
    const struct cdi_coll there = {.kind = CDI_SEND, .root = 1 - r->rank, .bucket = -1, .lazy = true};
    const struct cdi_coll back = {.kind = CDI_RECV, .root = 1 - r->rank, .bucket = -1, .lazy = true};

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int i = 0; i < ROUNDS; i++) {
        RANK_CHECK(rank_do(r, r->rank == 0 ? &there : &back) == CDDP_OK, "round %d", i);
        RANK_CHECK(rank_do(r, r->rank == 0 ? &back : &there) == CDDP_OK, "round %d", i);
    }
    return 0;
}

Test(exchange, alternating_messages_are_never_a_mismatch)
{
    cr_assert_eq(ranks_fork(2, 90, ping_pong, NULL, NULL), 0);
}
