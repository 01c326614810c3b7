/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddp_should_stop: what a communicator knows of a stop on which its ranks agree.
 *
 * The ranks agree by the maximum of one word per rank. A call makes that all-reduce itself, unless the step before it
 * has brought the answer: after a call, the next step of the reducer sends the word along, after its first bucket. All
 * ranks decide equally which of the two it is, since it depends on the order of their calls only.
 */
#ifndef CDI_STOP_H
#define CDI_STOP_H

#include "protocol/flight_stop.h"
#include "worker/comm/comm.h"

#define CDI_STOP_RIDES 2 /* words on the way: of the last step, and of the one before */

struct cdi_stop {
    bool watches;              /* cddp_should_stop was called */
    enum cdi_stop_kind agreed; /* the answer; it is final once it is not NONE */
    _Atomic bool requested;    /* by this rank's program; of the communicator of cddp_init */
    bool armed;                /* the next step sends the word */
    uint64_t n_steps;          /* of the reducer, since the last call */
    uint64_t n_rides;          /* words sent, since the last answer that no ride brought */
    uint64_t ticket[CDI_STOP_RIDES];
    int64_t word[CDI_STOP_RIDES]; /* while the operation is on the way, its memory */
};

/*
 * In each step, after its first bucket was enqueued: enqueues the word if the last call of cddp_should_stop has asked
 * for it, and then sets *ticket, which is otherwise unchanged. Only the reducer that counts comm's steps does so. The
 * same calls on all ranks, and not while a graph is captured.
 */
cddp_status cdi_stop_ride(cddp_comm *comm, const void *reducer, uint64_t *ticket, struct cdi_error *err);
/* This rank leaves comm: it does not ask any more. */
void cdi_stop_leave(cddp_comm *comm);

#endif
