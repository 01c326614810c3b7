/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded: a communication that is wrong. On rank 1 the last element of every all-reduce's float result is one more
 * than it should be; or, with CDDP_PLANT=die, rank 1 is killed in its 30th one.
 */
#include <cddp/cddp.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static float *last;

cddp_status cddp_coll_start(cddp_comm *comm, const cddp_coll_args *args, size_t n, uint64_t *ticket)
{
    static cddp_status (*real)(cddp_comm *, const cddp_coll_args *, size_t, uint64_t *);
    static int calls;
    const char *plant = getenv("CDDP_PLANT");

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "cddp_coll_start");
    if (cddp_rank(comm) == 1 && n == 1 && args[0].coll == CDDP_COLL_ALL_REDUCE && args[0].count > 0) {
        last = (float *)args[0].out + args[0].count - 1;
        if (plant != NULL && strcmp(plant, "die") == 0 && ++calls == 30)
            (void)raise(SIGKILL);
    }
    return real(comm, args, n, ticket);
}

cddp_status cddp_coll_wait(cddp_comm *comm, uint64_t ticket)
{
    static cddp_status (*real)(cddp_comm *, uint64_t);
    cddp_status status;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "cddp_coll_wait");
    status = real(comm, ticket);
    if (last != NULL)
        *last += 1;
    last = NULL;
    return status;
}
