/* SPDX-License-Identifier: Apache-2.0 */
/* What a later run needs to go on where this one stopped: weights, AdamW's averages, and the number of the step. */
#ifndef GPT_STATE_H
#define GPT_STATE_H

#include "train.h"

/* From now on SIGTERM, SIGINT and SIGUSR1 ask the run to save and to stop; without --save they end it as ever. */
void state_watch_signals(const struct options *opt);

/* From now on these signals end the process again: all is saved. */
void state_forget_signals(const struct options *opt);

/*
 * Saves if it is due after job->step: as --save-every says, at the end, and as soon as any rank is asked to stop; then
 * job->leaving is set, on all ranks after the same step. A collective.
 */
cddp_status state_save(struct job *job);

/* Loads the newest whole checkpoint of --resume, if there is one. A collective. */
cddp_status state_resume(struct job *job);

#endif
