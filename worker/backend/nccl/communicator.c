/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL communicator of all ranks. First the ranks agree through the job's store that each of them can join: a rank
 * that fails alone reports it there, and all get its error message, where NCCL would leave them waiting. Then NCCL
 * connects them, without blocking: this side polls, and stops at the deadline or when the agent reports a death.
 */
#include "worker/backend/nccl/communicator.h"

#include "common/clock.h"
#include "worker/backend/nccl/device/reduction_support.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/who.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS_PER_ROOT 128 /* like PyTorch: one listening root for this many ranks */
#define RANKS_PER_ROOT_ENV "CDDP_NCCL_RANKS_PER_ROOT"
#define LEAVE_MS 2000
#define GIVE_UP_MS 500 /* the same of a join that failed: the program waits for its error meanwhile */
#define MAX_CTAS_ENV "CDDP_NCCL_MAX_CTAS"

/* A root publishes its id, and the version of NCCL, which must be the same on all ranks. */
struct ticket_of_root {
    ncclUniqueId id;
    int32_t nccl_code;
};

static void communicator_key(const struct cdi_backend *b, const char *name, int n, char key[CDI_KEY_BYTES])
{
    if (n < 0)
        (void)snprintf(key, CDI_KEY_BYTES, "%.48s%.127s", b->prefix, name);
    else
        (void)snprintf(key, CDI_KEY_BYTES, "%.48s%.127s/%d", b->prefix, name, n);
}

static int64_t left_ms(int64_t deadline_ms)
{
    int64_t left = deadline_ms - cdi_now_ms();

    return left > 0 ? left : 1;
}

/* ----------------------------------------------------------------------------------------------- roots and ids ---- */

static int count_roots(const struct cdi_backend *b)
{
    const char *value = cdi_host->env(RANKS_PER_ROOT_ENV);
    long per_root = value != NULL ? strtol(value, NULL, 10) : RANKS_PER_ROOT;

    if (per_root < 1 || b->world.size <= per_root || cdi_nccl.comm_init_scalable == NULL)
        return 1;
    return (int)((b->world.size + per_root - 1) / per_root);
}

int cdi_root_of_rank(int rank, int size, int roots)
{
    int per = size / roots, more = size % roots, wide = more * (per + 1);

    if (rank < wide)
        return rank % (per + 1) == 0 ? rank / (per + 1) : -1;
    return (rank - wide) % per == 0 ? more + (rank - wide) / per : -1;
}

/* A root that cannot make an id publishes an empty one: the other ranks get the reason from the agreement. */
static cddp_status publish_id(struct cdi_backend *b, int root, bool able, struct cdi_error *err)
{
    struct ticket_of_root t = {.nccl_code = cdi_nccl.code};
    char key[CDI_KEY_BYTES];
    ncclResult_t r = able ? cdi_nccl.unique_id(&t.id) : ncclSuccess;
    cddp_status st = r == ncclSuccess ? CDDP_OK : cdi_nccl_fail(b, r, "making a unique id", err);

    if (b->world.keys.set == NULL)
        return st;
    communicator_key(b, "id", root, key);
    if (b->world.keys.set(b->world.keys.arg, key, &t, able && st == CDDP_OK ? sizeof t : 0,
                          st == CDDP_OK ? err : NULL) != CDDP_OK &&
        st == CDDP_OK)
        st = err != NULL ? err->status : CDDP_E_IO;
    return st;
}

static cddp_status fetch_ids(struct cdi_backend *b, ncclUniqueId *ids, int roots, int64_t deadline_ms,
                             struct cdi_error *err)
{
    char ours[32], theirs[32], key[CDI_KEY_BYTES];

