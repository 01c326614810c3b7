/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several communicators on one GPU, on the stand-in: their launches come on the GPU in the order in which the program
 * starts them, on every rank. A communicator that waits for a peer delays the others, but its failure does not, and
 * they notice a death meanwhile.
 */
#include "gpu_ranks.h"

#define KNOWN 100u /* elements of an operation whose connections exist */
#define LATE_MS 300
#define ROUNDS 40

/* A communicator, and memory of the device. */
struct part {
    struct cdi_backend *b;
    void *x;
};

static struct cdi_coll sum(const struct part *p, size_t count)
{
    struct cdi_coll op = all_reduce(p->x);

    op.count = count;
    return op;
}

static cddp_status start(struct rank *r, const struct part *p, size_t count, uint64_t *ticket)
{
    const struct cdi_coll op = sum(p, count);

    return r->ops->enqueue(p->b, &op, ticket, &r->err);
}

static cddp_status run(struct rank *r, const struct part *p, size_t count)
{
    uint64_t ticket;
    cddp_status st = start(r, p, count, &ticket);

    return st == CDDP_OK ? r->ops->join(p->b, ticket, &r->err) : st;
}

/* Two parts of both ranks, whose connections for KNOWN elements exist. The first has the time limit. */
static int open_parts(struct rank *r, struct part part[2], int64_t timeout_ms)
{
    static const float zeros[4096];

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int i = 0; i < 2; i++) {
        const struct cdi_split all = {.key = r->rank, .n = 2, .timeout_ms = i == 0 ? timeout_ms : 0};

        RANK_CHECK(rank_split(r, &all, &part[i].b) == CDDP_OK);
        part[i].x = rank_lend(r, zeros, sizeof zeros);
        RANK_CHECK(run(r, &part[i], KNOWN) == CDDP_OK);
    }
    return 0;
}

static void close_parts(struct rank *r, struct part part[2])
{
    for (int i = 0; i < 2; i++) {
        r->ops->destroy(part[i].b);
        rank_return(r, NULL, part[i].x, 0);
    }
}

/* After a failure: borrowed memory is left, with what a call that could not be ended may still use. */
static _Noreturn void leave(struct rank *r, struct part part[2])
{
    for (int i = 0; i < 2; i++)
        r->ops->destroy(part[i].b);
    rank_close(r);
    _exit(0);
}

/* Compares the orders of both ranks. */
static int compare_orders(struct rank *r)
{
    uint8_t mine[256], theirs[256];
    const char *const key[] = {"order/0", "order/1"};
    size_t n = standin_launch_order(mine, sizeof mine), len = 0;
    struct cdi_oob board = rank_oob(r);

    RANK_CHECK(board.set(board.arg, key[r->rank], mine, n, &r->err) == CDDP_OK);
    RANK_CHECK(board.get(board.arg, key[1 - r->rank], theirs, sizeof theirs, &len, 10000, &r->err) == CDDP_OK);
    RANK_CHECK(n == len, "%zu and %zu launches", n, len);
    for (size_t i = 0; i < n; i++)
        RANK_CHECK(mine[i] == theirs[i], "launch %zu is of communicator %d here, of %d there", i, mine[i], theirs[i]);
    return 0;
}

static void set_flag(struct rank *r, int i)
{
    atomic_store(&r->board->flag[i], 1);
}

/* Returns whether the flag was set in time. */
static bool await_flag(struct rank *r, int i, int ms)
{
    for (; atomic_load(&r->board->flag[i]) == 0 && ms > 0; ms--)
        rank_nap();
    return atomic_load(&r->board->flag[i]) != 0;
}

/* ------------------------------------------------------------------------------------------------------- the order */

enum { STREAM, JOIN, SCALE, COPY, ACQUIRE, WAYS };

/* A thread that waits for everything, for an earlier operation, or works on the communication stream. */
struct waiter {
    struct rank *r;
    int way;
    uint64_t earlier;
    void *x; /* KNOWN elements that no operation uses */
    cddp_status st;
};

static void *wait_beside_a_group(void *arg)
{
    struct waiter *w = arg;
    const struct cdi_backend_ops *ops = w->r->ops;
    struct cdi_backend *b = w->r->b;
    struct cdi_error err;
    float copy[KNOWN];
    void *stream;

    if (use_device(w->r) != 0)
        return arg;
    switch (w->way) {
    case STREAM:
        w->st = ops->stream_wait(b, 0, NULL, &err);
        break;
    case JOIN:
        w->st = ops->join(b, w->earlier, &err);
        break;
    case SCALE:
        w->st = ops->scale(b, w->x, KNOWN, CDDP_FLOAT32, 2, &err);
        break;
    case COPY:
        w->st = ops->copy(b, copy, w->x, sizeof copy, &err);
        break;
    default:
        w->st = ops->stream_acquire(b, &stream, &err);
        if (w->st == CDDP_OK)
            ops->stream_release(b);
    }
    return NULL;
}

