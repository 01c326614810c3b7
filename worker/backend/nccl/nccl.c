/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the NCCL backend, its creation and end, and the one symbol of the module. */
#include "common/clock.h"
#include "common/thread.h"
#include "worker/backend/nccl/communicator.h"
#include "worker/backend/nccl/device/copy.h"
#include "worker/backend/nccl/element_ops.h"
#include "worker/backend/nccl/graph_capture.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/operation.h"
#include "worker/backend/nccl/region.h"
#include "worker/backend/nccl/stage.h"
#include "worker/backend/nccl/state/completion.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/gpu_timestamps.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/nccl_call.h"
#include "worker/backend/nccl/state/ring.h"
#include "worker/backend/nccl/wait.h"
#include "worker/backend/nccl/watch.h"
#include "worker/backend/who.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SHARE_ENV "CDDP_SHARE_GPU"
#define BLOCKING_ENV "CDDP_NCCL_BLOCKING"
#define WINDOWS_ENV "CDDP_NCCL_WINDOWS"
#define REGISTER_ENV "CDDP_NCCL_REGISTER"
#define SPARE_MS 1000 /* for optional operations to end */

/* -------------------------------------------------------------------------------------------- coming and going ---- */

static void init_locks(struct cdi_backend *b)
{

    (void)pthread_mutex_init(&b->lock, NULL); /* on Linux these cannot fail without attributes */
    (void)pthread_mutex_init(&b->ring_lock, NULL);
    (void)pthread_mutex_init(&b->error_lock, NULL);
    (void)pthread_mutex_init(&b->copy_lock, NULL);
    cdi_cond_init_monotonic(&b->changed);
}

static struct cdi_backend *gpu_new_backend(const struct cdi_world *world)
{
    struct cdi_backend *b = cdi_host->alloc(1, sizeof *b);

    if (b == NULL)
        return NULL;
    b->teardown = cdi_teardown_create();
    if (b->teardown == NULL) {
        cdi_host->release(b);
        return NULL;
    }
    b->world = *world;
    b->record = cdi_world_record(world);
    init_locks(b);
    return b;
}

static cddp_status get_event(CUevent *e, struct cdi_error *err)
{
    return cdi_cuda_check(cdi_cuda.event_create(e, CU_EVENT_DISABLE_TIMING), "creating an event", err);
}

/* Creates events and the small memory of every communicator. The context is current. */
static cddp_status backend_create_resources(struct cdi_backend *b, struct cdi_error *err)
{
    CUdeviceptr token = 0;
    cddp_status st = get_event(&b->mark, err);

    if (st == CDDP_OK)
        st = get_event(&b->tail, err);
    if (st == CDDP_OK)
        st = get_event(&b->copy_event, err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.memory_alloc(&token, CDI_TOKEN_BYTES), "allocating GPU memory", err);
    b->token = (void *)(uintptr_t)token;
    if (st == CDDP_OK)
        st = cdi_completion_create(b, err);
    if (st == CDDP_OK)
        st = cdi_capture_open(b, err);
    if (st == CDDP_OK)
        st = cdi_gpu_timestamps_open(b, err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.set_bytes(token, 0, CDI_TOKEN_BYTES, b->device.stream), "clearing memory", err);
    return st == CDDP_OK ? cdi_stage_open(b, err) : st;
}

/* Frees everything that backend_create_resources has made. */
static void backend_free_resources(struct cdi_backend *b)
{
    CUevent events[] = {b->mark, b->tail, b->copy_event};

    cdi_completion_destroy(b);
    cdi_capture_close(b);
    cdi_gpu_timestamps_close(b);
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i] != NULL)
            (void)cdi_cuda.event_destroy(events[i]);
    if (b->token != NULL)
        (void)cdi_cuda.memory_free(cdi_device_ptr(b->token));
    cdi_stage_free(b->results);
    cdi_stage_free(b->free_staging);
    cdi_ring_free(b);
}

/* Returns whether a rank that leaves needs none of the operations under way. With `lock`. */
static bool gpu_only_optional(struct cdi_backend *b)
{
    bool spare = true;

    (void)pthread_mutex_lock(&b->ring_lock);
    for (uint64_t t = b->done + 1; t <= b->enqueued; t++)
        spare = spare && cdi_slot_of(b, t)->one.op.spare;
    (void)pthread_mutex_unlock(&b->ring_lock);
    return spare;
}

/*
 * Ends collectives that were not joined, and notifies peers that wait in them. All ranks have also begun the optional
 * ones, in the last step: these are done in a moment, and NCCL is left without an abort.
 */