    for (int k = 0; k < roots; k++) {
        struct ticket_of_root t;
        size_t len = 0;
        cddp_status st;

        communicator_key(b, "id", k, key);
        st = b->world.keys.get(b->world.keys.arg, key, &t, sizeof t, &len, left_ms(deadline_ms), err);
        if (st != CDDP_OK)
            return st;
        if (len == 0)
            return CDDP_OK; /* the agreement will report the reason */
        if (len != sizeof t)
            return cdi_fail(err, CDDP_E_MISMATCH, "ranks run different versions of libcddp");
        if (t.nccl_code != cdi_nccl.code) {
            cdi_nccl_version_text(cdi_nccl.code, ours, sizeof ours);
            cdi_nccl_version_text(t.nccl_code, theirs, sizeof theirs);
            return cdi_fail(err, CDDP_E_VERSION, "%s has NCCL %s, but rank 0 has %s: all ranks need the same library",
                            cdi_who(b->world.ranks, b->world.rank).text, ours, theirs);
        }
        ids[k] = t.id;
    }
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------------------- agreements ---- */

/* Rejects two ranks on one GPU, with a better error message than NCCL's. The first rank keeps it. */
static cddp_status claim_gpu(struct cdi_backend *b, int64_t deadline_ms, struct cdi_error *err)
{
    uint8_t host[CDI_MODULE_HOST_ID];
    char name[CDI_NAME_BYTES], key[CDI_KEY_BYTES], text[16] = "";
    size_t len = 0;
    int64_t n;
    int at = snprintf(name, sizeof name, "gpu/");
    cddp_status st;

    cdi_host->host_id(host);
    for (size_t i = 0; i < sizeof host; i++)
        at += snprintf(name + at, sizeof name - (size_t)at, "%02x", host[i]);
    at += snprintf(name + at, sizeof name - (size_t)at, "/");
    for (size_t i = 0; i < sizeof b->device.uuid.bytes; i++)
        at += snprintf(name + at, sizeof name - (size_t)at, "%02x", (unsigned char)b->device.uuid.bytes[i]);
    communicator_key(b, name, -1, key);
    st = b->world.keys.add(b->world.keys.arg, key, 1, &n, err);
    if (st != CDDP_OK)
        return st;
    (void)snprintf(text, sizeof text, "%d", b->world.rank);
    communicator_key(b, name, (int)n, key);
    st = b->world.keys.set(b->world.keys.arg, key, text, strlen(text), err);
    if (st != CDDP_OK || n == 1)
        return st;
    communicator_key(b, name, 1, key);
    st = b->world.keys.get(b->world.keys.arg, key, text, sizeof text - 1, &len, left_ms(deadline_ms), err);
    if (st != CDDP_OK)
        return st;
    text[len] = '\0';
    return cdi_fail(err, CDDP_E_MISMATCH,
                    "ranks %s and %d share one GPU, %s at %s: start one rank per GPU (LOCAL_RANK chooses among those "
                    "that CUDA_VISIBLE_DEVICES shows), or set CDDP_SHARE_GPU=1 if this is intended",
                    text, b->world.rank, b->device.info.name, b->device.info.pci);
}

/* One counter has three fields: the ranks that have arrived, those that cannot go on, and those with an old GPU. */
#define COUNT_BITS 21
#define FAILED (INT64_C(1) << COUNT_BITS)
#define OLD_GPU (INT64_C(1) << 2 * COUNT_BITS)
#define GO_OLD_GPU "old" /* the verdict "go", and some rank has an old GPU */

static int64_t unpack_count(int64_t n, int64_t unit)
{
    return n / unit & (FAILED - 1);
}

/*
 * Exchanges the results of all ranks: each enters with CDDP_OK or its error, and all return the same verdict, the first
 * failure. It also reports whether some GPU is old.
 */
static cddp_status communicator_agree(struct cdi_backend *b, const struct cdi_error *mine, int64_t deadline_ms,
                                      struct cdi_error *err)
{
    const struct cdi_oob *k = &b->world.keys;
    char broken[CDI_KEY_BYTES], go[CDI_KEY_BYTES], ready[CDI_KEY_BYTES], text[CDI_ERROR_TEXT + 64] = "";
    int64_t n, mark = 1 + (b->device.capability < CDI_FLOAT8_CAPABILITY ? OLD_GPU : 0);
    size_t len = 0;
    int status, rank = -1, at = 0;
    cddp_status st = CDDP_OK;

