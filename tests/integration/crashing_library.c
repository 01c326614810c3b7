/* SPDX-License-Identifier: Apache-2.0 */
/* A library with libcddp.a in it, for crashing.c. */
#include <cddp/cddp.h>

__attribute__((visibility("default"))) int crashing_join_and_leave(void);

int crashing_join_and_leave(void)
{
    cddp_comm *comm;

    return cddp_init(&comm, NULL) != CDDP_OK || cddp_finalize(comm) != CDDP_OK;
}
