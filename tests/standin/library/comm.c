/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a communicator. Work that NCCL does beside the caller (joining, splitting, registering a window, late
 * enqueueing) is a task: at once in a blocking communicator, otherwise in a separate thread, while the communicator is
 * "in progress" and every other call but ncclCommGetAsyncError and ncclCommAbort is an error.
 */
#include "comm.h"
#include "version.h"

#include "common/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COMMS 256
#define REVOKE 22809 /* the oldest source that was read for ncclCommRevoke */

static struct ncclComm *comms[COMMS];              /* alive */
static char last_error[256] = "\x1b[31mno text\n"; /* as NCCL ends its own, and as a plugin may colour them */
static uint64_t n_comms_ever;

/* --------------------------------------------------------------------------------------------------- references -- */

ncclResult_t si_comm_refuse(struct ncclComm *comm, ncclResult_t rc, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    si_lock();
    (void)snprintf(comm != NULL ? comm->last_error : last_error, sizeof last_error, "%s", text);
    si_unlock();
    si_refused("%s", text);
    return rc;
}

bool si_comm_is_alive(const struct ncclComm *comm)
{
    bool alive = false;

    si_lock();
    for (size_t i = 0; i < COMMS && comm != NULL; i++)
        alive = alive || comms[i] == comm;
    si_unlock();
    return alive;
}

static unsigned count_list(const struct si_window *w)
{
    unsigned n = 0;

    for (; w != NULL; w = w->next)
        n++;
    return n;
}

unsigned si_registered_locked(void)
{
    unsigned n = 0;

    for (size_t i = 0; i < COMMS; i++)
        if (comms[i] != NULL)
            n += count_list(comms[i]->windows) + count_list(comms[i]->buffers);
    return n;
}

ncclResult_t si_comm_state(const struct ncclComm *comm)
{
    int32_t state = __atomic_load_n(&comm->state, __ATOMIC_ACQUIRE);

    if (state == ncclSuccess)
        state = __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE);
    return state == ncclSuccess && __atomic_load_n(&comm->seg.lost, __ATOMIC_ACQUIRE) != 0 ? ncclRemoteError
                                                                                           : (ncclResult_t)state;
}

ncclResult_t si_comm_cut(struct ncclComm *comm, ncclResult_t rc)
{
    return rc == ncclInternalError && segment_lost(&comm->seg)
               ? si_comm_refuse(comm, ncclRemoteError, "socketProgress: Connection closed by remote peer")
               : rc;
}

ncclResult_t si_comm_check(struct ncclComm *comm, const char *function)
{
    ncclResult_t state;

    if (!si_comm_is_alive(comm))
        return si_comm_refuse(NULL, ncclInvalidArgument, "%s: %p is not a communicator, or was destroyed or aborted",
                              function, (void *)comm);
    state = si_comm_state(comm);
    if (state == ncclInProgress)
        return si_comm_refuse(comm, ncclInvalidArgument,
                              "%s: communicator '%s' is still in progress: ask ncclCommGetAsyncError until it is not",
                              function, comm->name);
    si_edge_to(comm);
    return state;
}

ncclResult_t si_comm_keep(struct ncclComm *comm, ncclResult_t rc)
{
    if (rc != ncclSuccess && rc != ncclInProgress && si_comm_is_alive(comm) && !comm->blocking)
        __atomic_store_n(&comm->state, rc, __ATOMIC_RELEASE);
    return rc;
}

void si_comm_ref(struct ncclComm *comm)
{
    si_lock();
    comm->refs++;
    si_unlock();
}

static void free_list(struct si_window *w)
{
    while (w != NULL) {
        struct si_window *next = w->next;

        if (w->alloc != NULL)
            w->alloc->registered--;
        free(w);
        w = next;
    }
}

void si_comm_unref(struct ncclComm *comm)
{
    bool last;

    si_lock();
    last = --comm->refs == 0;
    if (last)
        si_stop_release_locked(comm->last);
    si_unlock();
    if (!last)
        return;
    segment_leave(&comm->seg);
    free(comm);
}

/* The handle is gone; queued operations may still hold on to it. */
static void comm_forget(struct ncclComm *comm)
{
    si_lock();
    for (size_t i = 0; i < COMMS; i++)
        if (comms[i] == comm)
            comms[i] = NULL;
    free_list(comm->windows);
    free_list(comm->buffers);
    comm->windows = comm->buffers = NULL;
    si_n_communicators--;
    si_unlock();
    si_comm_unref(comm);
}

