/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/finalize.h"

#include "common/clock.h"
#include "worker/comm/claim.h"
#include "worker/comm/keys.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define BROKEN_GOODBYE_MS 2000 /* for the others to leave a store whose job has failed */

/* Covers n_children, parts, next, graves and finalized of all communicators. */
static pthread_mutex_t family = PTHREAD_MUTEX_INITIALIZER;

/*
 * The first thing that an abort does is to end the waits of other threads, and a thread whose wait has ended comes
 * here: the backend stays until the abort is through with it. It blocks on nothing but locks, so it needs microseconds.
 */
static void let_aborts_end(const struct cddp_comm *c)
{
    const struct timespec moment = {.tv_nsec = 100000};

    while (atomic_load(&c->n_aborting) > 0)
        (void)nanosleep(&moment, NULL);
}

static void close_store(struct cddp_comm *c)
{
    if (c->whole == NULL)
        cddp_store_close(c->world.store);
    cdi_store_host_stop(c->host);
    c->world.store = NULL;
    c->host = NULL;
    c->world.keys = (struct cdi_oob_store){.set = NULL};
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
    if (comm->over) {
        grave->free_it(grave->it);
        return;
    }
    (void)pthread_mutex_lock(&family);
    grave->next = comm->graves;
    comm->graves = grave;
    (void)pthread_mutex_unlock(&family);
}

/* Nothing is under way any more. */
static void open_graves(struct cddp_comm *c)
{
    while (c->graves != NULL) {
        struct cdi_grave *grave = c->graves;

        c->graves = grave->next;
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

/* The program knows c no more. */
static void part_from(struct cddp_comm *c)
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

/* A backend that is gone has no say. */
static bool is_aborted(const struct cddp_comm *c)
{
    return c->backend != NULL && !c->ops->keeps_store && c->ops->is_aborted != NULL && c->ops->is_aborted(c->backend);
}

/*
 * The store goes with rank 0: it waits until the others have said goodbye, or are gone. After an error they may never
 * say it, but then they leave soon; so after an abort, which may come while this rank waits here.
 */
static void see_off(const struct cddp_comm *c, bool broken)
{
    const struct cdi_world *w = &c->world;
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), broken ? BROKEN_GOODBYE_MS : w->timeout_ms);
    char key[CDI_COMM_KEY_BYTES];
    int64_t gone = 0, pause_us = 200;

    cdi_comm_key(w, "goodbye", -1, key);
    while (cdi_now_ms() < deadline_ms && cdi_store_host_clients(c->host) > 1) {
        struct timespec ts = {.tv_nsec = pause_us * 1000};

        if (!broken && is_aborted(c)) {
            broken = true;
            deadline_ms = cdi_deadline_ms(cdi_now_ms(), BROKEN_GOODBYE_MS);
        }
        if (cdi_store_add(w->store, key, 0, &gone, NULL) != CDDP_OK || gone >= w->size - 1)
            return;
        (void)nanosleep(&ts, NULL);
        pause_us = pause_us * 2 > 20000 ? 20000 : pause_us * 2;
    }
}

/* If it cannot be said, the connection's end says it. */
void cdi_comm_say_goodbye(const struct cddp_comm *c, bool broken)
{
    char key[CDI_COMM_KEY_BYTES];

    if (c->world.store == NULL || c->by == CDI_STORE_BY_OTHERS)
        return;
    cdi_store_set_timeout(c->world.store, CDI_GOODBYE_MS);
    if (c->host != NULL) {
        see_off(c, broken);
        return;
    }
    cdi_comm_key(&c->world, "goodbye", -1, key);
    (void)cdi_store_add(c->world.store, key, 1, NULL, NULL);
}

/* This rank leaves c: its peers are told, and nothing but memory remains of it. */
static void leave(struct cddp_comm *c)
{
    struct cdi_error unsaved;
    cddp_status st, saved = CDDP_OK;

    let_aborts_end(c);
    if (c->on_finalize.fn != NULL)
        saved = c->on_finalize.fn(c->on_finalize.arg, &unsaved);
    c->on_finalize = (struct cdi_on_finalize){.fn = NULL};
    st = c->ops->health(c->backend, &c->result);
    if (c->ops->keeps_store)
        c->ops->leave(c->backend);
    if (c->whole == NULL)
        cdi_comm_say_goodbye(c, st != CDDP_OK);
    if (c->whole == NULL)
        cdi_claim_release(c);
    let_aborts_end(c); /* one of this rank's own may be why it waits no longer */
    c->over = true;
    c->user.life = UINT64_MAX;
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
    struct cdi_error err;

    if (comm == NULL)
        return CDDP_OK;
    if (cdi_comm_is_others("cddp_finalize", comm))
        return CDDP_E_STATE;
    if (comm->finalized)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_STATE, "cddp_finalize was called before"), &err);
    for (struct cddp_comm *part = comm->parts; part != NULL; part = part->next)
        if (!part->over)
            leave(part);
    if (!comm->over)
        leave(comm);
    err = comm->result;
    part_from(comm);
    return cdi_last_error_return(err.status, &err);
}
