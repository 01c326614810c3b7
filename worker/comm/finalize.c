/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/finalize.h"

#include "common/clock.h"
#include "common/float_state.h"
#include "common/time_limits.h"
#include "worker/comm/claim.h"
#include "worker/comm/keys.h"
#include "worker/comm/stop.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* Covers n_children, parts, next, graves, graves_open and finalized of all communicators. */
static pthread_mutex_t family = PTHREAD_MUTEX_INITIALIZER;

/*
 * Waits until no thread is in cddp_abort. An abort first ends the waits of other threads, and one of these may get here
 * while the abort still uses the backend. An abort blocks on locks only, so this takes microseconds.
 */
static void wait_for_aborts(const struct cddp_comm *c)
{
    const struct timespec moment = {.tv_nsec = 100000};

    while (atomic_load(&c->n_aborting) > 0)
        (void)nanosleep(&moment, NULL);
}

/* From here on the backend may be taken apart: later aborts do nothing. */
static void end_aborts(struct cddp_comm *c)
{
    c->over = true;
    wait_for_aborts(c);
}

static void close_store(struct cddp_comm *c)
{
    if (c->whole == NULL)
        cddp_store_close(c->world.store);
    cdi_store_host_stop(c->host);
    c->world.store = NULL;
    c->host = NULL;
    c->world.keys = (struct cdi_oob){.set = NULL};
}

void cdi_comm_destroy(struct cddp_comm *c)
{
    struct cddp_comm *whole = c->whole;

    if (c->backend != NULL)
        cdi_memory_release(&c->memory, c->ops, c->backend);
    c->ops->destroy(c->backend);
    close_store(c);
    cdi_page_release(c);
    if (whole == NULL)
        cdi_flight_release(c->world.flight);
    cdi_flight_release(c->record);
    cdi_group_calls_release(&c->groups);
    free(c->ranks);
    free(c);
    if (whole != NULL)
        cdi_comm_let_go(whole);
}

void cdi_comm_hold(cddp_comm *comm)
{
    (void)pthread_mutex_lock(&family);
    comm->n_children++;
    (void)pthread_mutex_unlock(&family);
}

void cdi_comm_let_go(cddp_comm *comm)
{
    bool last;

    (void)pthread_mutex_lock(&family);
    last = --comm->n_children == 0 && comm->finalized;
    (void)pthread_mutex_unlock(&family);
    if (last)
        cdi_comm_destroy(comm);
}

void cdi_comm_bury(cddp_comm *comm, struct cdi_grave *grave)
{
    bool late;

    (void)pthread_mutex_lock(&family);
    late = comm->graves_open;
    if (!late) {
        grave->next = comm->graves;
        comm->graves = grave;
    }
    (void)pthread_mutex_unlock(&family);
    if (late)
        grave->free_it(grave->it);
}

/* Frees what was deferred: no operation runs any more. */
static void open_graves(struct cddp_comm *c)
{
    struct cdi_grave *grave, *next;

    (void)pthread_mutex_lock(&family);
    grave = c->graves;
    c->graves = NULL;
    c->graves_open = true;
    (void)pthread_mutex_unlock(&family);
    for (; grave != NULL; grave = next) {
        next = grave->next;
        grave->free_it(grave->it);
    }
}

void cdi_comm_add_part(struct cddp_comm *part)
{
    (void)pthread_mutex_lock(&family);
    part->next = part->whole->parts;
    part->whole->parts = part;
    part->whole->n_children++;
    (void)pthread_mutex_unlock(&family);
}

/* Ends the program's use of c, and frees c unless objects made from it hold it. */
static void release_by_program(struct cddp_comm *c)
{
    bool last;

    (void)pthread_mutex_lock(&family);
    if (c->whole != NULL)
        for (struct cddp_comm **at = &c->whole->parts; *at != NULL; at = &(*at)->next)
            if (*at == c) {
                *at = c->next;
                break;
            }
    c->finalized = true;
    last = c->n_children == 0;
    (void)pthread_mutex_unlock(&family);
    if (last)
        cdi_comm_destroy(c);
}