static void gpu_abandon(struct cdi_backend *b)
{
    int64_t until_ms = cdi_now_ms() + SPARE_MS;
    struct cdi_error err;
    bool idle = !b->watch_runs, wait = false;

    do {
        const struct timespec nap = {.tv_nsec = wait ? 200000 : 0};

        (void)nanosleep(&nap, NULL);
        (void)pthread_mutex_lock(&b->lock);
        idle = idle || (cdi_ring_poll(b) && cdi_capture_poll(b));
        wait = !idle && gpu_only_optional(b);
        (void)pthread_mutex_unlock(&b->lock);
    } while (wait && cdi_gpu_health_now(b, NULL) == CDDP_OK && cdi_now_ms() < until_ms);
    if (idle)
        return;
    (void)cdi_fail_by(&err, cdi_rank_of_job(&b->world, b->world.rank), CDDP_E_ABORTED,
                      "%s left the job while collectives were in flight", cdi_who(b->world.ranks, b->world.rank).text);
    (void)cdi_gpu_fail(b, &err);
}

static void gpu_leave(struct cdi_backend *b)
{
    b->has_left = true;
    if (b->device.context == NULL)
        return;
    (void)cdi_device_enter(&b->device, NULL);
    gpu_abandon(b);
    b->is_idle = cdi_watch_stop(b);
    if (b->is_idle)
        cdi_gpu_regions_detach(b);
    b->is_idle = b->is_idle && cdi_communicator_release(b);
    cdi_issue_give_turn(b); /* it has failed with a launch under way */
    cdi_device_leave(&b->device);
}

static void gpu_destroy(struct cdi_backend *b)
{
    if (b == NULL)
        return;
    if (!b->has_left)
        gpu_leave(b);
    if (b->device.context != NULL) {
        if (!b->is_idle) /* NCCL has not returned, and may still use all this */
            return;
        (void)cdi_device_enter(&b->device, NULL);
        backend_free_resources(b);
        cdi_device_leave(&b->device);
    }
    cdi_device_close(&b->device);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->copy_lock);
    (void)pthread_mutex_destroy(&b->error_lock);
    (void)pthread_mutex_destroy(&b->ring_lock);
    (void)pthread_mutex_destroy(&b->lock);
    cdi_host->release(b->teardown);
    cdi_host->release(b->call.ids);
    cdi_host->release(b->ranks);
    cdi_host->release(b);
}

/* Returns the value of a variable that is 0, 1 or not set. */
static bool flag_variable(const char *name, bool unset, struct cdi_error *err)
{
    const char *value = cdi_host->env(name);

    if (value != NULL && (value[1] != '\0' || (value[0] != '0' && value[0] != '1')))
        (void)cdi_fail(err, CDDP_E_INVALID, "%s='%.64s' is neither 0 nor 1", name, value);
    return value != NULL ? value[0] == '1' : unset;
}

/*
 * Returns whether the communicator blocks. NCCL's variable overrides its caller's request (init.cc, envConfigOverride).
 */
static bool wants_blocking(struct cdi_error *err)
{
    const char *value = cdi_host->env("NCCL_COMM_BLOCKING");
    bool ours = flag_variable(BLOCKING_ENV, cdi_nccl.code >= CDI_NCCL_THREAD_PER_LAUNCH, err);

    return value != NULL && (value[0] == '0' || value[0] == '1') && value[1] == '\0' ? value[0] == '1' : ours;
}

