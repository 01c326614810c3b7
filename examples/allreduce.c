/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks add up a vector and check the sum. Run: cddprun --standalone --nproc_per_node=4 allreduce
 */
#include <cddp/cddp.h>
#include <stdio.h>

#define COUNT 1000

static int failed(void)
{
    fprintf(stderr, "allreduce: %s\n", cddp_last_error());
    return 1;
}

int main(void)
{
    static float mine[COUNT], sum[COUNT];
    cddp_comm *comm;
    int n;

    if (cddp_init(&comm, NULL) != CDDP_OK)
        return failed();
    n = cddp_world_size(comm);
    for (int i = 0; i < COUNT; i++)
        mine[i] = (float)(i + cddp_rank(comm));
    if (cddp_all_reduce(comm, mine, sum, COUNT, CDDP_FLOAT32, CDDP_SUM) != CDDP_OK)
        return failed();
    for (int i = 0; i < COUNT; i++) {
        int want = n * i + n * (n - 1) / 2; /* i + 0, i + 1, ..., i + n-1 */

        if (sum[i] != (float)want) {
            fprintf(stderr, "allreduce: rank %d: sum[%d] is %g, not %d\n", cddp_rank(comm), i, (double)sum[i], want);
            return 1;
        }
    }
    printf("rank %d: the sum over %d ranks is right\n", cddp_rank(comm), n);
    return cddp_finalize(comm) == CDDP_OK ? 0 : 1;
}
