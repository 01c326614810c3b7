/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of operations. They run strictly in ticket order, one at a time, in the communication thread or in a
 * thread that waits for them. A caller that finds the queue idle runs the work itself, so a blocking collective costs
 * no wake-up. A lazy operation is left to the thread that joins it. The communication thread runs one with grace after
 * 50 us without a join, or at once if the previous one was joined that late. While such operations arrive, the thread
 * checks for them once a millisecond, so that no caller has to wake it; a joiner that is late for the first time may
 * delay its peers for that long.
 *
 * The thread starts with the first operation that it may have to run. If it cannot be started, joining threads do all
 * the work.
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
    struct cdi_region **region_out; /* set if all ranks have theirs */
    struct cdi_error *region_err;   /* otherwise the reason: all ranks agree on it, so the communicator stays usable */
    struct cdi_coll *group; /* operations that run as one (message_group.h); op is the first. The queue frees it */
    size_t n_group;         /* also set where op is one of a group, and group is NULL */
    uint64_t flight_seq;
    uint64_t ticket;
    struct cdi_work *next;
};

/* Runs one operation, or a group, to its end. */
typedef cddp_status (*cdi_run_fn)(void *arg, const struct cdi_work *work, bool on_thread, struct cdi_error *err);

struct cdi_queue;

/*
 * Starts a thread of the backend, with a small stack. It blocks all signals, since they belong to the program. Returns
 * false if no thread can be created.
 */
bool cdi_thread_start(pthread_t *thread, void *(*main)(void *arg), void *arg);

/* Creates a queue. spins: pauses before a joiner yields and then sleeps. CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_queue_create(struct cdi_queue **out, cdi_run_fn run, void *arg, struct cdi_flight *flight, int spins,
                             struct cdi_error *err);
/* Sets the communicator's name for error messages, before the first operation. It must outlive the queue. */
void cdi_queue_set_name(struct cdi_queue *q, const char *name);
/*
 * Records that the last rank of the running operation has arrived: `rank` of the job, at arrived_ns of
 * cdi_queue_now(); 0: the operation is short, and its end will do. The last call counts. Called by the run function.
 */
void cdi_queue_arrived(struct cdi_queue *q, int rank, int64_t arrived_ns);
/* Records that the running operation, a send or a recv, waits for `rank` of the job. Called by the run function. */
void cdi_queue_waits_for(struct cdi_queue *q, int rank);
/* Returns the time with the resolution of the flight page. */
int64_t cdi_queue_now(const struct cdi_queue *q);
/* Have all operations run? */
bool cdi_queue_idle(struct cdi_queue *q);
/*
 * Drops operations that have not started, waits for those that have (the caller has aborted them), ends the thread,
 * frees. NULL-safe.
 */
void cdi_queue_destroy(struct cdi_queue *q);

/* Checks whether n more can be enqueued now. CDDP_OK, CDDP_E_LIMIT. Any thread. */
cddp_status cdi_queue_has_room(struct cdi_queue *q, size_t n, struct cdi_error *err);
/*
 * Copies *work, records it in the flight page, sets *ticket. On success the queue owns its group. CDDP_OK, the sticky
 * error, CDDP_E_LIMIT, CDDP_E_NOMEM. Any thread.
 */
cddp_status cdi_queue_enqueue(struct cdi_queue *q, const struct cdi_work *work, uint64_t *ticket,
                              struct cdi_error *err);
/*
 * Returns the last ticket of an operation that is not spare; 0: none yet. A rank that waits for it does not wait for
 * ranks that leave out a spare one. Any thread.
 */
uint64_t cdi_queue_needed(struct cdi_queue *q);
/*
 * Waits until the operation of `ticket` and all before it are done; runs them if no other thread does. After an error
 * it returns once nothing runs. Any thread. CDDP_OK, the sticky error, CDDP_E_INVALID (no such ticket).
 */
cddp_status cdi_queue_join(struct cdi_queue *q, uint64_t ticket, struct cdi_error *err);
/*
 * Enqueues and joins one operation that is lazy, not a group and not a region. If the queue is idle, the operation is
 * not copied. Sets the numbers of *work.
 */
cddp_status cdi_queue_run(struct cdi_queue *q, struct cdi_work *work, struct cdi_error *err);
/*
 * Does the same as cdi_queue_join without a wait: CDDP_IN_PROGRESS if they are not done. Where the queue has no thread,
 * it runs them, and so waits.
 */
cddp_status cdi_queue_test(struct cdi_queue *q, uint64_t ticket, struct cdi_error *err);
/* Sets the sticky error, unless there is one. It does not end the running operation. */
void cdi_queue_fail(struct cdi_queue *q, const struct cdi_error *err);
/* Returns CDDP_OK or the sticky error. Any thread. */
cddp_status cdi_queue_health(struct cdi_queue *q, struct cdi_error *err);

#endif