/* Returns whether the job was aborted; false if c has no backend that can know. */
static bool is_aborted(const struct cddp_comm *c)
{
    return c->backend != NULL && !c->ops->keeps_store && c->ops->is_aborted != NULL && c->ops->is_aborted(c->backend);
}

/*
 * Waits until all other ranks have said goodbye or disconnected, since the store ends with its host. After an error or
 * an abort, which may also happen during this wait, some may never say goodbye, and the wait is short.
 */
static void wait_for_peers_to_leave(const struct cddp_comm *c, bool broken)
{
    const struct cdi_world *w = &c->world;
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), broken ? 1000 * CDI_LIMIT_GOODBYE_S : w->timeout_ms);
    char key[CDI_COMM_KEY_BYTES];
    int64_t n_left = 0, pause_us = 200;

    cdi_comm_key(w, "goodbye", -1, key);
    while (cdi_now_ms() < deadline_ms && cdi_store_host_clients(c->host) > 1) {
        struct timespec ts = {.tv_nsec = pause_us * 1000};

        if (!broken && is_aborted(c)) {
            broken = true;
            deadline_ms = cdi_deadline_ms(cdi_now_ms(), 1000 * CDI_LIMIT_GOODBYE_S);
        }
        if (cdi_store_add(w->store, key, 0, &n_left, NULL) != CDDP_OK || n_left >= w->size - 1)
            return;
        (void)nanosleep(&ts, NULL);
        pause_us = pause_us * 2 > 20000 ? 20000 : pause_us * 2;
    }
}

/* A goodbye that cannot be sent is not missed: the end of the connection means the same. */
void cdi_comm_say_goodbye(const struct cddp_comm *c, bool broken)
{
    char key[CDI_COMM_KEY_BYTES];

    if (c->world.store == NULL || c->by == CDI_STORE_BY_OTHERS)
        return;
    cdi_store_set_timeout(c->world.store, 1000 * CDI_LIMIT_GOODBYE_S);
    if (c->host != NULL) {
        wait_for_peers_to_leave(c, broken);
        return;
    }
    cdi_comm_key(&c->world, "goodbye", -1, key);
    (void)cdi_store_add(c->world.store, key, 1, NULL, NULL);
}

/* Leaves c: notifies the peers, and frees all but its memory. */
static void comm_leave(struct cddp_comm *c)
{
    struct cdi_error unsaved;
    cddp_status st, saved = CDDP_OK;

    wait_for_aborts(c);
    cdi_stop_leave(c);
    if (c->on_finalize.fn != NULL)
        saved = c->on_finalize.fn(c->on_finalize.arg, &unsaved);
    c->on_finalize = (struct cdi_on_finalize){.fn = NULL};
    if (c->whole != NULL)
        cdi_flight_hide(c->record);
    st = c->ops->health(c->backend, &c->result);
    if (c->ops->keeps_store) {
        end_aborts(c);
        c->ops->leave(c->backend);
    }
    if (c->host != NULL && c->ops->goodbye != NULL)
        c->ops->goodbye(c->backend); /* the wait for the others to leave the store may be long */
    if (c->whole == NULL)
        cdi_comm_say_goodbye(c, st != CDDP_OK);
    if (c->whole == NULL)
        cdi_claim_release(c);
    end_aborts(c); /* an abort may have ended the wait above */
    c->user.process = UINT64_MAX;
    if (!c->ops->keeps_store)
        c->ops->leave(c->backend);
    open_graves(c);
    close_store(c);
    cdi_page_release(c);
    if (st == CDDP_OK && saved != CDDP_OK)
        c->result = unsaved;
    c->result.status = st != CDDP_OK ? st : saved;
}

cddp_status cddp_finalize(cddp_comm *comm)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    if (comm == NULL)
        return CDDP_OK;
    if (cdi_comm_is_others("cddp_finalize", comm))
        return CDDP_E_STATE;
    if (comm->finalized)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_STATE, "cddp_finalize was called before"), &err);
    for (struct cddp_comm *part = comm->parts; part != NULL; part = part->next)
        if (!part->over)
            comm_leave(part);
    if (!comm->over)
        comm_leave(comm);
    err = comm->result;
    release_by_program(comm);
    return cdi_last_error_return(err.status, &err);
}
