/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training, written once in train_real.h and compiled twice, for float and double; and the code that does not depend
 * on the type: the loss over all ranks, its record, and the comparison of the final weights.
 */
#include "train.h"

#include "gpu.h"
#include "state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static cddp_status set_why(char *why, size_t cap, const char *text)
{
    (void)snprintf(why, cap, "%s", text);
    return CDDP_E_STATE;
}

/* {"epoch":0,"loss":1.04,"rank_loss":[1.05,1.03]} */
static void write_metrics(FILE *f, long epoch, double loss, const cddp_metric *ranks, int n)
{
    (void)fprintf(f, "{\"epoch\":%ld,\"loss\":%.17g,\"rank_loss\":[", epoch, loss);
    for (int r = 0; r < n; r++)
        if (ranks[r].weight > 0)
            (void)fprintf(f, "%s%.17g", r == 0 ? "" : ",", cddp_metric_mean(&ranks[r]));
        else /* more ranks than before took over where the epoch was nearly done */
            (void)fprintf(f, "%snull", r == 0 ? "" : ",");
    (void)fprintf(f, "]}\n");
    (void)fflush(f);
}

/* The mean loss of this epoch over the samples of all ranks; recorded and shown by rank 0. */
static cddp_status share_loss(const struct job *job, long epoch, struct epoch_loss mine, double *loss, char *why,
                              size_t cap)
{
    int n = cddp_world_size(job->comm);
    cddp_metric *ranks = calloc((size_t)n, sizeof *ranks);
    cddp_metric all = {.sum = mine.sum, .weight = mine.count};
    cddp_status status;

    if (ranks == NULL)
        return set_why(why, cap, "out of memory");
    status = cddp_metric_reduce(job->comm, &all, &all, 1, ranks);
    *loss = cddp_metric_mean(&all);
    if (status == CDDP_OK && job->metrics != NULL)
        write_metrics(job->metrics, epoch, *loss, ranks, n);
    if (status == CDDP_OK && cddp_rank(job->comm) == 0 && ((epoch + 1) % 10 == 0 || epoch + 1 == job->opt->epochs))
        (void)printf("epoch %ld/%ld  loss %.6f\n", epoch + 1, job->opt->epochs, *loss);
    free(ranks);
    return status;
}

/* Data-parallel training keeps equal weights on all ranks, bit for bit: make sure. */
static cddp_status compare_weights(cddp_comm *comm, const void *weights, size_t bytes, char *why, size_t cap)
{
    int n = cddp_world_size(comm);
    uint64_t hash = UINT64_C(0xcbf29ce484222325), *all = calloc((size_t)n, sizeof *all);
    cddp_status status;

    if (all == NULL)
        return set_why(why, cap, "out of memory");
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const uint8_t *)weights)[i]) * UINT64_C(0x100000001b3);
    status = cddp_all_gather(comm, &hash, all, 1, CDDP_UINT64);
    for (int r = 1; r < n && status == CDDP_OK; r++)
        if (all[r] != all[0]) {
            (void)snprintf(why, cap, "the final weights of rank %d are not those of rank 0", r);
            status = CDDP_E_MISMATCH;
        }
    free(all);
    return status;
}

/* What this rank takes of its samples in what is left of the epoch. */
static size_t samples_of_epoch(const struct job *job, const cddp_sampler *sampler)
{
    size_t n = cddp_sampler_count(sampler), less = (size_t)job->opt->uneven * (size_t)cddp_rank(job->comm);

    return n > less ? n - less : 0;
}

#define REAL float
#define REAL_DTYPE CDDP_FLOAT32
#define NAME(x) x##_f32
#define EXP expf
#define LOG logf
#define SQRT sqrtf
#include "train_real.h"
#undef REAL
#undef REAL_DTYPE
#undef NAME
#undef EXP
#undef LOG
#undef SQRT

#define REAL double
#define REAL_DTYPE CDDP_FLOAT64
#define NAME(x) x##_f64
#define EXP exp
#define LOG log
#define SQRT sqrt
#include "train_real.h"
