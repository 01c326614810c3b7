/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has only the installed libcddp, built by installed.py as C and as C++, against the shared and the
 * static library. Started by hand it is a world of one, under cddprun one of many: the mean of the ranks' gradients
 * (rank + 1) must be right either way.
 */
#include <cddp/cddp.h>
#include <stdio.h>
#include <string.h>

static float weights[3];

static int train(cddp_comm *comm)
{
    cddp_param param;
    cddp_ddp *ddp;
    float *grad;
    float mean = (float)(cddp_world_size(comm) + 1) / 2;
    int wrong = 0;
    size_t i;

    memset(&param, 0, sizeof param);
    param.size = sizeof param;
    param.name = "weights";
    param.data = weights;
    param.count = 3;
    param.dtype = CDDP_FLOAT32;
    if (cddp_ddp_create(&ddp, comm, &param, 1, NULL) != CDDP_OK)
        return 1;
    grad = (float *)cddp_ddp_grad(ddp, 0);
    for (i = 0; i < 3; i++)
        grad[i] = (float)(cddp_rank(comm) + 1);
    if (cddp_ddp_grad_ready(ddp, 0) != CDDP_OK || cddp_ddp_wait(ddp) != CDDP_OK)
        wrong = 1;
    for (i = 0; i < 3 && !wrong; i++)
        wrong = grad[i] < mean || grad[i] > mean;
    cddp_ddp_destroy(ddp);
    return wrong;
}

int main(void)
{
    cddp_comm *comm;
    int rank, size;

    if (strcmp(cddp_version(), CDDP_VERSION) != 0) {
        fprintf(stderr, "the header is of %s, the library of %s\n", CDDP_VERSION, cddp_version());
        return 1;
    }
    if (cddp_init(&comm, NULL) != CDDP_OK || train(comm) != 0) {
        fprintf(stderr, "wrong: %s\n", cddp_last_error());
        return 1;
    }
    rank = cddp_rank(comm);
    size = cddp_world_size(comm);
    if (cddp_finalize(comm) != CDDP_OK) {
        fprintf(stderr, "wrong: %s\n", cddp_last_error());
        return 1;
    }
    printf("rank %d of %d: the mean is right\n", rank, size);
    return 0;
}