static struct ncclComm *comm_create(CUcontext ctx, const ncclConfig_t *config, const struct ncclComm *parent)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    bool kept = false;

    if (comm == NULL)
        return NULL;
    comm->refs = 1;
    comm->ctx = ctx;
    comm->blocking = parent == NULL || parent->blocking;
    if (config != NULL && config->blocking != NCCL_CONFIG_UNDEF_INT)
        comm->blocking = config->blocking != 0;
    si_lock();
    comm->random = si_seed(3, ++n_comms_ever);
    comm->number = (uint8_t)n_comms_ever;
    (void)snprintf(comm->name, sizeof comm->name, "%llu", (unsigned long long)n_comms_ever);
    for (size_t i = 0; i < COMMS && !kept; i++)
        if (comms[i] == NULL) {
            comms[i] = comm;
            kept = true;
        }
    si_n_communicators += kept;
    si_unlock();
    if (!kept) {
        free(comm);
        return NULL;
    }
    if (config == NULL)
        return comm;
    comm->config.max_ctas = config->maxCTAs;
    /* A library reads as much of the caller's members as it knows (init.cc, parseCommConfig); these are of 2.27. */
    if (si_version_code() < 22700 || config->size < offsetof(ncclConfig_t, CTAPolicy) + sizeof config->CTAPolicy)
        return comm;
    comm->config.cta_policy = config->CTAPolicy;
    if (config->commName != NULL) {
        (void)snprintf(comm->name, sizeof comm->name, "%s", config->commName);
        (void)snprintf(comm->config.name, sizeof comm->config.name, "%s", config->commName);
    }
    return comm;
}

void standin_config(struct standin_config *out)
{
    const struct ncclComm *newest = NULL;

    *out = (struct standin_config){.name = ""};
    si_lock();
    for (size_t i = 0; i < COMMS; i++)
        if (comms[i] != NULL && (newest == NULL || comms[i]->number > newest->number))
            newest = comms[i];
    if (newest != NULL)
        *out = newest->config;
    si_unlock();
}

/* -------------------------------------------------------------------------------------------------------- tasks -- */

struct task {
    struct ncclComm *comm;
    ncclResult_t (*fn)(struct ncclComm *comm, void *arg);
    void *arg;
};

void si_comm_dawdle(struct ncclComm *comm)
{
    struct timespec ts = {.tv_nsec = (long)si_random(&comm->random, 300000)};

    (void)nanosleep(&ts, NULL);
}

static void *comm_run_task(void *arg)
{
    struct task *t = arg;
    struct ncclComm *comm = t->comm;
    int32_t rc;

    si_comm_dawdle(comm);
    rc = (int32_t)si_comm_cut(comm, t->fn(comm, t->arg));
    si_edge_from(comm);
    __atomic_store_n(&comm->state, rc,
                     __ATOMIC_RELEASE); /* also over the status of a call that was rejected meanwhile */
    (void)__atomic_sub_fetch(&comm->tasks, 1, __ATOMIC_RELEASE);
    si_futex_wake(&comm->tasks, false);
    si_comm_unref(comm);
    free(t);
    return NULL;
}

ncclResult_t si_comm_await(struct ncclComm *comm)
{
    uint32_t n;

    while ((n = __atomic_load_n(&comm->tasks, __ATOMIC_ACQUIRE)) != 0)
        si_futex_wait(&comm->tasks, n, 0, false);
    si_edge_to(comm);
    return si_comm_state(comm);
}

ncclResult_t si_comm_launch(struct ncclComm *comm, ncclResult_t (*fn)(struct ncclComm *, void *), void *arg)
{
    struct task *t = malloc(sizeof *t);

    if (t == NULL)
        return ncclSystemError;
    *t = (struct task){.comm = comm, .fn = fn, .arg = arg};
    si_comm_ref(comm);
    __atomic_store_n(&comm->state, ncclInProgress, __ATOMIC_RELEASE);
    (void)__atomic_add_fetch(&comm->tasks, 1, __ATOMIC_ACQ_REL);
    if (si_start_thread(comm_run_task, t))
        return ncclInProgress;
    __atomic_store_n(&comm->state, ncclSystemError, __ATOMIC_RELEASE);
    (void)__atomic_sub_fetch(&comm->tasks, 1, __ATOMIC_ACQ_REL);
    si_comm_unref(comm);
    free(t);
    return ncclSystemError;
}

