/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the MPI backend, its creation and end, and the symbol of the module. */
#include "common/env.h"
#include "worker/backend/describe.h"
#include "worker/backend/host_elementwise.h"
#include "worker/backend/message_group.h"
#include "worker/backend/mpi/state.h"
#include "worker/backend/who.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SCRATCH_BYTES ((size_t)16 << 20) /* for all pieces; the smallest size of a piece has priority */
#define PIECE_MAX ((size_t)256 << 10)
#define PIECE_MIN 4096
#define PER_TRANSFER 2 /* messages */
#define JOIN_SPINS 2000

/* ------------------------------------------------------------------------------------------------ operations ---- */

static cddp_status mpi_broken(struct cdi_backend *b, const struct cdi_error *why)
{
    cdi_mpi_give_up(b);
    cdi_mpi_tell_peers(b, why);
    return why->status;
}

/* Handles the end of an operation. */
static cddp_status ended(struct cdi_backend *b, cddp_status st, struct cdi_error *why, struct cdi_error *err)
{
    if (st == CDDP_OK) /* all have arrived; but one may have failed before the last one arrived */
        st = cdi_mpi_peer_failure(b, why);
    if (st == CDDP_OK)
        return CDDP_OK;
    if (err != NULL)
        *err = *why;
    return mpi_broken(b, why);
}

static cddp_status run_for(struct cdi_backend *b, const struct cdi_work *work, int64_t timeout_ms,
                           struct cdi_error *err)
{
    bool pair = !work->is_region && cdi_group_is_message(&work->op);
    struct cdi_mpi_run run = {
        .b = b, .work = work, .op = &work->op, .timeout_ms = timeout_ms, .peer = pair ? work->op.root : -1};
    struct cdi_error why;

    run.number = pair ? 0 : ++b->n_collectives;
    return ended(b, cdi_mpi_run(&run, &why), &why, err);
}

/* Runs collectives one after another; messages, after at most one barrier, all at once. */
static cddp_status run_group(struct cdi_backend *b, const struct cdi_work *work, struct cdi_error *err)
{
    struct cdi_mpi_run run = {.b = b, .timeout_ms = b->world.timeout_ms};
    struct cdi_error why;
    cddp_status st = CDDP_OK;
    size_t i = 0, n;

    n = cdi_group_copy_own(work, b->world.rank);
    for (; i < n && st == CDDP_OK && !cdi_group_is_message(&work->group[i]); i++)
        st = run_for(b, &(struct cdi_work){.op = work->group[i], .n_group = n}, b->world.timeout_ms, err);
    if (st != CDDP_OK || i == n)
        return st;
    return ended(b, cdi_mpi_messages(&run, work->group + i, n - i, &why), &why, err);
}

static cddp_status mpi_run_work(void *arg, const struct cdi_work *work, bool on_thread, struct cdi_error *err)
{
    struct cdi_backend *b = arg;
    cddp_status st = work->group != NULL ? run_group(b, work, err) : run_for(b, work, b->world.timeout_ms, err);

    (void)on_thread;
    if (st != CDDP_OK)
        cdi_coll_advise(&work->op, err);
    return st == CDDP_OK ? cdi_flight_confirm(b->world.flight, err) : st;
}

/* If MPI allows calls of one thread only, the thread of MPI_Init has to wait. */
static cddp_status may_call(bool main_only, struct cdi_error *err)
{
    int is_main = 1;

    if (main_only && (MPI_Is_thread_main(&is_main) != MPI_SUCCESS || !is_main))
        return cdi_fail(err, CDDP_E_INVALID,
                        "this program has initialised MPI for one thread only, and this is another thread: call "
                        "MPI_Init_thread with MPI_THREAD_MULTIPLE, or let cddp_init initialise MPI");
    return CDDP_OK;
}

