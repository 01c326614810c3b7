/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed at random moments of work, without a launcher: every other rank must return an error that names it
 * within a second. The seed is printed; argv sets another one.
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

/* board->flag[0]: when it was killed, in ms modulo 2^30. */
static int now(void)
{
    return (int)(cdi_now_ms() & 0x3fffffff);
}

static void have_me_killed(struct rank *r, int after_us)
{
    pid_t me = getpid();

    if (fork() != 0)
        return;
    (void)usleep((useconds_t)after_us);
    atomic_store(&r->board->flag[0], now());
    (void)kill(me, SIGKILL);
    _exit(0);
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
        have_me_killed(r, p->after_us);
    for (int i = 0; st == CDDP_OK; i++) {
        struct cdi_coll op = nth_op(r, i, x, all);

        st = rank_do(r, &op);
    }
    took = now() - atomic_load(&r->board->flag[0]);
    (void)snprintf(want, sizeof want, "rank %d (", p->victim);
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
    unsigned seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : (unsigned)cdi_now_ns();
    int failed = 0;

    printf("# seed %u\n1..%d\n", seed, KILLS);
    srand(seed);
    for (int i = 0; i < KILLS; i++) {
        const struct ranks_layout *l = &layouts[i % 4];
        const struct plan p = {.victim = rand() % 4, .after_us = rand() % 60000};
        int status[RANKS_MAX], bad = ranks_fork_on(l, CHILD_S, work_until_it_dies, &p, status);
        bool ok = bad == 1 && WIFSIGNALED(status[p.victim]) && WTERMSIG(status[p.victim]) == SIGKILL;

        failed += !ok;
        printf("%s %d - rank %d of %s is killed after %d us\n", ok ? "ok" : "not ok", i + 1, p.victim, l->name,
               p.after_us);
        (void)fflush(stdout);
    }
    return failed != 0;
}