ncclResult_t si_comm_task(struct ncclComm *comm, ncclResult_t (*fn)(struct ncclComm *, void *), void *arg)
{
    ncclResult_t rc;

    if (!comm->blocking)
        return si_comm_launch(comm, fn, arg);
    if (si_group_defers(comm, fn, arg))
        return ncclSuccess;
    si_comm_ref(comm); /* it may be aborted meanwhile */
    (void)__atomic_add_fetch(&comm->inside, 1, __ATOMIC_ACQ_REL);
    rc = si_comm_cut(comm, fn(comm, arg));
    (void)__atomic_sub_fetch(&comm->inside, 1, __ATOMIC_ACQ_REL);
    si_comm_unref(comm);
    return rc;
}

/* ------------------------------------------------------------------------------------------------------ joining -- */

_Static_assert(sizeof(struct segment_id) <= sizeof(ncclUniqueId), "the id has room");

struct join {
    struct segment_id id[SEGMENT_RANKS];
    int n_ids, rank, n_ranks;
};

static struct segment_place comm_place_of(CUcontext ctx)
{
    const char *host = cdi_env_str("NCCL_HOSTID");
    /* A GPU by its UUID: init.cc:1050 of v2.30.7; by its PCI address, which MIG instances share, until v2.30.4. */
    struct segment_place p = {.pid = getpid(), .device = ctx->physical};

    (void)snprintf(p.host, sizeof p.host, "%s", host != NULL ? host : "this host");
    return p;
}

static ncclResult_t comm_joined(struct ncclComm *comm, enum segment_result rc, int rank, int n_ranks)
{
    switch (rc) {
    case SEGMENT_OK:
        return ncclSuccess;
    case SEGMENT_ABORTED:
        return ncclInternalError;
    case SEGMENT_NO_FILE:
        return si_comm_refuse(comm, ncclSystemError,
                              "communicator '%s': the unique id is of a process that has ended, or has been used up",
                              comm->name);
    case SEGMENT_BAD_RANK:
        return si_comm_refuse(comm, ncclInvalidUsage,
                              "communicator '%s': rank %d of %d joined twice, or the ranks use different sizes",
                              comm->name, rank, n_ranks);
    case SEGMENT_SAME_DEVICE:
        return si_comm_refuse(comm, ncclInvalidUsage,
                              "communicator '%s': Duplicate GPU detected: rank %d and another "
                              "use the same device",
                              comm->name, rank);
    }
    return ncclInternalError;
}

static ncclResult_t comm_join(struct ncclComm *comm, void *arg)
{
    struct join *j = arg;
    const struct segment_place place = comm_place_of(comm->ctx);
    const char *nvml = cdi_env_str("CDDP_STANDIN_NVML");
    bool missing = nvml != NULL && strcmp(nvml, "0") == 0;
    ncclResult_t rc;

    if (missing) /* misc/nvmlwrap.cc:75 of v2.28.9 */
        rc = si_comm_refuse(NULL, ncclSystemError, "Failed to open libnvidia-ml.so.1");
    else
        rc = comm_joined(comm, segment_join(&comm->seg, &j->id[0], j->rank, j->n_ranks, &place, &comm->abort), j->rank,
                         j->n_ranks);
    for (int i = missing ? 0 : 1; i < j->n_ids; i++)
        segment_id_close(&j->id[i]);
    free(j);
    return rc;
}

static ncclResult_t comm_init(const char *function, ncclComm_t *out, int n_ranks, int rank, int n_ids,
                              const ncclUniqueId *ids, const ncclConfig_t *config)
{
    CUcontext ctx = si_current();
    struct join *j;
    struct ncclComm *comm;
    ncclResult_t rc = (ncclResult_t)si_enter_nccl(function, false);

    if (rc != ncclSuccess)
        return rc;
    if (ctx == NULL)
        return si_comm_refuse(NULL, ncclUnhandledCudaError, "%s: no device is current in this thread", function);
    if (out == NULL || n_ranks < 1 || n_ranks > SEGMENT_RANKS || rank < 0 || rank >= n_ranks || n_ids < 1 ||
        n_ids > n_ranks || ids == NULL)
        return si_comm_refuse(NULL, ncclInvalidArgument, "%s: rank %d of %d, %d ids", function, rank, n_ranks, n_ids);
    if (config != NULL && (config->magic != SI_CONFIG_MAGIC || config->size < offsetof(ncclConfig_t, trafficClass)))
        return si_comm_refuse(NULL, ncclInvalidArgument, "%s: the config was not made by NCCL_CONFIG_INITIALIZER",
                              function);
    j = calloc(1, sizeof *j);
    comm = j != NULL ? comm_create(ctx, config, NULL) : NULL;
    if (comm == NULL) {
        free(j);
        return ncclSystemError;
    }
    j->n_ids = n_ids;
    j->rank = rank;
    j->n_ranks = n_ranks;
    for (int i = 0; i < n_ids; i++)
        memcpy(&j->id[i], &ids[i], sizeof j->id[i]);
    *out = comm;
    rc = si_comm_task(comm, comm_join, j);
    if (rc == ncclSuccess || rc == ncclInProgress)
        return rc;
    *out = NULL;
    comm_forget(comm);
    return rc;
}

