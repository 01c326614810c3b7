/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed at random moments of work, without a launcher: every other rank must return an error that names it
 * within a second. On a GPU the work is also that of making parts and arenas.
 *
 *     test_deaths [MODULE [SEED [KILLS]]]    MODULE: cpu (default) or nccl; the seed is printed
 */
#include "common/clock.h"
#include "ranks.h"
#include "within.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILLS 24
#define KILLS_ON_GPUS 8
#define COUNT 300000u
#define KNOWN_MS 1000
#define CHILD_S 60

struct plan {
    int victim, after_us;
};

static struct cdi_coll nth_op(const struct rank *r, int i, float *x, float *all)
{
    struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                          .in = x,
                          .out = x,
                          .count = i % 3 == 0 ? 10 : COUNT,
                          .dtype = CDDP_FLOAT32,
                          .bucket = -1,
                          .lazy = i % 2};

    if (i % 5 == 1) {
        op.kind = CDI_BROADCAST;
        op.root = i % r->size;
    } else if (i % 5 == 3) {
        op.kind = CDI_ALL_GATHER;
        op.out = all;
        op.count = COUNT / 7;
    }
    return op;
}

/* Also works in it; the death may surface there. */
static cddp_status make_a_part(struct rank *r)
{
    const struct cdi_split all = {.key = r->rank, .n = r->size};
    const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1};
    struct cdi_backend *part = NULL;
    uint64_t ticket;
    cddp_status st = rank_split(r, &all, &part);

    if (st == CDDP_OK)
        st = r->ops->enqueue(part, &barrier, &ticket, &r->err);
    if (st == CDDP_OK)
        st = r->ops->join(part, ticket, &r->err);
    if (part != NULL)
        r->ops->destroy(part);
    return st;
}

static cddp_status make_an_arena(struct rank *r)
{
    struct cdi_region *region = NULL;
    cddp_status st = r->ops->region_create(r->b, 100000, &region, &r->err);

    if (st == CDDP_OK)
        r->ops->region_destroy(r->b, region);
    return st;
}

/*
 * Returns whether the test, as the agent, reports the death only after the backend has given up: a busy machine has
 * held it up for longer than a second.
 */
static bool agent_is_late(const struct rank *r)
{
    if (!r->on_device || cdi_flight_check(r->world.flight, NULL) != CDDP_OK)
        return false;
    for (int ms = 0; ms < CHILD_S * 1000 && cdi_flight_check(r->world.flight, NULL) == CDDP_OK; ms++)
        (void)usleep(1000);
    return rank_now() - atomic_load(&r->board->flag[0]) > KNOWN_MS;
}

static int work_until_it_dies(struct rank *r)
{
    const struct plan *p = r->arg;
    float *x = calloc(COUNT, sizeof *x), *all = calloc((size_t)r->size * COUNT, sizeof *all);
    cddp_status st = CDDP_OK;
    char want[32];
    int took;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == p->victim)
        rank_have_me_killed(r, p->after_us);
    for (int i = 0; st == CDDP_OK; i++) {
        struct cdi_coll op = nth_op(r, i, x, all);

        st = rank_do(r, &op);
        if (st == CDDP_OK && r->on_device && i % 4 == 3)
            st = i % 8 == 3 ? make_a_part(r) : make_an_arena(r);
    }
    took = rank_now() - atomic_load(&r->board->flag[0]);
    (void)snprintf(want, sizeof want, "rank %d (", p->victim);
    if (strstr(r->err.msg, want) == NULL && agent_is_late(r))
        return 0;
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, want) != NULL, "rank %d was killed", p->victim);
    RANK_CHECK(took < cdi_within_ms(KNOWN_MS), "%d ms after the death", took);
    free(x);
    free(all);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct ranks_layout layouts[] = {
        {.name = "4", .node_size = {4}},
        {.name = "1+1+1+1", .node_size = {1, 1, 1, 1}},
        {.name = "2+2", .node_size = {2, 2}},
        {.name = "1+3", .node_size = {1, 3}},
    };
    static const struct ranks_layout on_gpus = {.name = "4 on GPUs", .node_size = {4}, .module = "nccl"};
    bool gpus = argc > 1 && strcmp(argv[1], "nccl") == 0;
    unsigned seed = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)cdi_now_ns();
    int n = argc > 3 ? atoi(argv[3]) : gpus ? KILLS_ON_GPUS : KILLS, failed = 0;

    printf("# seed %u\n1..%d\n", seed, n);
    srand(seed);
    for (int i = 0; i < n; i++) {
        const struct ranks_layout *l = gpus ? &on_gpus : &layouts[i % 4];
        const struct plan p = {.victim = rand() % 4, .after_us = rand() % (gpus ? 400000 : 60000)};
        int status[RANKS_MAX], bad = ranks_fork_on(l, CHILD_S, work_until_it_dies, &p, status);
        bool ok = bad == 1 && WIFSIGNALED(status[p.victim]) && WTERMSIG(status[p.victim]) == SIGKILL;

        failed += !ok;
        printf("%s %d - rank %d of %s is killed after %d us\n", ok ? "ok" : "not ok", i + 1, p.victim, l->name,
               p.after_us);
        (void)fflush(stdout);
    }
    return failed != 0;
}
