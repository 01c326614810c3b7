/* SPDX-License-Identifier: Apache-2.0 */
/* What a later run needs to go on where this one stopped: saved by rank 0, loaded on all ranks. */
#ifndef WINE_STATE_H
#define WINE_STATE_H

#include "train.h"

struct progress {
    int64_t epochs;    /* done */
    int64_t steps;     /* of Adam */
    double train_loss; /* of the last epoch */
};

/* The sum of this rank's sample losses in the epoch so far, and how many samples there were. */
struct epoch_loss {
    double sum, count;
};

struct state {
    void *weights, *m, *v; /* Adam's averages; the caller's memory */
    cddp_optim *optim;     /* or NULL; it has the averages then, and m and v are not used */
    cddp_ddp *ddp;         /* which has its own state with PowerSGD */
    size_t bytes;          /* of each of the three */
    struct progress done;
    struct epoch_loss loss;
    bool leaving;          /* the job is to stop: the state is saved, and no step follows on any rank */
    cddp_sampler *sampler; /* the caller's; it knows how far the epoch is */
};

/*
 * With --save, a request to stop does not end the program from now on: state_save() learns of it. A collective. Errors
 * are in cddp_last_error().
 */
cddp_status state_watch(const struct options *opt, cddp_comm *comm);

/*
 * Save as --save says, if it is due: between two steps, or (with epoch_is_done) when s->done.epochs has changed and the
 * sampler begins the next one. With --save it is also due as soon as any rank is asked to stop; then s->leaving is set,
 * on all ranks at the same step. A collective. Errors are in cddp_last_error().
 */
cddp_status state_save(const struct job *job, struct state *s, bool epoch_is_done);

/*
 * Where --resume asks for it, load the newest whole checkpoint into *s, also one from the middle of an epoch; none at
 * all leaves *s as it is. Rank 0 says
 * where the run goes on, and names damaged checkpoints on stderr. The metrics file is cut to what was done. A
 * collective. Errors are in cddp_last_error(), or (of a local cause) in `why`.
 */
cddp_status state_resume(const struct job *job, struct state *s, char *why, size_t cap);

#endif
