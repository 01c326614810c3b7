/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank says who it is; none leaves before all have come. Run: cddprun --standalone --nproc_per_node=4 hello_ranks
 */
#include <cddp/cddp.h>
#include <stdio.h>

int main(void)
{
    cddp_comm *comm;

    if (cddp_init(&comm, NULL) != CDDP_OK) {
        fprintf(stderr, "hello_ranks: %s\n", cddp_last_error());
        return 1;
    }
    printf("rank %d of %d, local rank %d of %d, node %d, backend %s\n", cddp_rank(comm), cddp_world_size(comm),
           cddp_local_rank(comm), cddp_local_world_size(comm), cddp_node_rank(comm), cddp_backend_name(comm));
    if (cddp_barrier(comm) != CDDP_OK) {
        fprintf(stderr, "hello_ranks: %s\n", cddp_last_error());
        return 1;
    }
    return cddp_finalize(comm) == CDDP_OK ? 0 : 1;
}
