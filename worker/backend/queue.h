/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of operations and who runs them: strictly in ticket order, one at a time, either the communication thread
 * or a thread that waits for them. A caller whose queue is not being worked on runs the work itself, so a blocking
 * collective costs no wake-up. A lazy operation is left to the thread that joins it. The communication thread takes one
 * with grace after 50 us if nobody has joined it, or at once if the one before was joined that late. While such
 * operations keep coming, the thread looks for them once a millisecond, so that nobody has to wake it; a joiner that is
 * late for the first time may hold up its peers for that long.
 *
 * The thread is started when the first operation comes that it may have to run; where it cannot be started, joining
 * threads do all the work.
 */
#ifndef CDI_BACKEND_QUEUE_H
#define CDI_BACKEND_QUEUE_H

#include "worker/backend/backend.h"

#include <pthread.h>

#define CDI_QUEUE_LIMIT 65536 /* operations enqueued and not yet run */

struct cdi_work {
    struct cdi_coll op;
    bool is_region; /* make a region of `region_bytes` bytes instead of op */
    size_t region_bytes;
    struct cdi_region **region_out; /* written where all ranks have theirs */
    struct cdi_error *region_err;   /* else why not: that is agreed, and so does not break the communicator */
    struct cdi_coll *group;         /* several operations as one (group.h), of which op is the first: the queue's */
    size_t n_group;                 /* also where op is one of a group, and group is NULL */
    uint64_t flight_seq;
    uint64_t ticket;
    struct cdi_work *next;
};

/* Run one operation, or a group, to its end. */
typedef cddp_status (*cdi_run_fn)(void *arg, const struct cdi_work *work, bool on_thread, struct cdi_error *err);

struct cdi_queue;

/*
 * A thread of the backend's own, with a small stack. Signals are the program's: none is delivered to a thread that it
 * does not know. false: there is none to be had.
 */
bool cdi_thread_start(pthread_t *thread, void *(*main)(void *arg), void *arg);

/* spins: pauses before a joiner yields and then sleeps. CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_queue_create(struct cdi_queue **out, cdi_run_fn run, void *arg, struct cdi_flight *flight, int spins,
                             struct cdi_error *err);
/* Of the communicator, for error messages; before the first operation. It must outlive the queue. */
void cdi_queue_set_name(struct cdi_queue *q, const char *name);
/* Was everything that was enqueued also run? */
bool cdi_queue_idle(struct cdi_queue *q);
/* Drop what has not started, wait for what has (the caller has aborted it), end the thread, free. NULL-safe. */
void cdi_queue_destroy(struct cdi_queue *q);

/*
 * Copy *work, note it in the flight page, give its ticket. On success its group is the queue's to free. The sticky
 * error; CDDP_E_LIMIT, CDDP_E_NOMEM. Any thread.
 */
cddp_status cdi_queue_enqueue(struct cdi_queue *q, const struct cdi_work *work, uint64_t *ticket,
                              struct cdi_error *err);
/* The ticket given last; 0: none yet. Any thread. */
uint64_t cdi_queue_last(struct cdi_queue *q);
/*
 * Until the operation of `ticket`, and all before it, are done; helps. After an error: once nothing runs any more. Any
 * thread. CDDP_OK, the sticky error, CDDP_E_INVALID (no such ticket).
 */
cddp_status cdi_queue_join(struct cdi_queue *q, uint64_t ticket, struct cdi_error *err);
/*
 * Both at once, for one operation that is lazy, no group and no region: where nothing is queued or runs, it is not
 * copied. *work gets its numbers.
 */
cddp_status cdi_queue_run(struct cdi_queue *q, struct cdi_work *work, struct cdi_error *err);
/*
 * cdi_queue_join without a wait: CDDP_IN_PROGRESS where they are not done. Helps, and so waits, where it is refused a
 * thread.
 */
cddp_status cdi_queue_test(struct cdi_queue *q, uint64_t ticket, struct cdi_error *err);
/* The sticky error; the first one stays. What is running must be ended by other means. */
void cdi_queue_fail(struct cdi_queue *q, const struct cdi_error *err);
cddp_status cdi_queue_health(struct cdi_queue *q, struct cdi_error *err);

#endif
