/* SPDX-License-Identifier: Apache-2.0 */
/* What a later run needs to go on where this one stopped: weights, AdamW's averages, and the number of the step. */
#ifndef GPT_STATE_H
#define GPT_STATE_H

#include "train.h"

/*
 * With --save, a request to stop does not end the program from now on: state_save() learns of it. A collective.
 */
cddp_status state_watch(const struct options *opt, cddp_comm *comm);

/*
 * Saves if it is due after job->step: as --save-every says, at the end, and as soon as any rank is asked to stop; then
 * job->leaving is set, on all ranks after the same step. A collective.
 */
cddp_status state_save(struct job *job);

/* Checks that --save can be written to, and loads the newest whole checkpoint of --resume, if there is one. A
 * collective. */
cddp_status state_resume(struct job *job);

#endif
