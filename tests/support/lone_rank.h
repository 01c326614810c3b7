/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a node whose peers do not exist: the test sets the words that they would have set. So it can create
 * states of the protocol that real ranks pass within nanoseconds.
 */
#ifndef CDI_TEST_LONE_RANK_H
#define CDI_TEST_LONE_RANK_H

#include "worker/backend/cpu/coll/collective.h"
#include "worker/backend/cpu/node/shm_bootstrap.h"

#include <criterion/criterion.h>
#include <unistd.h>

struct lone_rank {
    struct cdi_cpu_comm comm;
    struct cdi_flight *flight;
    struct cdi_error err;
};

/* Starts rank `rank` of a node of `size` ranks; every wait takes at most timeout_ms. */
static inline void lone_rank_start(struct lone_rank *l, int rank, int size, int64_t timeout_ms)
{
    static const struct cdi_mapper plain = {.map = NULL};
    struct cdi_shm *shm;
    void *mem;
    int fd;

    *l = (struct lone_rank){.comm = {.rank = rank, .size = size}};
    cr_assert_eq(cdi_cpu_comm_init(&l->comm, &l->err), CDDP_OK);
    cr_assert_eq(cdi_shm_create(&shm, rank, size, 0, false, NULL, &l->err), CDDP_OK);
    cr_assert_eq(cdi_shm_memfd("test", shm->bytes, true, &fd, &l->err), CDDP_OK, "%s", l->err.msg);
    cr_assert_eq(cdi_shm_map(&plain, fd, shm->bytes, &mem, &l->err), CDDP_OK, "%s", l->err.msg);
    (void)close(fd);
    cdi_shm_format(shm, mem);
    cr_assert_eq(cdi_flight_attach(&l->flight, NULL, &l->err), CDDP_OK);
    l->comm.shm = shm;
    cdi_wait_init(&l->comm.wait, shm, l->flight, timeout_ms);
}

static inline void lone_rank_end(struct lone_rank *l)
{
    cdi_shm_destroy(l->comm.shm);
    cdi_cpu_comm_release(&l->comm);
    cdi_flight_release(l->flight);
}

/* Runs one operation on this thread. */
static inline cddp_status lone_rank_do(struct lone_rank *l, const struct cdi_coll *op)
{
    const struct cdi_work work = {.op = *op};

    return cdi_cpu_comm_run(&l->comm, &work, false, &l->err);
}

#endif