SI_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclGetUniqueId", false);
    struct segment_id id;

    if (rc != ncclSuccess)
        return rc;
    if (uniqueId == NULL)
        return ncclInvalidArgument;
    if (!segment_id_create(&id))
        return si_comm_refuse(NULL, ncclSystemError, "ncclGetUniqueId: no file can be made for it");
    memset(uniqueId, 0, sizeof *uniqueId);
    memcpy(uniqueId, &id, sizeof id);
    return ncclSuccess;
}

SI_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                              ncclConfig_t *config)
{
    return comm_init("ncclCommInitRankConfig", comm, nranks, rank, 1, &commId, config);
}

SI_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    return comm_init("ncclCommInitRank", comm, nranks, rank, 1, &commId, NULL);
}

static ncclResult_t init_scalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                  ncclConfig_t *config)
{
    return comm_init("ncclCommInitRankScalable", newcomm, nranks, myrank, nId, commIds, config);
}

/* -------------------------------------------------------------------------------------------------------- split -- */

struct split {
    int color, key;
    ncclComm_t *out;
    bool has_config;
    ncclConfig_t config;
};

/* My place among those with my color; *first: the lowest. Keys decide, then ranks. */
static int comm_place_in_part(const struct segment *s, int color, int key, int *size, int *first)
{
    int rank = 0;
    int64_t first_key = INT64_MAX;

    *size = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        const struct segment_word *w = segment_heard(s, SEGMENT_CALLS, r);

        if (w->root != color)
            continue;
        *size += 1;
        if (w->op < first_key) {
            first_key = w->op;
            *first = r;
        }
        if (w->op < key || (w->op == key && r < s->rank))
            rank++;
    }
    return rank;
}

