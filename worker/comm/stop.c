/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/stop.h"

#include "common/float_state.h"
#include "worker/comm/state.h"
#include "worker/comm/stop_signal.h"

#define KIND_AT 32 /* bits of the rank below the kind in the word */

static struct cddp_comm *whole_of(cddp_comm *comm)
{
    return comm->whole != NULL ? comm->whole : comm;
}

/* The page to write to; NULL: another communicator of this process has it. */
static struct cdi_flight_stop *page_of(cddp_comm *comm)
{
    struct cddp_comm *whole = whole_of(comm);

    return whole->has_page ? cdi_flight_stop(whole->world.flight) : NULL;
}

/* What this rank knows by itself: a kind, and the rank of the job, of which the largest counts. */
static int64_t own_word(cddp_comm *comm)
{
    struct cddp_comm *whole = whole_of(comm);
    enum cdi_stop_kind kind = CDI_STOP_NONE;

    if (atomic_load_explicit(&whole->stop.requested, memory_order_relaxed))
        kind = CDI_STOP_RANK;
    else if (cdi_stop_signal_heard())
        kind = CDI_STOP_SIGNAL;
    else if (cdi_flight_stop_wanted(whole->world.flight))
        kind = CDI_STOP_LAUNCHER;
    return kind == CDI_STOP_NONE ? 0 : (int64_t)kind << KIND_AT | cdi_rank_of_job(&comm->world, comm->world.rank);
}

/* Returns the completed steps of a reducer on comm, or else on the communicator of cddp_init; -1: there is none. */
static int64_t steps_of(cddp_comm *comm)
{
    uint64_t step = cdi_comm_step(comm);

    return (int64_t)(step != 0 ? step : cdi_comm_step(whole_of(comm))) - 1;
}

/* Takes the word of all ranks as the answer. */
static void take_answer(cddp_comm *comm, int64_t word)
{
    struct cdi_flight_stop *page = page_of(comm);

    comm->stop.agreed = (enum cdi_stop_kind)(word >> KIND_AT);
    if (comm->stop.agreed != CDI_STOP_NONE && page != NULL)
        cdi_stop_note_agreed(page, comm->stop.agreed, (int)(word & INT32_MAX), steps_of(comm));
}

/* ---------------------------------------------------------------------------------------- with a reducer's step ----
 */

/*
 * Returns the newest ride that may answer; 0: none. On a device it is the one of the step before the last, except for
 * the first: waiting for the last one would stop the host until the device has done the whole step.
 */
static uint64_t ride_to_take(const cddp_comm *comm)
{
    const struct cdi_stop *s = &comm->stop;

    if (s->n_steps != 1)
        return 0;
    return s->n_rides > 1 && comm->ops->on_device ? s->n_rides - 1 : s->n_rides;
}

cddp_status cdi_stop_ride(cddp_comm *comm, const void *reducer, uint64_t *ticket, struct cdi_error *err)
{
    struct cdi_stop *s = &comm->stop;
    struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                          .count = 1,
                          .dtype = CDDP_INT64,
                          .op = CDDP_MAX,
                          .bucket = -1,
                          .asked = CDI_API_SHOULD_STOP,
                          .lazy = true};
    uint64_t given = 0;
    cddp_status st;
    unsigned at;

    if (!s->watches || s->agreed != CDI_STOP_NONE || atomic_load(&comm->stepper) != reducer)
        return CDDP_OK;
    s->n_steps++;
    if (!s->armed)
        return CDDP_OK;
    s->armed = false;
    at = (unsigned)(s->n_rides % CDI_STOP_RIDES);
    if (s->n_rides >= CDI_STOP_RIDES) { /* its memory is still that of an operation on the way, perhaps */
        st = comm->ops->join(comm->backend, s->ticket[at], err);
        if (st != CDDP_OK)
            return st;
    }
    s->word[at] = own_word(comm);
    op.in = op.out = &s->word[at];
    st = comm->ops->enqueue(comm->backend, &op, &given, err);
    if (st != CDDP_OK)
        return st;
    s->ticket[at] = *ticket = given;
    s->n_rides++;
    return CDDP_OK;
}