static cddp_status enqueue_work(struct cdi_backend *b, struct cdi_work *work, uint64_t *ticket, struct cdi_error *err)
{
    if (!b->process->own_threads) { /* so the queue never starts a thread */
        work->op.lazy = true;
        work->op.grace = false;
    }
    return cdi_queue_enqueue(b->queue, work, ticket, err);
}

static cddp_status mpi_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                     struct cdi_error *err)
{
    struct cdi_work work;
    cddp_status st = cdi_group_make(&work, ops, n, b->world.rank, b->world.size, err);

    if (st != CDDP_OK)
        return st;
    st = enqueue_work(b, &work, ticket, err);
    if (st != CDDP_OK)
        free(work.group);
    return st;
}

static cddp_status mpi_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket,
                               struct cdi_error *err)
{
    struct cdi_work work = {.op = *op};

    if (op->kind == CDI_ALL_GATHERV)
        return mpi_enqueue_group(b, op, 1, ticket, err);
    return enqueue_work(b, &work, ticket, err);
}

static cddp_status mpi_can_enqueue(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, size_t calls,
                                   struct cdi_error *err)
{
    (void)ops;
    (void)n;
    return cdi_queue_has_room(b->queue, calls, err);
}

static cddp_status mpi_join(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    cddp_status st = may_call(b->process->main_only, err);

    return st == CDDP_OK ? cdi_queue_join(b->queue, ticket, err) : st;
}

/* If threads of libcddp may not call MPI, only callers continue pending operations. */
static cddp_status mpi_test(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    cddp_status st = cdi_queue_test(b->queue, ticket, err);

    return st == CDDP_IN_PROGRESS && !b->process->own_threads ? mpi_join(b, ticket, err) : st;
}

static cddp_status do_now(struct cdi_backend *b, struct cdi_work *work, struct cdi_error *err)
{
    uint64_t ticket;
    cddp_status st = enqueue_work(b, work, &ticket, err);

    return st == CDDP_OK ? mpi_join(b, ticket, err) : st;
}

/* ------------------------------------------------------------------------------------------ create and destroy ---- */

static bool room_for_messages(struct cdi_requests *q, int transfers)
{
    q->cap = PER_TRANSFER * transfers;
    q->req = calloc((size_t)q->cap + 1, sizeof(MPI_Request));
    q->receives = calloc((size_t)q->cap + 1, sizeof *q->receives);
    return q->req != NULL && q->receives != NULL;
}

static void mpi_release_all(struct cdi_backend *b)
{
    struct cdi_requests *sets[] = {&b->parts[0], &b->parts[1], &b->results[0], &b->results[1]};

    for (int r = 0; r < b->world.size && b->neighbours != NULL; r++)
        if (b->neighbours[r].pidfd >= 0)
            (void)close(b->neighbours[r].pidfd);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        free(sets[i]->req);
        free(sets[i]->receives);
    }
    for (int r = 0; r < b->world.size && b->pairs != NULL; r++) {
        free(b->pairs[r].q.req);
        free(b->pairs[r].q.receives);
    }
    if (!b->in_use_by_mpi) {
        free(b->pairs);
        free(b->openings);
        free(b->scratch);
    }
    free(b->neighbours);
    free(b->world_rank);
    free(b);
}

static struct cdi_backend *mpi_new_backend(const struct cdi_world *world, struct cdi_mpi_process *process)
{
    size_t n = world->size > 0 ? (size_t)world->size : 1,
           piece = SCRATCH_BYTES / (CDI_SETS * (n + 1)) / PIECE_MIN * PIECE_MIN;
    struct cdi_backend *b = calloc(1, sizeof *b);
    bool ok;