/* Makes several ranks on one GPU look like separate hosts to NCCL, which connects them over sockets. */
static void set_host_ids(const struct cdi_backend *b)
{
    uint8_t id[CDI_MODULE_HOST_ID];
    char text[2 * sizeof id + 16];
    int at = 0;

    cdi_host->host_id(id);
    for (size_t i = 0; i < sizeof id; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%02x", id[i]);
    (void)snprintf(text + at, sizeof text - (size_t)at, "-%d", b->world.rank);
    (void)setenv("NCCL_HOSTID", text, 0);
    (void)setenv("NCCL_NET", "Socket", 0);
    (void)setenv("NCCL_MNNVL_ENABLE", "0", 0); /* a fabric would join these hosts again (mnnvl.cc) */
    if (b->world.n_nodes > 1)
        return;
    /* NCCL's first choice is another interface, which may lead nowhere or have only a link-local address. */
    (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    (void)setenv("NCCL_SOCKET_FAMILY", "AF_INET", 0);
}

/* Switches off features that conflict with windows: see region.c. NCCL reads each variable once, at first use. */
static void prepare_windows(const struct cdi_backend *b)
{
    if (!b->use.windows || b->use.registration || cdi_nccl.code < 22800)
        return;
    (void)setenv("NCCL_LOCAL_REGISTER", "0", 0);
    /* The largest all-gathers use copy engines, whose waits for peers no abort ends (ce_coll.cc). */
    (void)setenv("NCCL_SYM_CE_THRESHOLD", "9223372036854775807", 0);
}

static cddp_status gpu_create(struct cdi_backend **out, const struct cdi_world *world, struct cdi_error *err)
{
    struct cdi_error mine = {.status = CDDP_OK};
    bool share = flag_variable(SHARE_ENV, false, &mine), blocking = wants_blocking(&mine);
    struct cdi_backend *b = gpu_new_backend(world);
    CUcontext was = NULL; /* of the program */
    cddp_status st;

    if (b == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    (void)cdi_cuda.context_current(&was);
    (void)snprintf(b->prefix, sizeof b->prefix, "nccl/");
    b->use.windows = flag_variable(WINDOWS_ENV, world->n_nodes == 1 && cdi_nccl.code >= CDI_NCCL_WINDOW_ABORTS, &mine);
    b->use.registration = flag_variable(REGISTER_ENV, false, &mine);
    prepare_windows(b);
    if (share)
        set_host_ids(b);
    if (mine.status == CDDP_OK)
        (void)cdi_device_open(&b->device, world, share, &mine);
    if (mine.status == CDDP_OK)
        (void)backend_create_resources(b, &mine);
    if (mine.status == CDDP_OK && world->size > 1 && blocking)
        (void)cdi_call_thread_create(&b->call_thread, b->device.context, &mine);
    st = cdi_communicator_join(b, &mine, share, err);
    if (st == CDDP_OK)
        st = cdi_watch_start(b, err);
    if (st == CDDP_OK)
        *out = b;
    else
        gpu_destroy(b);
    if (was != NULL || st != CDDP_OK)
        (void)cdi_cuda.context_set(was);
    return st;
}

/* Creates a subcommunicator's device handles and events. NCCL's split follows, which all ranks call. */
static cddp_status prepare_part(struct cdi_backend *b, const struct cdi_split *how, struct cdi_backend **out,
                                struct cdi_error *err)
{
    const int *ranks = how->ranks;
    struct cdi_backend *part = gpu_new_backend(&b->world);
    cddp_status st;

    if (part == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    *out = part;
    part->record = how->record;
    part->world.ranks = part->ranks = ranks != NULL ? cdi_host->alloc((size_t)how->n, sizeof *ranks) : NULL;
    if (ranks != NULL && part->ranks == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    for (int r = 0; r < how->n && ranks != NULL; r++)
        part->ranks[r] = ranks[r];
    cdi_split_adopt(&part->world, how);
    part->use = b->use;
    part->old_gpu = b->old_gpu;
    if (snprintf(part->prefix, sizeof part->prefix, "%s%" PRIu32 ".%d/", b->prefix, b->n_splits, how->color) >=
        (int)sizeof part->prefix)
        return cdi_fail(err, CDDP_E_LIMIT, "communicators are split too deeply, one from another");
    st = cdi_device_open_same(&part->device, &b->device, err);
    if (st == CDDP_OK)
        st = backend_create_resources(part, err);
    return st == CDDP_OK && b->call_thread != NULL
               ? cdi_call_thread_create(&part->call_thread, part->device.context, err)
               : st;
}

/* Gives all ranks the same result. own, why: this rank's. */
static cddp_status agree_on_part(struct cdi_backend *b, cddp_status own, const struct cdi_error *why,
                                 struct cdi_error *err)
{
    int32_t able = own == CDDP_OK;
    cddp_status st = cdi_gpu_agree(b, &able, CDDP_MIN, err);

    if (st != CDDP_OK || able)
        return st;
    return own != CDDP_OK ? cdi_fail_since(err, why, "%s", why->msg)
                          : cdi_fail(err, CDDP_E_SYSTEM, "another rank cannot create the new communicator");
}

static cddp_status gpu_split(struct cdi_backend *b, const struct cdi_split *how, struct cdi_backend **out,
                             struct cdi_error *err)
{
    struct cdi_backend *part = NULL;
    struct cdi_error why;
    cddp_status st = cdi_gpu_health(b, err), own = CDDP_OK;

    if (st != CDDP_OK)
        return st;
    own = cdi_device_enter(&b->device, &why);
    if (own == CDDP_OK && how->color >= 0)
        own = prepare_part(b, how, &part, &why);
    b->n_splits++;
    st = agree_on_part(b, own, &why, err);
    if (st == CDDP_OK) {
        own = cdi_communicator_split(b, how->color, how->key, part, &why);
        if (own == CDDP_OK && part != NULL)
            own = cdi_watch_start(part, &why);
        st = agree_on_part(b, own, &why, err); /* others would wait in it for a rank that fails alone */
    }
    cdi_device_leave(&b->device);
    if (st != CDDP_OK) {
        if (cdi_gpu_is_idle(b)) /* otherwise NCCL may still read its name */
            gpu_destroy(part);
        return st;
    }
    *out = part;
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- the table ---- */

static void gpu_abort(struct cdi_backend *b, const struct cdi_error *why)
{
    const struct cdi_error err = cdi_abort_of(&b->world, why);

    (void)cdi_gpu_fail(b, &err);
}

static cddp_status gpu_alloc(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err)
{
    CUdeviceptr p = 0;
    cddp_status st = cdi_device_enter(&b->device, err);

    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.memory_alloc(&p, bytes > 0 ? bytes : 1), "allocating GPU memory", err);
    cdi_device_leave(&b->device);
    if (st == CDDP_OK)
        *out = (void *)(uintptr_t)p;
    return st;
}

static void gpu_release(struct cdi_backend *b, void *p)
{
    if (p == NULL || !cdi_gpu_is_idle(b)) /* a kernel that cannot be ended would block the driver for ever */
        return;
    (void)cdi_device_enter(&b->device, NULL); /* the driver knows its context */
    (void)cdi_cuda.memory_free(cdi_device_ptr(p));
    cdi_device_leave(&b->device);
}

static cddp_status gpu_alloc_host(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err)
{
    void *p = NULL;
    cddp_status st = cdi_device_enter(&b->device, err);

    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.pinned_alloc(&p, bytes > 0 ? bytes : 1, 0), "allocating pinned memory", err);
    cdi_device_leave(&b->device);
    if (st == CDDP_OK)
        *out = p;
    return st;
}

static void gpu_release_host(struct cdi_backend *b, void *p)
{
    if (p == NULL || !cdi_gpu_is_idle(b))
        return;
    (void)cdi_device_enter(&b->device, NULL);
    (void)cdi_cuda.pinned_free(p);
    cdi_device_leave(&b->device);
}

static bool gpu_is_device(struct cdi_backend *b, const void *p)
{
    bool on_device;

    (void)cdi_device_enter(&b->device, NULL);
    (void)cdi_device_owns(&b->device, p, &on_device, NULL);
    cdi_device_leave(&b->device);
    return on_device;
}

static cddp_status gpu_check_memory(struct cdi_backend *b, const void *p, struct cdi_error *err)
{
    bool on_device;
    cddp_status st = cdi_device_enter(&b->device, err);

    if (st == CDDP_OK)
        st = cdi_device_owns(&b->device, p, &on_device, err);
    cdi_device_leave(&b->device);
    return st;
}

/*
 * Waits for all enqueued work, element functions included. The following copy then waits for no peer while it has the
 * blocks.
 */
static cddp_status gpu_await_enqueued(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health(b, err);

    if (st != CDDP_OK)
        return st;
    (void)pthread_mutex_lock(&b->copy_lock);
    (void)pthread_mutex_lock(&b->lock);
    st = cdi_issue_flush(b, err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.event_record(b->copy_event, b->device.stream), "recording an event", err);
    (void)pthread_mutex_unlock(&b->lock);
    if (st == CDDP_OK)
        st = cdi_gpu_await_event(b, b->copy_event, err);
    (void)pthread_mutex_unlock(&b->copy_lock);
    return st;
}

static cddp_status gpu_copy(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err)
{
    cddp_status st = cdi_device_enter(&b->device, err);

    if (st == CDDP_OK)
        st = gpu_await_enqueued(b, err);
    if (st == CDDP_OK)
        st = cdi_device_copy(&b->device, to, from, bytes, err);
    cdi_device_leave(&b->device);
    return cdi_gpu_call_status(b, st, NULL, err);
}

static cddp_status gpu_move(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err)
{
    cddp_status st = cdi_device_enter(&b->device, err);

    if (st == CDDP_OK)
        st = cdi_device_copy(&b->device, to, from, bytes, err);
    cdi_device_leave(&b->device);
    return st;
}

static void *gpu_borrow(struct cdi_backend *b, size_t bytes)
{
    void *p = NULL;

    if (cdi_device_enter(&b->device, NULL) == CDDP_OK)
        p = cdi_device_borrow(&b->device, bytes);
    cdi_device_leave(&b->device);
    return p;
}

static void gpu_give_back(struct cdi_backend *b, void *p)
{
    if (p == NULL)
        return;
    (void)cdi_device_enter(&b->device, NULL);
    cdi_device_give_back(&b->device, p);
    cdi_device_leave(&b->device);
}

static cddp_status gpu_stream_acquire(struct cdi_backend *b, void **stream, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_health(b, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter_briefly(&b->device, err);
    (void)pthread_mutex_lock(&b->lock);
    if (st == CDDP_OK)
        st = cdi_issue_flush(b, err);
    b->n_acquired += st == CDDP_OK;
    (void)pthread_mutex_unlock(&b->lock);
    if (st == CDDP_OK)
        *stream = b->device.stream;
    else
        cdi_device_leave_briefly(&b->device);
    return cdi_gpu_call_status(b, st, NULL, err);
}

static void gpu_stream_release(struct cdi_backend *b)
{
    (void)pthread_mutex_lock(&b->lock);
    b->n_acquired--;
    (void)pthread_mutex_unlock(&b->lock);
    cdi_device_leave_briefly(&b->device);
}

static cddp_status gpu_hold(struct cdi_backend *b, struct cdi_error *err)
{
    return cdi_device_hold(&b->device, err);
}

static void gpu_let_go(struct cdi_backend *b)
{
    cdi_device_let_go(&b->device);
}

static void gpu_describe(struct cdi_backend *b, cddp_device_info *out)
{
    *out = b->device.info;
}

static const struct cdi_backend_ops gpu_ops = {
    .name = "nccl",
    .on_device = true,
    .keeps_store = true,
    .create = gpu_create,
    .leave = gpu_leave,
    .destroy = gpu_destroy,
    .region_create = cdi_gpu_region_create,
    .region_destroy = cdi_gpu_region_destroy,
    .split = gpu_split,
    .enqueue = cdi_gpu_enqueue,
    .can_enqueue = cdi_gpu_can_enqueue,
    .enqueue_group = cdi_gpu_enqueue_group,
    .check_reduction = cdi_gpu_check_reduction,
    .join = cdi_gpu_join,
    .test = cdi_gpu_test,
    .wait_stream = cdi_gpu_wait_stream,
    .stream_wait = cdi_gpu_stream_wait,
    .stamp = cdi_gpu_stamp,
    .stamp_time = cdi_gpu_stamp_time,
    .coll_times = cdi_gpu_coll_times,
    .capture_of = cdi_gpu_capture_of,
    .capture_lives = cdi_gpu_capture_lives,
    .capture_enter = cdi_gpu_capture_enter,
    .capture_leave = cdi_gpu_capture_leave,
    .stream_acquire = gpu_stream_acquire,
    .stream_release = gpu_stream_release,
    .hold = gpu_hold,
    .let_go = gpu_let_go,
    .alloc = gpu_alloc,
    .release = gpu_release,
    .alloc_host = gpu_alloc_host,
    .release_host = gpu_release_host,
    .is_device = gpu_is_device,
    .check_memory = gpu_check_memory,
    .copy = gpu_copy,
    .move = gpu_move,
    .borrow = gpu_borrow,
    .give_back = gpu_give_back,
    .describe = gpu_describe,
    .health = cdi_gpu_health,
    .peek = cdi_gpu_health_now,
    .abort = gpu_abort,
    .pack = cdi_gpu_pack,
    .unpack = cdi_gpu_unpack,
    .pack_scaled = cdi_gpu_pack_scaled,
    .pack_unless = cdi_gpu_pack_unless,
    .cast = cdi_gpu_cast,
    .scale = cdi_gpu_scale,
    .find_nonfinite = cdi_gpu_find,
    .hash = cdi_gpu_hash,
    .norm = cdi_gpu_tally,
    .norm_round = cdi_gpu_fold,
    .clip = cdi_gpu_clip,
    .store = cdi_gpu_store,
    .report = cdi_gpu_report,
    .clear = cdi_gpu_clear,
    .optim_count = cdi_gpu_optim_count,
    .optim_update = cdi_gpu_optim_update,
    .lowrank = cdi_gpu_lowrank,
};

static cddp_status gpu_open_backend(const struct cdi_host *host, const struct cdi_backend_ops **ops,
                                    struct cdi_error *err)
{
    cddp_status st = host->size == sizeof *host
                         ? cdi_libraries_open(host, err)
                         : cdi_fail(err, CDDP_E_VERSION, "cddp_nccl.so and libcddp are of different builds");

    if (st == CDDP_OK)
        *ops = &gpu_ops;
    return st;
}

extern const struct cdi_module cddp_module;
__attribute__((visibility("default"))) const struct cdi_module cddp_module = {
    .abi = CDI_MODULE_ABI,
    .version = CDDP_VERSION,
    .open = gpu_open_backend,
};
