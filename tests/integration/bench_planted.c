/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded: a communication that is wrong. On rank 1 the last element of every all-reduce's float result is one more
 * than it should be; or, with CDDP_PLANT=die, rank 1 is killed in its 30th one; or, with CDDP_PLANT=look, a rank ends
 * if its input is not written or its output has a page that nobody has used.
 */
#include <cddp/cddp.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static float *last;

/* The pages of the benchmark's memory are there, and the input has numbers in it. */
static void look(const cddp_coll_args *a)
{
    const float *in = a->in;
    uintptr_t first = ((uintptr_t)a->out + 4095) & ~(uintptr_t)4095, end = (uintptr_t)a->out + a->count * 4;
    unsigned char there = 1;

    for (size_t i = 0; i < a->count; i++)
        if (!(in[i] >= 1)) {
            (void)fprintf(stderr, "planted: element %zu was never written\n", i);
            _Exit(9);
        }
    for (; first + 4096 <= end; first += 4096)
        if (mincore((void *)first, 4096, &there) != 0 || (there & 1) == 0) {
            (void)fputs("planted: a page of the output is not there\n", stderr);
            _Exit(9);
        }
}

cddp_status cddp_coll_start(cddp_comm *comm, const cddp_coll_args *args, size_t n, uint64_t *ticket)
{
    static cddp_status (*real)(cddp_comm *, const cddp_coll_args *, size_t, uint64_t *);
    static int calls;
    const char *plant = getenv("CDDP_PLANT");

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "cddp_coll_start");
    if (plant != NULL && strcmp(plant, "look") == 0) {
        for (size_t i = 0; i < n; i++)
            look(&args[i]);
        return real(comm, args, n, ticket);
    }
    if (cddp_rank(comm) == 1 && n == 1 && args[0].coll == CDDP_COLL_ALL_REDUCE && args[0].count > 0) {
        last = (float *)args[0].out + args[0].count - 1;
        if (plant != NULL && strcmp(plant, "die") == 0 && ++calls == 30)
            (void)raise(SIGKILL);
    }
    return real(comm, args, n, ticket);
}

cddp_status cddp_all_reduce(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype, cddp_redop op)
{
    static cddp_status (*real)(cddp_comm *, const void *, void *, size_t, cddp_dtype, cddp_redop);
    cddp_status status;

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "cddp_all_reduce");
    status = real(comm, in, out, count, dtype, op);
    if (getenv("CDDP_PLANT") == NULL && cddp_rank(comm) == 1 && dtype == CDDP_FLOAT32 && count > 0)
        ((float *)out)[count - 1] += 1;
    return status;
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