static cddp_status take_ride(cddp_comm *comm, uint64_t ride, int64_t *word, struct cdi_error *err)
{
    unsigned at = (unsigned)((ride - 1) % CDI_STOP_RIDES);
    cddp_status st = comm->ops->join(comm->backend, comm->stop.ticket[at], err);

    *word = comm->stop.word[at];
    return st;
}

/* ------------------------------------------------------------------------------------------------------- calls ---- */

/* Ends the rides: none may be on the way when the ranks agree by a separate operation. */
static cddp_status end_rides(cddp_comm *comm, struct cdi_error *err)
{
    struct cdi_stop *s = &comm->stop;
    cddp_status st = CDDP_OK;

    if (s->n_rides > 0)
        st = comm->ops->join(comm->backend, s->ticket[(s->n_rides - 1) % CDI_STOP_RIDES], err);
    s->n_rides = 0;
    return st;
}

static cddp_status agree_now(cddp_comm *comm, int64_t *word, struct cdi_error *err)
{
    cddp_status st = end_rides(comm, err);
    enum cdi_api_call before;

    if (st != CDDP_OK)
        return st;
    *word = own_word(comm);
    before = cdi_api_enter(CDI_API_SHOULD_STOP);
    st = cdi_comm_all_reduce(comm, word, word, 1, CDDP_INT64, CDDP_MAX, err);
    (void)cdi_api_enter(before);
    return st;
}

static cddp_status stop_check(const char *function, const cddp_comm *comm, struct cdi_error *err)
{
    if (comm == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: comm is NULL", function);
    return cdi_comm_own(function, comm, err);
}

static cddp_status begin_to_watch(cddp_comm *comm, struct cdi_error *err)
{
    struct cdi_flight_stop *page = page_of(comm);
    cddp_status st = comm->stop.watches ? CDDP_OK : cdi_stop_signal_watch(whole_of(comm)->world.flight, err);

    if (st != CDDP_OK || comm->stop.watches)
        return st;
    comm->stop.watches = true;
    if (page != NULL)
        cdi_stop_note_asks(page, true); /* from now on the agent sends no signal */
    return CDDP_OK;
}

static cddp_status should_stop(cddp_comm *comm, struct cdi_error *err)
{
    struct cdi_stop *s = &comm->stop;
    cddp_status st = begin_to_watch(comm, err);
    uint64_t ride = ride_to_take(comm);
    int64_t word = 0;

    if (st != CDDP_OK || s->agreed != CDI_STOP_NONE)
        return st;
    st = ride != 0 ? take_ride(comm, ride, &word, err) : agree_now(comm, &word, err);
    if (st != CDDP_OK)
        return st;
    s->armed = true;
    s->n_steps = 0;
    take_answer(comm, word);
    return CDDP_OK;
}

cddp_status cddp_should_stop(cddp_comm *comm, int *stop)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = stop_check("cddp_should_stop", comm, &err);

    if (st == CDDP_OK && stop == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_should_stop: stop is NULL");
    if (st == CDDP_OK)
        st = should_stop(comm, &err);
    if (st == CDDP_OK)
        *stop = comm->stop.agreed != CDI_STOP_NONE;
    return cdi_last_error_return(st, &err);
}

cddp_status cddp_request_stop(cddp_comm *comm)
{
    struct cdi_error err;
    cddp_status st = stop_check("cddp_request_stop", comm, &err);

    if (st == CDDP_OK)
        atomic_store_explicit(&whole_of(comm)->stop.requested, true, memory_order_relaxed);
    return cdi_last_error_return(st, &err);
}

void cdi_stop_leave(cddp_comm *comm)
{
    struct cdi_stop *s = &comm->stop;
    struct cdi_flight_stop *page = page_of(comm);

    if (!s->watches)
        return;
    s->watches = false;
    /* After an order from outside the process has little time left, and a second signal must not end it earlier. */
    cdi_stop_signal_leave(s->agreed == CDI_STOP_LAUNCHER || s->agreed == CDI_STOP_SIGNAL);
    if (page != NULL && s->agreed == CDI_STOP_NONE)
        cdi_stop_note_asks(page, false);
}
