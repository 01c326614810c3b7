/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank dies in each phase of the GPU backend's life, on the stand-in: while it joins, splits, makes a window,
 * connects at the first launch, works, captures, or leaves. Its peer names it within a second of the death, although
 * NCCL has noticed first, or waits in a call; and where NCCL can end that call, nothing of the communicator remains.
 * Nothing remains where nobody dies, either.
 *
 * The rank that dies fails in a call of NCCL (CDDP_STANDIN_FAIL), or stays away from it. That of the survivor then
 * fails as NCCL's does when the peer's socket is closed, LATER_MS before the death, or waits.
 */
#include "common/clock.h"
#include "gpu_ranks.h"

#define LATER_MS 100 /* NCCL's error comes this much before the death that explains it */
#define SOON_MS 50
#define SHORTEST 30  /* queue of a stream; FULL_QUEUE tries more lengths than an operation has entries */
#define REVOKE 22809 /* the first version whose calls can be ended */

static bool blocks(void)
{
    const char *kind = getenv("CDDP_NCCL_BLOCKING");

    return nccl_version() >= 22300 && (kind == NULL || *kind != '0');
}

/* board->flag: [0] the survivor is in the phase or beyond, and the other rank dies that much later; [1] when it died.
 */
static void arrive(struct rank *r)
{
    atomic_store(&r->board->flag[0], LATER_MS);
}

static bool in_nccl; /* the rank that dies first comes to the call of NCCL that fails: all ranks are in it then */

static void *die_later(void *arg)
{
    struct rank *r = arg;

    while (atomic_load(&r->board->flag[0]) == 0 || (in_nccl && standin_failures() == 0))
        rank_nap();
    rank_sleep(atomic_load(&r->board->flag[0]));
    rank_dies(r);
}

/* Has this rank die some time after the survivor has arrived, whatever its main thread does. */
static int have_me_die(struct rank *r)
{
    pthread_t thread;

    RANK_CHECK(pthread_create(&thread, NULL, die_later, r) == 0);
    RANK_CHECK(pthread_detach(thread) == 0);
    return 0;
}

static int stay_until_death(void)
{
    rank_sleep(CHILD_S * 1000);
    return 1;
}

/* Leaves. So many communicators may stay, and memory with one of them alone. */
static int leaves_at_most(struct rank *r, unsigned most)
{
    struct standin_live live;

    r->ops->destroy(r->b);
    r->b = NULL;
    for (int i = 0; i < 2000; i++) {
        standin_live(&live);
        if (live.communicators <= most)
            break;
        rank_nap();
    }
    RANK_CHECK(live.communicators <= most && (live.device_memory != 0) == (live.communicators != 0),
               "%u communicators and %u pieces of memory are left", live.communicators, live.device_memory);
    _exit(0);
}

/*
 * Leaves. A call that waits can be ended if NCCL can revoke the communicator; a communicator that does not block is
 * aborted anyway. On a slow host the death may be known before the call: then nothing is left either.
 */
static int leaves_nothing(struct rank *r)
{
    return leaves_at_most(r, blocks() && nccl_version() < REVOKE);
}

/* ---------------------------------------------------------------------- calls in which NCCL fails, or which wait ----
 */

/* arg: what rank 0 does; and the call of NCCL that fails in it, on rank 1, too, if that comes there. */
struct phase {
    cddp_status (*go)(struct rank *r);
    const char *fails;
    bool both;
    int run;
};

static cddp_status do_join(struct rank *r)
{
    return rank_open(r);
}

static cddp_status do_split(struct rank *r)
{
    const struct cdi_split all = {.key = r->rank, .n = 2};
    struct cdi_backend *part = NULL;

    return rank_split(r, &all, &part);
}

static cddp_status do_window(struct rank *r)
{
    struct cdi_region *region = NULL;

    return r->ops->region_create(r->b, 100000, &region, &r->err);
}

/* It may succeed before the death: the next operation learns of that. */
static cddp_status do_register(struct rank *r)
{
    cddp_status st = do_window(r);

    return st == CDDP_OK && r->rank == 0 ? do_window(r) : st;
}

static cddp_status do_launch(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);

    return rank_do(r, &op);
}