    if (b == NULL)
        return NULL;
    b->world = *world;
    b->process = process;
    b->piece = piece < PIECE_MIN ? PIECE_MIN : piece > PIECE_MAX ? PIECE_MAX : piece;
    b->world_rank = calloc(n, sizeof *b->world_rank);
    b->neighbours = calloc(n, sizeof *b->neighbours);
    for (size_t r = 0; r < n && b->neighbours != NULL; r++)
        b->neighbours[r].pidfd = -1;
    b->openings = calloc(n + 2, sizeof *b->openings);
    b->pairs = calloc(n, sizeof *b->pairs);
    ok = b->world_rank != NULL && b->neighbours != NULL && b->openings != NULL && b->pairs != NULL;
    if (posix_memalign((void **)&b->scratch, 64, CDI_SETS * (n + 1) * b->piece) != 0)
        b->scratch = NULL;
    for (int i = 0; i < CDI_SETS; i++) {
        ok = room_for_messages(&b->parts[i], 2 * world->size) && ok; /* to and from each */
        ok = room_for_messages(&b->results[i], 2 * world->size) && ok;
    }
    for (int r = 0; r < world->size && ok; r++)
        ok = room_for_messages(&b->pairs[r].q, 1);
    if (ok && b->scratch != NULL)
        return b;
    mpi_release_all(b);
    return NULL;
}

/* Adds delta to the number of parts of this job. Sets *n to the sum. */
static cddp_status count_parts(const struct cdi_backend *b, int delta, int64_t *n, struct cdi_error *err)
{
    *n = 0;
    return b->numbers.add != NULL ? b->numbers.add(b->numbers.arg, "mpi/parts", delta, n, err) : CDDP_OK;
}

/* Notifies peers that wait for this rank. */
static void tell_left(struct cdi_backend *b)
{
    const struct cdi_peer_error w = cdi_mpi_peer_error(b);
    char name[32], key[CDI_PEER_ERROR_KEY_BYTES];

    if (!cdi_peer_error_has_peers(&w) || b->queue == NULL || cdi_queue_health(b->queue, NULL) != CDDP_OK)
        return;
    if (!cdi_queue_idle(b->queue)) {
        struct cdi_error why;

        (void)cdi_fail_by(&why, b->world_rank[b->world.rank], CDDP_E_ABORTED,
                          "%s left the job while collectives were in flight",
                          cdi_who(b->world_rank, b->world.rank).text);
        cdi_mpi_tell_peers(b, &why);
        return;
    }
    (void)snprintf(name, sizeof name, "left/%d", b->world.rank);
    cdi_peer_error_key(&w, name, key);
    (void)w.keys->add(w.keys->arg, key, (int64_t)b->n_collectives + 1, NULL, NULL);
    cdi_peer_error_key(&w, "left", key);
    (void)w.keys->add(w.keys->arg, key, 1, NULL, NULL);
}

static void mpi_leave(struct cdi_backend *b)
{
    int64_t n_parts;

    b->left = true;
    tell_left(b);
    atomic_store(&b->stopped, true);
    cdi_queue_destroy(b->queue);
    b->queue = NULL;
    if (!b->is_part && count_parts(b, 0, &n_parts, NULL) == CDDP_OK)
        cdi_mpi_process_close(b->process, b->number + n_parts);
}

static void mpi_destroy(struct cdi_backend *b)
{
    if (b == NULL)
        return;
    if (!b->left)
        mpi_leave(b);
    mpi_release_all(b);
}

/* ----------------------------------------------------------------------------------------------- connecting ---- */

/* What each rank sends to the others when it connects. */
struct card {
    uint8_t host[CDI_MODULE_HOST_ID];
    uint32_t pid, pids; /* and whose numbers these are */
};
_Static_assert(sizeof(struct card) == CDI_OPENING_DATA, "it comes with the opening");

static void fill_card(struct card *c)
{
    struct stat sb;

    memset(c, 0, sizeof *c);
    cdi_mpi_host->host_id(c->host);
    c->pid = (uint32_t)getpid();
    if (stat("/proc/self/ns/pid", &sb) == 0)
        c->pids = (uint32_t)sb.st_ino;
}