    communicator_key(b, "broken", -1, broken);
    communicator_key(b, "go", -1, go);
    communicator_key(b, "ready", -1, ready);
    if (mine->status != CDDP_OK) {
        if (strncmp(mine->msg, "rank", 4) == 0) /* it names this rank */
            (void)snprintf(text, sizeof text, "%d %d %.1000s", (int)mine->status, b->world.rank, mine->msg);
        else
            (void)snprintf(text, sizeof text, "%d %d %.60s: %.980s", (int)mine->status, b->world.rank,
                           cdi_who(b->world.ranks, b->world.rank).text, mine->msg);
        st = k->set(k->arg, broken, text, strlen(text), err);
        if (st == CDDP_OK)
            st = k->add(k->arg, ready, FAILED, NULL, err);
    }
    if (st == CDDP_OK)
        st = k->add(k->arg, ready, mark, &n, err);
    if (st == CDDP_OK && unpack_count(n, 1) == b->world.size) {
        /* The last rank checks whether any rank has failed. */
        if (unpack_count(n, FAILED) > 0)
            st = k->get(k->arg, broken, text, sizeof text - 1, &len, left_ms(deadline_ms), err);
        else if (unpack_count(n, OLD_GPU) > 0)
            len = (size_t)snprintf(text, sizeof text, GO_OLD_GPU);
        if (st == CDDP_OK)
            st = k->set(k->arg, go, text, len, err);
    }
    if (st == CDDP_OK)
        st = k->get(k->arg, go, text, sizeof text - 1, &len, left_ms(deadline_ms), err);
    if (mine->status != CDDP_OK) {
        if (err != NULL)
            *err = *mine;
        return mine->status;
    }
    if (st == CDDP_E_TIMEOUT)
        return cdi_fail(err, st, "not all ranks were ready for NCCL within %.4g s",
                        (double)b->world.init_timeout_ms / 1000);
    text[st == CDDP_OK ? len : 0] = '\0';
    b->old_gpu = strcmp(text, GO_OLD_GPU) == 0;
    if (st != CDDP_OK || len == 0 || b->old_gpu)
        return st;
    if (sscanf(text, "%d %d %n", &status, &rank, &at) != 2 || status >= 0)
        status = CDDP_E_SYSTEM;
    return cdi_fail_by(err, cdi_rank_of_job(&b->world, rank), (cddp_status)status, "%.1000s", text + at);
}

/* --------------------------------------------------------------------------------------- connecting, splitting ---- */

/*
 * Configures few channels, to leave multiprocessors to the computation. A library reads only the members that it knows
 * (init.cc, parseCommConfig): before 2.27 neither the name nor the policy.
 */
static ncclConfig_t configure(struct cdi_backend *b, bool blocking)
{
    ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
    const char *ctas = cdi_host->env(MAX_CTAS_ENV);
    char *name = b->teardown->name;

    c.blocking = blocking;
    if (ctas != NULL && strtol(ctas, NULL, 10) > 0)
        c.maxCTAs = (int)strtol(ctas, NULL, 10);
    (void)snprintf(name, sizeof b->teardown->name, "%s", *b->world.name != '\0' ? b->world.name : b->prefix);
    if (*name != '\0' && *b->world.name == '\0')
        name[strlen(name) - 1] = '\0'; /* without the slash */
    c.commName = name;
    c.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
    return c;
}

static ncclResult_t connect_call(void *arg)
{
    struct cdi_backend *b = arg;
    struct cdi_call *c = &b->call;

    if (c->roots > 1)
        return cdi_nccl.comm_init_scalable(&c->comm, b->world.size, b->world.rank, c->roots, c->ids, &c->config);
    return cdi_nccl.comm_init(&c->comm, b->world.size, c->ids[0], b->world.rank, &c->config);
}

/*
 * Connects all ranks. A blocking communicator that is still joining at the deadline cannot be aborted: it is abandoned.
 */
static cddp_status communicator_connect(struct cdi_backend *b, int roots, int64_t deadline_ms, struct cdi_error *err)
{
    cddp_status st;
    ncclResult_t r;

    b->call.roots = roots;
    b->call.config = configure(b, b->call_thread != NULL);
    r = cdi_nccl_call(b, connect_call);
    if (b->call_thread == NULL)
        b->comm = b->call.comm;
    st = cdi_nccl_wait_ready(b, b->comm, r, "connecting the ranks", deadline_ms, err);
    if (st == CDDP_OK)
        b->comm = b->call.comm;
    return st;
}

/* Does everything that this rank can do before it needs the others. */
static cddp_status communicator_prepare(struct cdi_backend *b, ncclUniqueId *ids, int roots, bool able, bool share,
                                        int64_t deadline_ms, struct cdi_error *err)
{
    int root = cdi_root_of_rank(b->world.rank, b->world.size, roots);
    cddp_status st = CDDP_OK;

    if (root >= 0)
        st = publish_id(b, root, able, err);
    if (!able)
        return CDDP_OK;
    if (st == CDDP_OK)
        st = fetch_ids(b, ids, roots, deadline_ms, err);
    return st == CDDP_OK && !share ? claim_gpu(b, deadline_ms, err) : st;
}

cddp_status cdi_communicator_join(struct cdi_backend *b, const struct cdi_error *local, bool share,
                                  struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), b->world.init_timeout_ms);
    struct cdi_error mine = *local, why = {.status = CDDP_OK};
    int roots = count_roots(b);
    ncclUniqueId *ids = b->call.ids = cdi_host->alloc((size_t)roots, sizeof *ids);
    ncclResult_t rc;
    cddp_status st;

    if (ids == NULL && mine.status == CDDP_OK)
        (void)cdi_fail(&mine, CDDP_E_NOMEM, "out of memory");
    if (b->world.size > 1) {
        st = communicator_prepare(b, ids, roots, mine.status == CDDP_OK, share, deadline_ms, &why);
        if (mine.status == CDDP_OK && st != CDDP_OK)
            mine = why;
        st = communicator_agree(b, &mine, deadline_ms, err);
    } else {
        st = mine.status;
        b->old_gpu = b->device.capability < CDI_FLOAT8_CAPABILITY;
        if (st == CDDP_OK && (rc = cdi_nccl.unique_id(ids)) != ncclSuccess)
            st = cdi_nccl_fail(b, rc, "making a unique id", &mine);
        if (st != CDDP_OK && err != NULL)
            *err = mine;
    }
    if (st == CDDP_OK && ids != NULL)
        st = communicator_connect(b, roots, deadline_ms, err);
    return st;
}