/* On host memory: borrowed memory would be left. */
static cddp_status do_launch_on_host(struct rank *r)
{
    r->n_done = 1;
    return do_launch(r);
}

static cddp_status do_group(struct rank *r)
{
    static float x[2 * COUNT];
    const struct cdi_coll ops[] = {all_reduce(x), all_reduce(x + COUNT)};
    uint64_t ticket;
    cddp_status st = r->ops->enqueue_group(r->b, ops, 2, &ticket, &r->err);

    return st == CDDP_OK ? r->ops->join(r->b, ticket, &r->err) : st;
}

/* NCCL fails on rank 0; rank 1 dies a moment later. */
static int fails(struct rank *r)
{
    const struct phase *p = r->arg;
    cddp_status st;

    if (p->go == do_register) {
        (void)setenv("CDDP_NCCL_WINDOWS", "0", 1);
        (void)setenv("CDDP_NCCL_REGISTER", "1", 1);
    }
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1 && have_me_die(r) != 0)
        return 1;
    if (r->rank == 0 || p->go != do_register)
        configure("CDDP_STANDIN_FAIL", p->fails);
    arrive(r);
    if (r->rank == 1 && !p->both)
        return stay_until_death();
    st = p->go(r);
    return r->rank == 1 ? stay_until_death() : is_named(r, st);
}

/* Rank 1 dies while rank 0 waits for it: it fails in the call, or does not come. */
static int waits(struct rank *r)
{
    const struct phase *p = r->arg;
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1 && p->both)
        configure("CDDP_STANDIN_FAIL", p->fails);
    if (r->rank == 1 && (have_me_die(r) != 0 || !p->both))
        return stay_until_death();
    arrive(r);
    st = p->go(r);
    if (r->rank == 1)
        return stay_until_death();
    return is_named(r, st) != 0 ? 1 : leaves_nothing(r);
}

/* Rank 1 dies in a join, in which rank 0 fails, or waits for it: nothing ends that where the communicator blocks. */
static int joins(struct rank *r)
{
    const struct phase *p = r->arg;
    cddp_status st;

    if (r->rank == 1) {
        in_nccl = true;
        if (have_me_die(r) != 0)
            return 1;
    }
    if (r->rank == 1 || p->both)
        configure("CDDP_STANDIN_FAIL", p->fails);
    if (r->rank == 0)
        arrive(r);
    st = p->go(r);
    if (r->rank == 1)
        return stay_until_death();
    if (is_named(r, st) != 0)
        return 1;
    if (!p->both)
        _exit(0);
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- with graphs */

/* A communicator, the memory of an all-reduce, and a stream. */
static int open_for_capture(struct rank *r, CUstream *s, void **there)
{
    static float x[COUNT];

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_stream(r, s) != 0)
        return 1;
    *there = rank_lend(r, x, sizeof x);
    return 0;
}

static int capture_fails(struct rank *r)
{
    CUgraph graph = NULL;
    cddp_status st;
    CUstream s;
    void *there;

    if (open_for_capture(r, &s, &there) != 0)
        return 1;
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    configure("CDDP_STANDIN_FAIL", "ncclAllReduce:1:6");
    arrive(r);
    st = capture(r, s, there, true, &graph);
    if (is_named(r, st) != 0)
        return 1;
    if (graph != NULL)
        (void)cuGraphDestroy(graph);
    rank_close(r);
    _exit(0); /* borrowed memory is left */
}

/*
 * Rank 1 dies while the replay on rank 0 waits for its own; or beside a graph (arg), in a first launch: an abort after
 * ncclCommRevoke would not wait for the graph that holds the communicator.
 */