/*
 * Rank 0 waits in another thread while a group of two operations is half there. Rank 1 waits for nothing, and is late
 * to the operation before the group, which connects: NCCL gets the same groups, or the stand-in reports them.
 */
static int wait_in_a_group(struct rank *r)
{
    static const float zeros[2 * KNOWN];
    struct waiter w = {.r = r};
    uint64_t ticket;
    pthread_t thread;
    float *x;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    x = rank_lend(r, zeros, sizeof zeros);
    w.x = rank_lend(r, zeros, sizeof zeros);
    for (w.way = 0; w.way < WAYS; w.way++) {
        struct cdi_coll op = all_reduce(x);

        op.known = true;
        op.count = KNOWN + 1 + (size_t)w.way;
        if (r->rank == 1)
            (void)await_flag(r, w.way, CHILD_S * 1000);
        RANK_CHECK(r->ops->enqueue(r->b, &op, &w.earlier, &r->err) == CDDP_OK);
        op.count = KNOWN / 2;
        op.more = true;
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
        if (r->rank == 0) {
            RANK_CHECK(pthread_create(&thread, NULL, wait_beside_a_group, &w) == 0);
            rank_sleep(LATE_MS / 6);
            set_flag(r, w.way);
            rank_sleep(LATE_MS / 6);
        }
        op.in = op.out = x + KNOWN;
        op.more = false;
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
        if (r->rank == 0)
            RANK_CHECK(pthread_join(thread, NULL) == 0 && w.st == CDDP_OK, "way %d", w.way);
        RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    }
    rank_return(r, NULL, w.x, 0);
    rank_return(r, NULL, x, 0);
    return 0;
}

/*
 * Rank 0 starts an operation that connects, and so waits for rank 1, which is late; then a known one on the other part.
 * Rank 1 starts both in the same order.
 */
static int connect_first(struct rank *r)
{
    struct part part[2];
    uint64_t ticket[2];

    if (open_parts(r, part, 0) != 0)
        return 1;
    if (r->rank == 1)
        (void)await_flag(r, 0, LATE_MS); /* rank 0 has put the second one on the GPU; unless that waits for the first */
    RANK_CHECK(start(r, &part[0], 2 * KNOWN, &ticket[0]) == CDDP_OK);
    if (r->rank == 1)
        RANK_CHECK(r->ops->join(part[0].b, ticket[0], &r->err) == CDDP_OK);
    RANK_CHECK(start(r, &part[1], KNOWN, &ticket[1]) == CDDP_OK);
    set_flag(r, r->rank);
    for (int i = 0; i < 2; i++)
        RANK_CHECK(r->ops->join(part[i].b, ticket[i], &r->err) == CDDP_OK);
    close_parts(r, part);
    return compare_orders(r);
}

/* Operations of new and known shapes take turns, without a wait of the program. */
static int take_turns(struct rank *r)
{
    struct part part[2];
    uint64_t ticket[2] = {0, 0};

    if (open_parts(r, part, 0) != 0)
        return 1;
    for (size_t i = 0; i < ROUNDS; i++)
        RANK_CHECK(start(r, &part[i % 2], i % 3 == 0 ? KNOWN : KNOWN + i, &ticket[i % 2]) == CDDP_OK);
    for (int i = 0; i < 2; i++)
        RANK_CHECK(r->ops->join(part[i].b, ticket[i], &r->err) == CDDP_OK);
    close_parts(r, part);
    return compare_orders(r);
}