/* All ranks publish their color; the first of each part makes its id, and all receive it. */
static ncclResult_t make_part(struct ncclComm *comm, const struct split *sp, struct ncclComm **out)
{
    struct segment_word word = {.kind = -2, .root = sp->color, .op = sp->key};
    struct segment *s = &comm->seg;
    struct segment_id id = {0};
    struct segment_place place = comm_place_of(comm->ctx);
    struct ncclComm *part;
    int size, first = 0, rank;
    ncclResult_t rc;

    if (!segment_say(s, SEGMENT_CALLS, &word))
        return ncclInternalError;
    rank = comm_place_in_part(s, sp->color, sp->key, &size, &first);
    if (sp->color != NCCL_SPLIT_NOCOLOR && rank == 0 && !segment_id_create(&id))
        return ncclSystemError;
    word.extra[0] = id.nonce;
    word.extra[1] = (uint64_t)(uint32_t)id.pid << 32 | (uint32_t)id.fd;
    word.sequence = id.magic;
    if (!segment_say(s, SEGMENT_CALLS, &word)) {
        segment_id_close(&id);
        return ncclInternalError;
    }
    if (sp->color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    word = *segment_heard(s, SEGMENT_CALLS, first);
    id = (struct segment_id){.magic = word.sequence,
                             .nonce = word.extra[0],
                             .pid = (int32_t)(word.extra[1] >> 32),
                             .fd = (int32_t)(uint32_t)word.extra[1]};
    part = comm_create(comm->ctx, sp->has_config ? &sp->config : NULL, comm);
    if (part == NULL)
        return ncclSystemError;
    rc = si_comm_cut(part,
                     comm_joined(part, segment_join(&part->seg, &id, rank, size, &place, &comm->abort), rank, size));
    part->seg.abort = &part->abort;
    __atomic_store_n(&part->state, rc, __ATOMIC_RELEASE);
    *out = part;
    return rc;
}

/* The pointer is the caller's, and is written last of all; also where it is NULL, or can only be aborted. */
static ncclResult_t comm_split(struct ncclComm *comm, void *arg)
{
    struct split sp = *(struct split *)arg;
    struct ncclComm *part = NULL;
    ncclResult_t rc;

    free(arg);
    rc = make_part(comm, &sp, &part);
    si_comm_dawdle(comm);
    si_touch_store((void **)sp.out, part);
    return rc;
}

SI_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommSplit", false);
    struct split *sp;

    if (rc == ncclSuccess)
        rc = si_comm_check(comm, "ncclCommSplit");
    if (rc != ncclSuccess)
        return rc;
    if (newcomm == NULL || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
        return ncclInvalidArgument;
    sp = calloc(1, sizeof *sp);
    if (sp == NULL)
        return ncclSystemError;
    *newcomm = NULL;
    *sp = (struct split){.color = color, .key = key, .out = newcomm, .has_config = config != NULL};
    if (config != NULL)
        memcpy(&sp->config, config, config->size < sizeof sp->config ? config->size : sizeof sp->config);
    rc = si_comm_task(comm, comm_split, sp);
    return rc == ncclInProgress ? ncclSuccess : rc;
}

/* ---------------------------------------------------------------------------------------------------------- ends -- */

/* Waits until enqueued work is done, or the communicator is aborted. */
static bool drain(struct ncclComm *comm)
{
    const struct timespec ts = {.tv_nsec = 100000};
    bool done = false;

    while (!done && __atomic_load_n(&comm->abort, __ATOMIC_ACQUIRE) == 0) {
        si_lock();
        done = comm->last == NULL || si_stop_passed(comm->last);
        si_unlock();
        if (!done)
            (void)nanosleep(&ts, NULL);
    }
    return done;
}

/* commDestroySync in init.cc: "keep polling until all graphs referencing us die", whether it was aborted or not. */
static void comm_await_graphs(struct ncclComm *comm)
{
    uint32_t n;

    while ((n = __atomic_load_n(&comm->captured, __ATOMIC_ACQUIRE)) != 0)
        si_futex_wait(&comm->captured, n, 0, false);
}

/* commDestroySync waits for NCCL's streams before that, in every version, and in the mode of its thread. */
static void synchronise_streams(void)
{
    (void)si_capture_unsafe("cuStreamSynchronize at the end of a communicator");
}

static ncclResult_t comm_finalize(struct ncclComm *comm, void *arg)
{
    bool done;

    (void)arg;
    synchronise_streams();
    comm_await_graphs(comm);
    done = drain(comm);
    if (si_version().stops_in_finalize)
        segment_stop(&comm->seg);
    return done ? ncclSuccess : ncclInternalError;
}

SI_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommFinalize", false);

    if (rc == ncclSuccess && comm == NULL)
        return ncclSuccess;
    if (rc == ncclSuccess)
        rc = si_comm_check(comm, "ncclCommFinalize");
    if (rc == ncclSuccess && comm->finalized)
        rc = si_comm_refuse(comm, ncclInvalidArgument, "ncclCommFinalize: communicator '%s' has been finalized before",
                            comm->name);
    if (rc != ncclSuccess)
        return si_comm_keep(comm, rc);
    comm->finalized = true;
    return si_comm_task(comm, comm_finalize, NULL);
}

SI_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommDestroy", false);

    if (rc == ncclSuccess && comm != NULL)
        rc = si_comm_check(comm, "ncclCommDestroy");
    if (rc != ncclSuccess || comm == NULL)
        return rc;
    if (!comm->finalized) {
        synchronise_streams();
        (void)drain(comm);
        comm_await_graphs(comm);
    }
    segment_stop(&comm->seg);
    segment_await_stops(&comm->seg, -1);
    comm_forget(comm);
    return ncclSuccess;
}

/*
 * Ends waits for peers, waits for what is on NCCL's streams, stops the proxy, and takes the abort flags back; all that
 * before ncclCommAbort frees (init.cc:2398 of v2.28.9, init.cc:2608 of v2.29.7, commRevokeAsync; so in v2.30.7). A wait
 * looks at the flag in each turn of its spin (os/linux.cc:297 of v2.29.7), and the flag stays while the proxy's threads
 * end. A communicator that is being made has no resources yet, which the call uses without a look.
 */
