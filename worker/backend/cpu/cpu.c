/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the CPU backend: it ties the queue (thread.c) to the collectives (collective.c). */
#include "worker/backend/cpu/cpu.h"

#include "common/cpus.h"
#include "worker/backend/cpu/collective.h"
#include "worker/store_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cdi_backend {
    struct cdi_team team;
    struct cdi_queue *queue;
};

static cddp_status run_work(void *arg, const struct cdi_work *work, bool on_thread, struct cdi_error *err)
{
    struct cdi_backend *b = arg;
    struct cdi_error why;
    cddp_status st = cdi_team_run(&b->team, work, on_thread, &why);

    if (st == CDDP_OK)
        return CDDP_OK;
    if (st != CDDP_E_MISMATCH) { /* that all ranks have found by themselves */
        char text[CDI_SHM_TEXT];

        (void)snprintf(text, sizeof text, "rank %d gave up: %.480s", b->team.rank, why.msg);
        cdi_shm_abort(b->team.shm, st, text);
    }
    if (err != NULL)
        *err = why;
    return st;
}

static void cpu_destroy(struct cdi_backend *b)
{
    if (b == NULL)
        return;
    if (b->queue != NULL && b->team.shm != NULL && !cdi_queue_idle(b->queue)) {
        char text[128];

        (void)snprintf(text, sizeof text, "rank %d left the job while collectives were in flight", b->team.rank);
        cdi_shm_abort(b->team.shm, CDDP_E_ABORTED, text);
    }
    cdi_queue_destroy(b->queue);
    cdi_shm_destroy(b->team.shm);
    cdi_team_release(&b->team);
    free(b);
}

cddp_status cdi_cpu_create_at(struct cdi_backend **out, const struct cdi_world *world, const struct cdi_meet *meet,
                              const struct cdi_mapper *mapper, struct cdi_error *err)
{
    struct cdi_backend *b = calloc(1, sizeof *b);
    cddp_status st;

    if (b == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    b->team.rank = world->rank;
    b->team.size = world->size;
    st = cdi_team_init(&b->team, err);
    if (st == CDDP_OK && world->size > 1)
        st = cdi_handover_control(&b->team.shm, world, meet, mapper, err);
    if (st == CDDP_OK && world->size > 1)
        cdi_wait_init(&b->team.wait, b->team.shm, world->flight, world->timeout_ms, cdi_usable_cpus());
    if (st == CDDP_OK)
        st = cdi_queue_create(&b->queue, run_work, b, world->flight, b->team.wait.spins_thread, err);
    if (st != CDDP_OK) {
        cpu_destroy(b);
        return st;
    }
    *out = b;
    return CDDP_OK;
}

/* ------------------------------------------------------------------------- the job's store as the meeting place ----
 */

struct store_meet {
    cddp_store *store;
    int restart_count; /* a store that outlives a restart must not answer with the life before */
};

static void meet_key(const struct store_meet *m, const char *name, char key[96])
{
    (void)snprintf(key, 96, "cddp/%d/%s", m->restart_count, name);
}

static cddp_status meet_set(void *arg, const char *name, const char *text, struct cdi_error *err)
{
    struct store_meet *m = arg;
    char key[96];

    meet_key(m, name, key);
    return cdi_store_set(m->store, key, text, strlen(text), err);
}

static cddp_status meet_get(void *arg, const char *name, char *buf, size_t cap, int64_t timeout_ms,
                            struct cdi_error *err)
{
    struct store_meet *m = arg;
    char key[96];
    size_t len;
    bool there = true;
    cddp_status st = CDDP_OK;

    meet_key(m, name, key);
    if (timeout_ms == 0)
        st = cdi_store_exists(m->store, key, &there, err);
    if (st == CDDP_OK && !there)
        return cdi_fail(err, CDDP_E_TIMEOUT, "'%s' is not there", key);
    if (st == CDDP_OK)
        st = cdi_store_get(m->store, key, buf, cap - 1, &len, timeout_ms > 0 ? timeout_ms : 10000, err);
    if (st == CDDP_OK)
        buf[len] = '\0';
    return st;
}

static cddp_status cpu_create(struct cdi_backend **out, const struct cdi_world *world, struct cdi_error *err)
{
    struct store_meet m = {.store = world->store, .restart_count = world->restart_count};
    const struct cdi_meet meet = {.set = meet_set, .get = meet_get, .arg = &m};

    return cdi_cpu_create_at(out, world, &meet, NULL, err);
}

/* ------------------------------------------------------------------------------------------------ the table --------
 */

static cddp_status cpu_enqueue(struct cdi_backend *b, const struct cdi_op *op, uint64_t *ticket, struct cdi_error *err)
{
    const struct cdi_work work = {.op = *op};

    return cdi_queue_enqueue(b->queue, &work, ticket, err);
}

static cddp_status cpu_join(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    return cdi_queue_join(b->queue, ticket, err);
}

static cddp_status cpu_region_create(struct cdi_backend *b, size_t bytes, struct cdi_region **out,
                                     struct cdi_error *err)
{
    struct cdi_error agreed = {.status = CDDP_OK};
    struct cdi_region *region = NULL;
    struct cdi_work work = {.is_region = true, .region_out = &region, .region_err = &agreed};
    uint64_t ticket;
    cddp_status st;

    if (bytes > SIZE_MAX / 4)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %zu bytes", bytes);
    work.op.lazy = true;
    work.op.bucket = -1;
    work.region_bytes = bytes == 0 ? 4096 : (bytes + 4095) / 4096 * 4096;
    st = cdi_queue_enqueue(b->queue, &work, &ticket, err);
    if (st == CDDP_OK)
        st = cdi_queue_join(b->queue, ticket, err);
    if (st != CDDP_OK)
        return st;
    if (agreed.status != CDDP_OK)
        return cdi_fail(err, agreed.status, "%s", agreed.msg);
    *out = region;
    return CDDP_OK;
}

static void cpu_region_destroy(struct cdi_backend *b, struct cdi_region *r)
{
    cdi_team_region_destroy(&b->team, r);
}

static cddp_status cpu_health(struct cdi_backend *b, struct cdi_error *err)
{
    return cdi_queue_health(b->queue, err);
}

static void cpu_abort(struct cdi_backend *b, cddp_status status, const char *why)
{
    struct cdi_error err;

    (void)cdi_fail(&err, status, "%s", why);
    if (b->team.shm != NULL)
        cdi_shm_abort(b->team.shm, status, why);
    cdi_queue_fail(b->queue, &err);
}

const struct cdi_backend_ops cdi_cpu_backend = {
    .name = "cpu",
    .create = cpu_create,
    .destroy = cpu_destroy,
    .region_create = cpu_region_create,
    .region_destroy = cpu_region_destroy,
    .enqueue = cpu_enqueue,
    .join = cpu_join,
    .health = cpu_health,
    .abort = cpu_abort,
};
