/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank dies in each phase of the GPU backend's life, on the stand-in: while it joins, splits, makes a window,
 * connects at the first launch, works, captures, or leaves. Its peer names it within a second of the death, although
 * NCCL has noticed first, or waits in a call; and where NCCL can end that call, nothing of the communicator remains.
 *
 * The rank that dies fails in a call of NCCL (CDDP_STANDIN_FAIL), or stays away from it. That of the survivor then
 * fails as NCCL's does when the peer's socket is closed, LATER_MS before the death, or waits.
 */
#include "common/clock.h"
#include "ranks.h"
#include "standin.h"
#include "within.h"

#include <cuda.h>
#include <nccl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT 5000u
#define CHILD_S 60
#define KNOWN_MS 1000
#define LATER_MS 100 /* NCCL's error comes this much before the death that explains it */
#define SOON_MS 50
#define SHORTEST 30 /* queue of a stream; and how many lengths: more than the entries of an operation */
#define QUEUES 8
#define REVOKE 22809 /* the first version whose calls can be ended */

static const struct ranks_layout pair = {.node_size = {2}, .module = "nccl"};

static void sleep_ms(int ms)
{
    int64_t until_ms = cdi_now_ms() + ms;

    while (cdi_now_ms() < until_ms)
        rank_nap();
}

static int now(void)
{
    return (int)(cdi_now_ms() & 0x3fffffff);
}

static void configure(const char *name, const char *value)
{
    (void)setenv(name, value, 1);
    standin_configure();
}

static int version(void)
{
    const char *code = getenv("CDDP_STANDIN_NCCL_VERSION");

    return code != NULL ? (int)strtol(code, NULL, 10) : NCCL_VERSION_CODE;
}

static bool blocks(void)
{
    const char *kind = getenv("CDDP_NCCL_BLOCKING");

    return version() >= 22300 && (kind == NULL || *kind != '0');
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
    sleep_ms(atomic_load(&r->board->flag[0]));
    atomic_store(&r->board->flag[1], now());
    (void)raise(SIGKILL);
    return NULL;
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
    sleep_ms(CHILD_S * 1000);
    return 1;
}

static int is_named(struct rank *r, cddp_status st)
{
    int took = now() - atomic_load(&r->board->flag[1]);

    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL, "status %d", (int)st);
    RANK_CHECK(atomic_load(&r->board->flag[1]) != 0 && took < cdi_within_ms(KNOWN_MS), "%d ms after the death", took);
    return 0;
}

static struct cdi_coll all_reduce(float *x)
{
    return (struct cdi_coll){
        .kind = CDI_ALL_REDUCE, .in = x, .out = x, .count = COUNT, .dtype = CDDP_FLOAT32, .bucket = -1};
}

/*
 * Leaves. A call that waits can be ended if NCCL can revoke the communicator; a communicator that does not block is
 * aborted anyway. On a slow host the death may be known before the call: then nothing is left either.
 */
static int leaves_nothing(struct rank *r)
{
    struct standin_live live;
    unsigned most = blocks() && version() < REVOKE;

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

/* ----------------------------------------------------------------------------------------------------- NCCL's error */

/* Rank 0's call of NCCL fails; rank 1 dies a moment later. */
static int open_to_fail(struct rank *r, const char *call)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1)
        return have_me_die(r);
    configure("CDDP_STANDIN_FAIL", call);
    return 0;
}

static int join_fails(struct rank *r)
{
    cddp_status st;

    if (r->rank == 1) {
        configure("CDDP_STANDIN_FAIL", "ncclCommInitRankConfig:1:6");
        in_nccl = true;
        if (have_me_die(r) != 0)
            return 1;
        (void)rank_open(r);
        return stay_until_death();
    }
    configure("CDDP_STANDIN_FAIL", "ncclCommInitRankConfig:1:6");
    arrive(r);
    st = rank_open(r);
    return is_named(r, st);
}

static int split_fails(struct rank *r)
{
    const struct cdi_split all = {.key = r->rank, .n = 2};
    struct cdi_backend *part = NULL;
    cddp_status st;

    if (open_to_fail(r, "ncclCommSplit:1:6") != 0)
        return 1;
    arrive(r);
    if (r->rank == 1)
        configure("CDDP_STANDIN_FAIL", "ncclCommSplit:1:6");
    st = r->ops->split(r->b, &all, &part, &r->err);
    return r->rank == 1 ? stay_until_death() : is_named(r, st);
}

static int window_fails(struct rank *r)
{
    struct cdi_region *region = NULL;
    cddp_status st;

    if (open_to_fail(r, "ncclCommWindowRegister:1:6") != 0)
        return 1;
    arrive(r);
    if (r->rank == 1)
        configure("CDDP_STANDIN_FAIL", "ncclCommWindowRegister:1:6");
    st = r->ops->region_create(r->b, 100000, &region, &r->err);
    return r->rank == 1 ? stay_until_death() : is_named(r, st);
}