static int dies_with_a_graph(struct rank *r)
{
    const struct phase *p = r->arg;
    static float x[COUNT];
    struct cdi_coll op = all_reduce(x);
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    cddp_status st;
    CUstream s;
    void *there;

    if (open_for_capture(r, &s, &there) != 0)
        return 1;
    RANK_CHECK(capture(r, s, there, true, &graph) == CDDP_OK);
    if (p == NULL)
        RANK_CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    if (p == NULL) {
        RANK_CHECK(cuGraphLaunch(exec, s) == CUDA_SUCCESS);
        arrive(r);
        while (r->ops->peek(r->b, &r->err) == CDDP_OK)
            rank_nap();
        st = r->ops->health(r->b, &r->err); /* which waits for no abort that the graph holds */
    } else {
        arrive(r);
        r->n_done = 1;
        op.count = COUNT / 2;
        st = rank_do(r, &op);
    }
    if (is_named(r, st) != 0)
        return 1;
    if (p == NULL) {
        (void)cuGraphExecDestroy(exec);
        (void)cuGraphDestroy(graph);
        rank_return(r, NULL, there, 0);
        return leaves_at_most(r, 0); /* callers wait again: no graph holds the abort any more */
    }
    rank_sleep(LATER_MS); /* callers do not wait for the abort, which would be a fault of the stand-in's */
    (void)cuGraphDestroy(graph);
    rank_close(r);
    _exit(0);
}

/* Nobody dies: what the program's graph uses stays when the ranks have left. */
static int leaves_with_a_graph(struct rank *r)
{
    struct standin_live before, after;
    CUgraph graph;
    CUstream s;
    void *there;

    if (open_for_capture(r, &s, &there) != 0)
        return 1;
    RANK_CHECK(capture(r, s, there, true, &graph) == CDDP_OK);
    standin_live(&before);
    rank_close(r);
    standin_live(&after);
    RANK_CHECK(after.communicators == 1 && after.device_memory == before.device_memory &&
               after.pinned_memory == before.pinned_memory);
    (void)cuGraphDestroy(graph);
    _exit(0);
}

/* --------------------------------------------------------------------------------------------------------- others */

/*
 * Rank 1 dies while a launch of rank 0 waits in the driver for room on its stream. With one of several lengths of the
 * queue it waits inside NCCL, where an abort would free its data: that is a fault of the stand-in's.
 */
static int dies_beside_a_full_queue(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op;
    cddp_status st;
    uint64_t ticket;
    char queue[16];
    void *there;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    there = rank_lend(r, x, sizeof x);
    op = all_reduce(there);
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    (void)snprintf(queue, sizeof queue, "%d", SHORTEST + ((const struct phase *)r->arg)->run);
    configure("CDDP_STANDIN_QUEUE", queue);
    atomic_store(&r->board->flag[0], SOON_MS);
    while ((st = r->ops->enqueue(r->b, &op, &ticket, &r->err)) == CDDP_OK)
        ;
    if (is_named(r, st) != 0)
        return 1;
    rank_close(r);
    _exit(0);
}

/* Nobody dies: rank 1 does not come. */
static int stays_away_from_a_first_launch(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    cddp_status st;

    r->world.timeout_ms = 300;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    while (r->rank == 1 && atomic_load(&r->board->flag[0]) == 0)
        rank_nap();
    if (r->rank == 1)
        _exit(0);
    r->n_done = 1;
    st = rank_do(r, &op);
    arrive(r);
    RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, "rank 1 did not arrive") != NULL);
    return leaves_nothing(r);
}

/*
 * Nobody dies: a part's ranks are found to share a GPU, which those of the whole seemed not to. NCCL returns the part
 * with the error.
 */
static int splits_on_one_gpu(struct rank *r)
{
    (void)setenv("CDDP_SHARE_GPU", "1", 1);
    (void)setenv("NCCL_HOSTID", r->rank == 0 ? "a" : "b", 1);
    r->world.device_rank = 0;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    (void)setenv("NCCL_HOSTID", "a", 1);
    RANK_CHECK(do_split(r) == CDDP_E_SYSTEM && strstr(r->err.msg, "splitting the communicator") != NULL);
    return leaves_at_most(r, 0);
}

/* Nobody dies: rank 1 alone cannot use its part, so no rank has one; the next split is well. */
static int splits_for_one_only(struct rank *r)
{
    const struct cdi_split all = {.key = r->rank, .n = 2};
    struct cdi_backend *part = NULL;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1)
        configure("CDDP_STANDIN_FAIL", "ncclCommCount:1:3");
    RANK_CHECK(rank_split(r, &all, &part) == CDDP_E_SYSTEM && part == NULL);
    RANK_CHECK(strstr(r->err.msg, r->rank == 1 ? "does not report the size" : "another rank cannot create") != NULL);
    RANK_CHECK(rank_split(r, &all, &part) == CDDP_OK && do_launch(r) == CDDP_OK);
    r->ops->destroy(part);
    return leaves_at_most(r, 0);
}