static ncclResult_t split_call(void *arg)
{
    struct cdi_backend *b = arg;
    struct cdi_call *c = &b->call;

    return cdi_nccl.comm_split(c->comm, c->color, c->key, &b->child, &c->config);
}

cddp_status cdi_communicator_split(struct cdi_backend *b, int color, int key, struct cdi_backend *part,
                                   struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), b->world.init_timeout_ms);
    ncclComm_t comm = NULL;
    struct cdi_error why;
    ncclResult_t r;
    cddp_status st;

    /* A thread of NCCL writes the new communicator as its last act, long after the call. So it writes into b, which
     * still exists if the split fails, and the state is that of b's comm: the new one is unknown until then. */
    (void)pthread_mutex_lock(&b->lock);
    st = cdi_issue_flush(b, &why);
    if (st == CDDP_OK) {
        cdi_gpu_set_busy(b);
        b->call.comm = b->comm;
        b->call.color = color < 0 ? NCCL_SPLIT_NOCOLOR : color;
        b->call.key = key;
        b->call.config = configure(part != NULL ? part : b, b->call_thread != NULL);
        r = cdi_nccl_call(b, split_call);
        st = cdi_nccl_wait_ready(b, b->comm, r, "splitting the communicator", deadline_ms, &why);
    }
    if (st == CDDP_OK) {
        comm = __atomic_load_n(&b->child, __ATOMIC_ACQUIRE);
        b->child = NULL;
    }
    (void)pthread_mutex_unlock(&b->lock);
    if (st != CDDP_OK) { /* the other ranks may be waiting in it */
        (void)cdi_gpu_fail(b, &why);
        st = cdi_gpu_health(b, err);
    }
    if (part == NULL)
        return st;
    if (st == CDDP_OK && comm == NULL)
        st = cdi_fail(err, CDDP_E_SYSTEM, "ncclCommSplit has not returned a communicator");
    part->comm = comm;
    if (st == CDDP_OK)
        st = cdi_nccl_wait_ready(part, comm, ncclSuccess, "connecting the new communicator", deadline_ms, err);
    if (st == CDDP_OK && (cdi_nccl.comm_rank(comm, &part->world.rank) != ncclSuccess ||
                          cdi_nccl.comm_count(comm, &part->world.size) != ncclSuccess))
        st = cdi_fail(err, CDDP_E_SYSTEM, "NCCL does not report the size of the new communicator");
    return st;
}