/* Rank 0 captures, as a bucket or not (arg), while its operation connects with rank 1, which is late. */
static int capture_beside_a_launch(struct rank *r)
{
    static float x[COUNT];
    const float zero[KNOWN] = {0};
    struct part whole;
    CUgraphExec exec;
    uint64_t ticket;
    CUgraph graph;
    CUstream s;
    void *there;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (use_stream(r, &s) != 0)
        return 1;
    for (size_t k = 0; k < COUNT; k++)
        x[k] = 1;
    there = rank_lend(r, x, sizeof x);
    whole = (struct part){.b = r->b, .x = rank_lend(r, zero, sizeof zero)};
    if (r->rank == 1 && await_flag(r, 0, CHILD_S * 1000))
        rank_sleep(LATE_MS);
    RANK_CHECK(start(r, &whole, KNOWN, &ticket) == CDDP_OK);
    set_flag(r, 0);
    RANK_CHECK(capture(r, s, there, r->arg != NULL, &graph) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    RANK_CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS && cuGraphLaunch(exec, s) == CUDA_SUCCESS);
    RANK_CHECK(cuStreamSynchronize(s) == CUDA_SUCCESS);
    RANK_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    rank_return(r, x, there, sizeof x);
    RANK_CHECK(x[0] == 2 && x[COUNT - 1] == 2, "wrong result: %f", (double)x[0]);
    rank_return(r, NULL, whole.x, 0);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- failures meanwhile */

/* Rank 1 dies while the second part waits for the first one's operation, which connects. */
static int die_meanwhile(struct rank *r)
{
    struct part part[2];
    uint64_t ticket = 0;
    cddp_status st;

    if (open_parts(r, part, 0) != 0)
        return 1;
    if (r->rank == 1) {
        (void)await_flag(r, 0, LATE_MS);
        rank_sleep(LATE_MS / 3); /* rank 0 is in the second call */
        rank_dies(r);
    }
    RANK_CHECK(start(r, &part[0], 2 * KNOWN, &ticket) == CDDP_OK);
    set_flag(r, 0);
    if (is_named(r, run(r, &part[1], KNOWN)) != 0)
        return 1;
    st = r->ops->join(part[0].b, ticket, &r->err);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL);
    leave(r, part);
}

/* Rank 1 never comes to the first part's operation: it times out, and the second part goes on. */
static int time_out_meanwhile(struct rank *r)
{
    struct part part[2];
    uint64_t ticket = 0;
    cddp_status st;

    if (open_parts(r, part, LATE_MS) != 0)
        return 1;
    if (r->rank == 0)
        RANK_CHECK(start(r, &part[0], 2 * KNOWN, &ticket) == CDDP_OK);
    RANK_CHECK(run(r, &part[1], KNOWN) == CDDP_OK);
    if (r->rank == 0) {
        st = r->ops->join(part[0].b, ticket, &r->err);
        RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, "within 0.3 s") != NULL);
        set_flag(r, 0);
    }
    (void)await_flag(r, 0, CHILD_S * 1000);
    RANK_CHECK(run(r, &part[1], KNOWN) == CDDP_OK, "and once more");
    leave(r, part);
}

/* Rank 0 fills the first part's stream until a launch waits in the driver; the second part then waits for it. */
static void *fill(void *arg)
{
    struct rank *r = ((void **)arg)[0];
    const struct part *p = ((void **)arg)[1];
    const struct cdi_coll op = sum(p, KNOWN);
    struct cdi_error err;
    uint64_t ticket;

    for (int i = 0; r->ops->enqueue(p->b, &op, &ticket, &err) == CDDP_OK; i++)
        if (i == 3)
            set_flag(r, 0);
    return NULL;
}

static int die_beside_a_full_stream(struct rank *r)
{
    struct part part[2];
    void *arg[] = {r, &part[0]};
    pthread_t thread;
    cddp_status st;

    if (open_parts(r, part, 0) != 0)
        return 1;
    (void)setenv("CDDP_STANDIN_QUEUE", "64", 1);
    standin_configure();
    if (r->rank == 1) {
        (void)await_flag(r, 0, CHILD_S * 1000);
        rank_sleep(LATE_MS);
        rank_dies(r);
    }
    RANK_CHECK(pthread_create(&thread, NULL, fill, arg) == 0);
    (void)await_flag(r, 0, CHILD_S * 1000);
    rank_sleep(LATE_MS / 3);
    if (is_named(r, run(r, &part[1], KNOWN)) != 0)
        return 1;
    RANK_CHECK(pthread_join(thread, NULL) == 0);
    st = r->ops->health(part[0].b, &r->err);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL);
    leave(r, part);
}

/* ------------------------------------------------------------------------------------------------------------------ */

int main(int argc, char **argv)
{
    static const struct ranks_test tests[] = {
        {"a wait of another thread does not begin a group", wait_in_a_group, -1, NULL},
        {"a known operation does not overtake one that connects", connect_first, -1, NULL},
        {"launches take turns in the same order on both ranks", take_turns, -1, NULL},
        {"a captured operation does not overtake one that connects", capture_beside_a_launch, -1, NULL},
        {"a captured bucket does not overtake one that connects", capture_beside_a_launch, -1, "known"},
        {"a death while another communicator connects", die_meanwhile, 1, NULL},
        {"a timeout of one communicator lets the others go on", time_out_meanwhile, -1, NULL},
        {"a death while another communicator fills its stream", die_beside_a_full_stream, 1, NULL},
    };

    return ranks_main(&pair, CHILD_S, tests, sizeof tests / sizeof tests[0], argc, argv);
}