/* Kernels before 5.3 have no such descriptor: then the deadline or mpirun notices a death. */
static void watch_neighbours(struct cdi_backend *b, const struct card *cards)
{
    const struct card *mine = &cards[b->world.rank];

    for (int r = 0; r < b->world.size; r++) {
        if (r == b->world.rank || memcmp(cards[r].host, mine->host, sizeof mine->host) != 0 ||
            cards[r].pids != mine->pids)
            continue;
        b->neighbours[r].pid = (int)cards[r].pid;
        b->neighbours[r].pidfd = (int)syscall(SYS_pidfd_open, (pid_t)cards[r].pid, 0);
    }
}

/* The first exchange: on return all ranks have arrived, and know one another. */
static cddp_status mpi_connect_all(struct cdi_backend *b, struct cdi_error *err)
{
    struct card mine, *cards = calloc((size_t)b->world.size, sizeof *cards);
    struct cdi_work work = {.op = {.kind = CDI_ALL_GATHER,
                                   .in = &mine,
                                   .out = cards,
                                   .count = sizeof mine,
                                   .dtype = CDDP_UINT8,
                                   .bucket = -1}};
    cddp_status st;

    if (cards == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", b->world.size);
    fill_card(&mine);
    st = run_for(b, &work, b->world.init_timeout_ms, err);
    if (st == CDDP_OK)
        watch_neighbours(b, cards);
    else
        (void)cdi_error_wrap(err, "connecting over MPI");
    free(cards);
    if (st == CDDP_OK)
        st = cdi_queue_create(&b->queue, mpi_run_work, b, cdi_world_record(&b->world), JOIN_SPINS, err);
    if (st == CDDP_OK)
        cdi_queue_set_name(b->queue, b->world.name);
    return st;
}

/* Numbers of communicators are not reused, so that messages of a failed one never match. */
static cddp_status set_tag(struct cdi_backend *b, int64_t number, struct cdi_error *err)
{
    if (number < 0 || number >= b->process->n_communicators)
        return cdi_fail(err, CDDP_E_LIMIT, "MPI has tags for %d communicators, and this program has created more",
                        b->process->n_communicators);
    b->first_tag = (int)number * CDI_MPI_TAGS;
    return CDDP_OK;
}

/*
 * Rank 0 publishes the number of the communicator and its duplicate; parts have the numbers after it. If rank 0 could
 * not begin, the others receive the reason.
 */
static cddp_status give_number(struct cdi_backend *b, const struct cdi_error *begun, int *index, struct cdi_error *err)
{
    const struct cdi_world *w = &b->world;
    const struct cdi_peer_error peer = cdi_mpi_peer_error(b);
    char text[48] = "failed";
    cddp_status st;

    if (begun->status == CDDP_OK) {
        *index = cdi_mpi_process_choose(w);
        b->number = cdi_mpi_process_number(w, *index);
        (void)snprintf(text, sizeof text, "%" PRId64 " %d", b->number, *index);
    }
    if (w->size == 1)
        return CDDP_OK;
    if (begun->status != CDDP_OK)
        cdi_peer_error_tell(&peer, begun);
    st = w->keys.set(w->keys.arg, "mpi/world", text, strlen(text), err);
    return begun->status == CDDP_OK ? st : CDDP_OK;
}

static cddp_status take_number(struct cdi_backend *b, int *index, struct cdi_error *err)
{
    const struct cdi_world *w = &b->world;
    const struct cdi_peer_error peer = cdi_mpi_peer_error(b);
    char text[48] = "";
    size_t len = 0;
    cddp_status st = w->keys.get(w->keys.arg, "mpi/world", text, sizeof text - 1, &len, w->init_timeout_ms, err);

    if (st != CDDP_OK || sscanf(text, "%" SCNd64 " %d", &b->number, index) == 2)
        return st;
    st = cdi_peer_error_heard(&peer, err);
    return st != CDDP_OK ? st : cdi_fail(err, CDDP_E_PEER, "rank 0 could not initialise MPI, and reported no reason");
}

/* First the steps that may fail on one rank, then the number, then the duplicate. */
static cddp_status mpi_begin(struct cdi_backend *b, struct cdi_error *err)
{
    const struct cdi_peer_error peer = cdi_mpi_peer_error(b);
    struct cdi_error begun = {.status = CDDP_OK};
    cddp_status st = CDDP_OK;
    int index = 0;

    begun.status = cdi_mpi_process_begin(&b->world, &begun);
    if (begun.status == CDDP_OK)
        begun.status = may_call(cdi_mpi_process_main_only(), &begun);
    if (b->world.rank == 0)
        st = give_number(b, &begun, &index, err);
    else if (begun.status == CDDP_OK)
        st = take_number(b, &index, err);
    else
        cdi_peer_error_tell(&peer, &begun);
    if (begun.status != CDDP_OK)
        return cdi_fail_since(err, &begun, "%s", begun.msg);
    if (st == CDDP_OK)
        st = cdi_mpi_process_open(&b->process, &b->world, index, err);
    return st == CDDP_OK ? set_tag(b, b->number, err) : st;
}

static cddp_status mpi_create(struct cdi_backend **out, const struct cdi_world *world, struct cdi_error *err)
{
    struct cdi_backend *b = mpi_new_backend(world, NULL);
    cddp_status st;

    if (b == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    b->numbers = world->keys;
    for (int r = 0; r < world->size; r++)
        b->world_rank[r] = r;
    st = mpi_begin(b, err);
    if (st == CDDP_OK)
        st = mpi_connect_all(b, err);
    if (st != CDDP_OK) {
        if (b->process != NULL)
            cdi_mpi_process_close(b->process, b->number);
        mpi_release_all(b);
        return st;
    }
    *out = b;
    return CDDP_OK;
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

/* Rank 0 of the part gets the number for all. */
static cddp_status number_group(struct cdi_backend *part, int64_t *nth, struct cdi_error *err)
{
    const struct cdi_world *w = &part->world;
    char text[32] = "";
    size_t len = 0;
    cddp_status st = CDDP_OK;

    *nth = 0;
    if (w->size == 1)
        return CDDP_OK;
    if (w->rank == 0) {
        st = count_parts(part, 1, nth, err);
        (void)snprintf(text, sizeof text, "%" PRId64, *nth);
        return st == CDDP_OK ? w->keys.set(w->keys.arg, "mpi/number", text, strlen(text), err) : st;
    }
    st = w->keys.get(w->keys.arg, "mpi/number", text, sizeof text - 1, &len, w->init_timeout_ms, err);
    if (st == CDDP_OK && !cdi_parse_int(text, 0, INT64_MAX, nth))
        st = cdi_fail(err, CDDP_E_MISMATCH, "ranks run different versions of libcddp");
    return st;
}

/* The ranks of the job are those of MPI_COMM_WORLD. */
static cddp_status mpi_group(struct cdi_backend *b, const struct cdi_world *world, struct cdi_backend **out,
                             struct cdi_error *err)
{
    struct cdi_backend *part = mpi_new_backend(world, b->process);
    int64_t nth = 0;
    cddp_status st = may_call(b->process->main_only, err);

    if (part == NULL)
        return st == CDDP_OK ? cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator") : st;
    part->is_part = true;
    part->number = b->number;
    part->numbers = b->numbers;
    for (int r = 0; r < world->size; r++)
        part->world_rank[r] = cdi_rank_of_job(world, r);
    if (st == CDDP_OK)
        st = number_group(part, &nth, err);
    if (st == CDDP_OK)
        st = set_tag(part, b->number + nth, err);
    if (st == CDDP_OK)
        st = mpi_connect_all(part, err);
    if (st != CDDP_OK) {
        mpi_release_all(part);
        return st;
    }
    *out = part;
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------------- the table ---- */

static cddp_status mpi_region_create(struct cdi_backend *b, size_t bytes, struct cdi_region **out,
                                     struct cdi_error *err)
{
    struct cdi_error agreed = {.status = CDDP_OK};
    struct cdi_region *region = NULL;
    struct cdi_work work = {.is_region = true,
                            .region_bytes = bytes == 0 ? 1 : bytes,
                            .region_out = &region,
                            .region_err = &agreed,
                            .op = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true}};
    cddp_status st = do_now(b, &work, err);

    if (st == CDDP_OK && agreed.status != CDDP_OK)
        st = cdi_fail_since(err, &agreed, "%s", agreed.msg);
    if (st == CDDP_OK)
        *out = region;
    return st;
}

static void mpi_region_destroy(struct cdi_backend *b, struct cdi_region *r)
{
    (void)b;
    if (r == NULL)
        return;
    free(r->base);
    free(r);
}

/* Work of the caller is done before this call. */
static cddp_status mpi_wait_stream(struct cdi_backend *b, void *stream, bool timed, struct cdi_error *err)
{
    (void)stream;
    (void)timed;
    return cdi_queue_health(b->queue, err);
}

static cddp_status mpi_stream_wait(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err)
{
    (void)stream;
    return mpi_join(b, ticket != 0 ? ticket : cdi_queue_needed(b->queue), err);
}

static void mpi_describe(struct cdi_backend *b, cddp_device_info *out)
{
    *out = (cddp_device_info){.size = out->size, .device = -1, .numa_node = -1};
    (void)snprintf(out->name, sizeof out->name, "cpu, %.80s", b->process->library);
}

static cddp_status mpi_health(struct cdi_backend *b, struct cdi_error *err)
{
    return cdi_queue_health(b->queue, err);
}

/* Not every thread may call MPI, so this reports only what this rank and the agent know. */
static cddp_status mpi_peek(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_queue_health(b->queue, err);

    return st == CDDP_OK ? cdi_flight_check(b->world.flight, err) : st;
}

static void mpi_abort(struct cdi_backend *b, const struct cdi_error *why)
{
    struct cdi_error err = cdi_abort_of(&b->world, why);

    cdi_queue_fail(b->queue, &err);
    atomic_store(&b->stopped, true);
    cdi_mpi_process_broken();
    cdi_mpi_tell_peers(b, &err);
}

static const struct cdi_backend_ops mpi_ops = {
    .name = "mpi",
    .keeps_store = true,
    .create = mpi_create,
    .leave = mpi_leave,
    .destroy = mpi_destroy,
    .region_create = mpi_region_create,
    .region_destroy = mpi_region_destroy,
    .group = mpi_group,
    .enqueue = mpi_enqueue,
    .can_enqueue = mpi_can_enqueue,
    .enqueue_group = mpi_enqueue_group,
    .check_reduction = cdi_element_check_reduction,
    .join = mpi_join,
    .test = mpi_test,
    .wait_stream = mpi_wait_stream,
    .stream_wait = mpi_stream_wait,
    .alloc = cdi_host_memory_alloc,
    .release = cdi_host_memory_release,
    .copy = cdi_host_memory_copy,
    .describe = mpi_describe,
    .health = mpi_health,
    .peek = mpi_peek,
    .abort = mpi_abort,
    .pack = cdi_element_pack,
    .unpack = cdi_element_unpack,
    .pack_scaled = cdi_element_pack_scaled,
    .cast = cdi_element_cast,
    .scale = cdi_element_scale,
    .norm = cdi_element_norm,
    .norm_round = cdi_element_norm_round,
    .clip = cdi_element_clip,
};

static cddp_status mpi_open_backend(const struct cdi_host *host, const struct cdi_backend_ops **ops,
                                    struct cdi_error *err)
{
    if (host->size != sizeof *host)
        return cdi_fail(err, CDDP_E_VERSION, "cddp_mpi.so and libcddp are of different builds");
    cdi_mpi_host = host;
    *ops = &mpi_ops;
    return CDDP_OK;
}

extern const struct cdi_module cddp_module;
__attribute__((visibility("default"))) const struct cdi_module cddp_module = {
    .abi = CDI_MODULE_ABI,
    .version = CDDP_VERSION,
    .open = mpi_open_backend,
};