static int register_fails(struct rank *r)
{
    (void)setenv("CDDP_NCCL_WINDOWS", "0", 1);
    (void)setenv("CDDP_NCCL_REGISTER", "1", 1);
    struct cdi_region *region = NULL;
    cddp_status st;

    if (open_to_fail(r, "ncclCommRegister:1:6") != 0)
        return 1;
    arrive(r);
    st = r->ops->region_create(r->b, 100000, &region, &r->err);
    if (r->rank == 1)
        return stay_until_death();
    if (st == CDDP_OK) /* it was before the death: the next operation learns of it */
        st = r->ops->region_create(r->b, 100000, &region, &r->err);
    return is_named(r, st);
}

/* Rank 0 fails in an all-reduce, as open_to_fail() has it. */
static int all_reduce_fails(struct rank *r, const char *call)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    cddp_status st;

    if (open_to_fail(r, call) != 0)
        return 1;
    arrive(r);
    if (r->rank == 1)
        return stay_until_death();
    st = rank_do(r, &op);
    return is_named(r, st);
}

static int launch_fails(struct rank *r)
{
    return all_reduce_fails(r, "ncclAllReduce:1:6");
}

static int group_fails(struct rank *r)
{
    static float x[2 * COUNT];
    const struct cdi_coll ops[] = {all_reduce(x), all_reduce(x + COUNT)};
    uint64_t ticket;
    cddp_status st;

    if (open_to_fail(r, "ncclGroupEnd:1:6") != 0)
        return 1;
    arrive(r);
    if (r->rank == 1)
        return stay_until_death();
    st = r->ops->enqueue_group(r->b, ops, 2, &ticket, &r->err);
    if (st == CDDP_OK)
        st = r->ops->join(r->b, ticket, &r->err);
    return is_named(r, st);
}

/* An error of the network, which the state of the communicator shows while the operation never ends. */
static int step_fails(struct rank *r)
{
    return all_reduce_fails(r, "async:1:6");
}

static int use_device(struct rank *r, CUstream *s)
{
    CUcontext ctx;

    RANK_CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&ctx, r->rank) == CUDA_SUCCESS);
    RANK_CHECK(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
    RANK_CHECK(cuStreamCreateWithPriority(s, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    return 0;
}

/* Captures one all-reduce. */
static cddp_status capture(struct rank *r, CUstream s, void *there, CUgraph *graph)
{
    struct cdi_coll op = all_reduce(there);
    cddp_status st;
    uint64_t id = 0, ticket;

    op.known = true;
    RANK_CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    st = r->ops->capture_of(r->b, s, &id, &r->err);
    if (st == CDDP_OK)
        st = r->ops->capture_enter(r->b, s, id, &r->err);
    if (st != CDDP_OK)
        return st;
    st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
    if (st == CDDP_OK)
        st = r->ops->stream_wait(r->b, 0, s, &r->err);
    r->ops->capture_leave(r->b);
    (void)cuStreamEndCapture(s, graph);
    return st;
}

static int capture_fails(struct rank *r)
{
    static float x[COUNT];
    CUgraph graph = NULL;
    cddp_status st;
    CUstream s;
    void *there;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_device(r, &s) != 0)
        return 1;
    there = rank_lend(r, x, sizeof x);
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    configure("CDDP_STANDIN_FAIL", "ncclAllReduce:1:6");
    arrive(r);
    st = capture(r, s, there, &graph);
    if (is_named(r, st) != 0)
        return 1;
    if (graph != NULL)
        (void)cuGraphDestroy(graph);
    rank_close(r);
    _exit(0); /* borrowed memory is left */
}

/* Rank 1 dies while the replay on rank 0 waits for its own. */
static int dies_in_a_replay(struct rank *r)
{
    static float x[COUNT];
    CUgraph graph = NULL;
    CUgraphExec exec;
    cddp_status st;
    CUstream s;
    void *there;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_device(r, &s) != 0)
        return 1;
    there = rank_lend(r, x, sizeof x);
    RANK_CHECK(capture(r, s, there, &graph) == CDDP_OK);
    RANK_CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    RANK_CHECK(cuGraphLaunch(exec, s) == CUDA_SUCCESS);
    arrive(r);
    while ((st = r->ops->peek(r->b, &r->err)) == CDDP_OK)
        rank_nap();
    if (is_named(r, st) != 0)
        return 1;
    (void)cuGraphExecDestroy(exec);
    (void)cuGraphDestroy(graph);
    rank_close(r);
    _exit(0);
}

/* ------------------------------------------------------------------------------------------------- calls that wait */

/* Rank 1 dies while rank 0 waits for it in NCCL's join, which nothing ends where the communicator blocks. */
static int dies_in_a_join(struct rank *r)
{
    cddp_status st;

    if (r->rank == 1) {
        configure("CDDP_STANDIN_FAIL", "ncclCommInitRankConfig:1:6");
        in_nccl = true;
        if (have_me_die(r) != 0)
            return 1;
        (void)rank_open(r);
        return stay_until_death();
    }
    arrive(r);
    st = rank_open(r);
    if (is_named(r, st) != 0)
        return 1;
    _exit(0);
}