static ncclResult_t comm_revoke(ncclComm_t comm, int flags)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommRevoke", false);
    int left_ms = 2000;

    if (rc != ncclSuccess || comm == NULL)
        return rc;
    if (!si_comm_is_alive(comm) || flags != 0 || comm->finalized || comm->revoked)
        return si_comm_refuse(NULL, ncclInvalidArgument,
                              "ncclCommRevoke: flags, or a communicator that is gone, or was finalized or revoked");
    if (comm->seg.shared == NULL)
        si_fault("ncclCommRevoke: communicator '%s' is being made", comm->name);
    comm->revoked = true;
    (void)__atomic_exchange_n(&comm->abort, 1, __ATOMIC_RELEASE);
    synchronise_streams();
    for (bool waits = true; waits && left_ms > 0; left_ms--) {
        si_lock();
        waits = comm->last != NULL && !si_stop_passed(comm->last);
        si_unlock();
        waits = waits || __atomic_load_n(&comm->inside, __ATOMIC_ACQUIRE) > 0;
        if (waits)
            (void)usleep(1000);
    }
    segment_stop(&comm->seg);
    (void)__atomic_exchange_n(&comm->abort, 0, __ATOMIC_RELEASE);
    return ncclSuccess;
}

SI_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommAbort", false);
    const char *stuck = cdi_env_str("CDDP_STANDIN_STUCK_ABORT");

    if (rc != ncclSuccess || comm == NULL)
        return rc;
    if (!si_comm_is_alive(comm))
        return si_comm_refuse(NULL, ncclInvalidArgument,
                              "ncclCommAbort: %p is not a communicator, or was destroyed or aborted", (void *)comm);
    while (__atomic_load_n(&comm->deaf, __ATOMIC_ACQUIRE) > 0)
        (void)usleep(1000);
    if (comm->revoked && __atomic_load_n(&comm->captured, __ATOMIC_ACQUIRE) > 0) /* no commDestroySync waits for them */
        si_fault("ncclCommAbort after ncclCommRevoke: graphs hold communicator '%s', which is freed", comm->name);
    if (comm->blocking && si_version_code() >= REVOKE && __atomic_load_n(&comm->inside, __ATOMIC_ACQUIRE) > 0)
        si_fault("ncclCommAbort: a call on communicator '%s', which is freed, is under way", comm->name);
    (void)__atomic_exchange_n(&comm->abort, 1, __ATOMIC_RELEASE);
    /* Like a thread that checks no flag: misc/shmutils.cc:186 of v2.28.9, ncclShmemAllgather. */
    while (stuck != NULL && strcmp(stuck, "1") == 0)
        (void)pause();
    (void)si_comm_await(comm);
    synchronise_streams();
    (void)drain(comm);
    comm_await_graphs(comm);
    segment_stop(&comm->seg);
    segment_await_stops(&comm->seg, si_version().abort_waits_ms);
    comm_forget(comm);
    return ncclSuccess;
}

uint64_t standin_asked(void)
{
    return si_thread.asked;
}

SI_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommGetAsyncError", false);

    si_thread.asked++;
    if (rc != ncclSuccess)
        return rc;
    if (!si_comm_is_alive(comm) || asyncError == NULL)
        return si_comm_refuse(NULL, ncclInvalidArgument,
                              "ncclCommGetAsyncError: %p is not a communicator, or was "
                              "destroyed or aborted",
                              (void *)comm);
    *asyncError = si_comm_state(comm);
    if (*asyncError != ncclInProgress)
        si_edge_to(comm);
    return ncclSuccess;
}

/* ------------------------------------------------------------------------------------------------------- questions --
 */

#if NCCL_VERSION_CODE < 22809
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
#endif
SI_NEWER(ncclCommInitRankScalable, 22300, init_scalable)
SI_NEWER(ncclCommRevoke, REVOKE, comm_revoke)

SI_EXPORT ncclResult_t ncclGetVersion(int *out)
{
    if (out == NULL)
        return ncclInvalidArgument;
    *out = si_version_code();
    return ncclSuccess;
}

SI_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommCount", false);

    if (rc == ncclSuccess)
        rc = si_comm_check(comm, "ncclCommCount");
    if (rc == ncclSuccess)
        *count = comm->seg.n_ranks;
    return rc;
}

SI_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    ncclResult_t rc = si_comm_check(comm, "ncclCommUserRank");

    if (rc == ncclSuccess)
        *rank = comm->seg.rank;
    return rc;
}

SI_EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress",
                                       "timeout"};

    return result >= sizeof text / sizeof text[0] || (result == SI_TIMEOUT && !si_version().has_timeout)
               ? "unknown result code"
               : text[result];
}

SI_EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    return si_comm_is_alive(comm) && comm->last_error[0] != '\0' ? comm->last_error : last_error;
}