/* Nobody dies, and nothing is aborted. */
static int leaves_in_peace(struct rank *r)
{
    RANK_CHECK(do_join(r) == CDDP_OK && do_launch(r) == CDDP_OK);
    configure("CDDP_STANDIN_FAIL", "ncclCommAbort:1+:3");
    r->ops->leave(r->b);
    RANK_CHECK(standin_failures() == 0);
    return leaves_at_most(r, 0);
}

/* Rank 1 dies before rank 0 leaves, which waits for nobody. */
static int dies_before_the_leave(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    int64_t began_ms;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    r->n_done = 1;
    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    arrive(r);
    rank_await(r, 1);
    began_ms = cdi_now_ms();
    r->ops->leave(r->b);
    RANK_CHECK(cdi_now_ms() - began_ms < cdi_within_ms(KNOWN_MS));
    r->ops->destroy(r->b);
    r->b = NULL;
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------------ */

#define PHASE(...)               \
    .arg = &(const struct phase) \
    {                            \
        __VA_ARGS__              \
    }
#define FULL_QUEUE(n)                                                                    \
    {                                                                                    \
        "a death beside a full queue: " #n, dies_beside_a_full_queue, 1, PHASE(.run = n) \
    }

int main(int argc, char **argv)
{
    const struct ranks_test tests[] = {
        {"NCCL fails in a join before the death is known", joins, 1,
         PHASE(do_join, "ncclCommInitRankConfig:1:6", true)},
        {"NCCL fails in a split before the death is known", fails, 1, PHASE(do_split, "ncclCommSplit:1:6", true)},
        {"NCCL fails in a window before the death is known", fails, 1,
         PHASE(do_window, "ncclCommWindowRegister:1:6", true)},
        {"NCCL fails in a registration before the death is known", fails, 1,
         PHASE(do_register, "ncclCommRegister:1:6", true)},
        {"NCCL fails in a launch before the death is known", fails, 1, PHASE(do_launch, "ncclAllReduce:1:6")},
        {"NCCL fails in a group before the death is known", fails, 1, PHASE(do_group, "ncclGroupEnd:1:6")},
        /* An error of the network, which the state of the communicator shows while the operation never ends. */
        {"NCCL fails on the stream before the death is known", fails, 1, PHASE(do_launch, "async:1:6")},
        {"NCCL fails in a capture before the death is known", capture_fails, 1, NULL},
        {"a death in a replay", dies_with_a_graph, 1, NULL},
        {"a death in a join", joins, 1, PHASE(do_join, "ncclCommInitRankConfig:1:6")},
        {"a death in a first launch", waits, 1, PHASE(do_launch_on_host)},
        FULL_QUEUE(0),
        FULL_QUEUE(1),
        FULL_QUEUE(2),
        FULL_QUEUE(3),
        FULL_QUEUE(4),
        FULL_QUEUE(5),
        FULL_QUEUE(6),
        FULL_QUEUE(7),
        {"a death in a first launch beside a graph", dies_with_a_graph, 1, PHASE(do_launch)},
        {"a rank stays away from a first launch", stays_away_from_a_first_launch, -1, NULL},
        {"a death in a split", waits, 1, PHASE(do_split, "ncclCommSplit:1:6", true)},
        {"a death in a window", waits, 1, PHASE(do_window, "ncclCommWindowRegister:1:6", true)},
        {"a leave", leaves_in_peace, -1, NULL},
        {"a leave beside a graph", leaves_with_a_graph, -1, NULL},
        {"a split that fails", splits_on_one_gpu, -1, NULL},
        {"a split that fails on one rank", splits_for_one_only, -1, NULL},
        {"a death before the leave", dies_before_the_leave, 1, NULL},
    };

    return ranks_main(&pair, CHILD_S, tests, sizeof tests / sizeof tests[0], argc, argv);
}