static int dies_in_a_first_launch(struct rank *r)
{
    static float x[COUNT];
    const struct cdi_coll op = all_reduce(x);
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    arrive(r);
    r->n_done = 1; /* on host memory: borrowed memory would be left */
    st = rank_do(r, &op);
    return is_named(r, st) != 0 ? 1 : leaves_nothing(r);
}

/* A graph holds the communicator: an abort after ncclCommRevoke would not wait for it. */
static int dies_in_a_launch_beside_a_graph(struct rank *r)
{
    static float x[COUNT];
    struct cdi_coll op = all_reduce(x);
    CUgraph graph = NULL;
    cddp_status st;
    CUstream s;
    void *there;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_device(r, &s) != 0)
        return 1;
    there = rank_lend(r, x, sizeof x);
    RANK_CHECK(capture(r, s, there, &graph) == CDDP_OK);
    if (r->rank == 1)
        return have_me_die(r) != 0 ? 1 : stay_until_death();
    arrive(r);
    r->n_done = 1;
    op.count = COUNT / 2;
    st = rank_do(r, &op);
    if (is_named(r, st) != 0)
        return 1;
    sleep_ms(LATER_MS); /* callers do not wait for the abort, which would be a fault of the stand-in's */
    (void)cuGraphDestroy(graph);
    rank_close(r);
    _exit(0);
}

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
    (void)snprintf(queue, sizeof queue, "%d", SHORTEST + *(const int *)r->arg);
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

static int dies_in_a_split(struct rank *r)
{
    const struct cdi_split all = {.key = r->rank, .n = 2};
    struct cdi_backend *part = NULL;
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        configure("CDDP_STANDIN_FAIL", "ncclCommSplit:1:6");
        if (have_me_die(r) != 0)
            return 1;
    }
    arrive(r);
    st = r->ops->split(r->b, &all, &part, &r->err);
    if (r->rank == 1)
        return stay_until_death();
    return is_named(r, st) != 0 ? 1 : leaves_nothing(r);
}

static int dies_in_a_window(struct rank *r)
{
    struct cdi_region *region = NULL;
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        configure("CDDP_STANDIN_FAIL", "ncclCommWindowRegister:1:6");
        if (have_me_die(r) != 0)
            return 1;
    }
    arrive(r);
    st = r->ops->region_create(r->b, 100000, &region, &r->err);
    if (r->rank == 1)
        return stay_until_death();
    return is_named(r, st) != 0 ? 1 : leaves_nothing(r);
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
    while (atomic_load(&r->board->flag[1]) == 0)
        rank_nap();
    began_ms = cdi_now_ms();
    r->ops->leave(r->b);
    RANK_CHECK(cdi_now_ms() - began_ms < cdi_within_ms(KNOWN_MS));
    r->ops->destroy(r->b);
    r->b = NULL;
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    static const struct {
        const char *what;
        rank_fn fn;
        bool survives; /* no rank dies */
        int runs;      /* arg: a pointer to the number of the run, from 0 */
    } tests[] = {
        {"NCCL fails in a join before the death is known", join_fails, false, 1},
        {"NCCL fails in a split before the death is known", split_fails, false, 1},
        {"NCCL fails in a window before the death is known", window_fails, false, 1},
        {"NCCL fails in a registration before the death is known", register_fails, false, 1},
        {"NCCL fails in a launch before the death is known", launch_fails, false, 1},
        {"NCCL fails in a group before the death is known", group_fails, false, 1},
        {"NCCL fails on the stream before the death is known", step_fails, false, 1},
        {"NCCL fails in a capture before the death is known", capture_fails, false, 1},
        {"a death in a replay", dies_in_a_replay, false, 1},
        {"a death in a join", dies_in_a_join, false, 1},
        {"a death in a first launch", dies_in_a_first_launch, false, 1},
        {"a death beside a full queue", dies_beside_a_full_queue, false, QUEUES},
        {"a death in a first launch beside a graph", dies_in_a_launch_beside_a_graph, false, 1},
        {"a rank stays away from a first launch", stays_away_from_a_first_launch, true, 1},
        {"a death in a split", dies_in_a_split, false, 1},
        {"a death in a window", dies_in_a_window, false, 1},
        {"a death before the leave", dies_before_the_leave, false, 1},
    };
    const char *only = argc > 1 ? argv[1] : "";

    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        bool ok = true;

        if (strstr(tests[i].what, only) == NULL)
            continue;
        for (int run = 0; run < tests[i].runs && ok; run++) {
            int status[RANKS_MAX], bad = ranks_fork_on(&pair, CHILD_S, tests[i].fn, &run, status);

            ok = ranks_ended_well(bad, status, tests[i].survives ? -1 : 1);
        }
        ranks_result(ok, tests[i].what);
    }
    return ranks_plan();
}