static ncclResult_t finalize_call(void *arg)
{
    struct cdi_backend *b = arg;

    return cdi_nccl.comm_finalize(b->call.comm);
}

static struct cdi_teardown *take_teardown(struct cdi_backend *b)
{
    struct cdi_teardown *l = b->teardown;

    b->teardown = NULL;
    return l;
}

/* Aborts the communicator of a failed split. Returns false if that has not returned within LEAVE_MS. */
static bool abort_child(struct cdi_backend *b)
{
    struct cdi_teardown *l = b->child != NULL ? cdi_teardown_create() : NULL;
    bool idle = b->child == NULL || (l != NULL && cdi_teardown_abort_comm(l, &b->device, b->child, LEAVE_MS));

    b->child = NULL;
    return idle;
}

/* Finalizes comm, which waits for work of this rank on its streams, and for graphs that use comm. */
static ncclResult_t communicator_finalize(struct cdi_backend *b, int64_t deadline_ms)
{
    const struct timespec nap = {.tv_nsec = 200000};
    ncclResult_t r;

    b->call.comm = b->comm;
    r = cdi_nccl_state(b, b->comm, cdi_nccl_call(b, finalize_call));
    while (r == ncclInProgress && cdi_now_ms() < deadline_ms) {
        (void)nanosleep(&nap, NULL);
        r = cdi_nccl_state(b, b->comm, r);
    }
    return r;
}

bool cdi_communicator_release(struct cdi_backend *b)
{
    int64_t deadline_ms = cdi_now_ms() + (b->watches ? LEAVE_MS : GIVE_UP_MS);
    bool idle = abort_child(b); /* of a split that failed; the abort of b's own has joined NCCL's thread */

    if (b->comm != NULL && !b->aborted) {
        ncclResult_t r = atomic_load(&b->failed) ? ncclInternalError : communicator_finalize(b, deadline_ms);

        if (r == ncclInProgress && atomic_load(&b->captured.n_groups) > 0)
            return false; /* a graph of the program uses it: an abort would not return either */
        if (r == ncclSuccess)
            cdi_teardown_destroy_comm(take_teardown(b), &b->device, b->comm);
        else if (b->call_thread == NULL || r != ncclInProgress) /* not during a call in the call thread */
            idle = cdi_teardown_abort_comm(take_teardown(b), &b->device, b->comm, LEAVE_MS) && idle;
        b->comm = NULL;
    }
    if (!cdi_call_thread_destroy(b->call_thread, left_ms(deadline_ms)))
        return false;
    b->call_thread = NULL;
    return idle;
}
