/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that libcddp was asked for, or told of: what collectives and reducers know of the place where a program has
 * its data. A communicator has a list of it.
 */
#ifndef CDI_COMM_MEMORY_H
#define CDI_COMM_MEMORY_H

#include "worker/backend/backend.h"

#include <pthread.h>

enum cdi_memory_kind {
    CDI_MEMORY_HOST = 1,  /* of cddp_alloc, on the host beside a GPU */
    CDI_MEMORY_SHARED,    /* of cddp_alloc, of all ranks */
    CDI_MEMORY_REGISTERED /* the program's own, of all ranks */
};

/* A stretch of it. */
struct cdi_extent {
    void *base;
    size_t bytes;
    enum cdi_memory_kind kind;
    struct cdi_region *region; /* what operations in it are faster by; NULL: they are not */
    uint64_t id;               /* of memory of all ranks: 1, 2, ..., equal on all ranks */
    struct cdi_extent *next;
};

/* Zeroed: there is none. */
struct cdi_memory {
    pthread_mutex_t lock;
    struct cdi_extent *list;
    /* How many were made or registered by all ranks so far, so that it is equal on all. Does not shrink. */
    _Atomic uint64_t n_shared;
};

/* A copy of the one of all ranks that holds [p, p + bytes). Any thread. false: none does. */
bool cdi_memory_find(cddp_comm *comm, const void *p, size_t bytes, struct cdi_extent *out);
/*
 * The memory of cddp_alloc for all ranks in which [p, p + bytes) begins, or right behind which, and in which it does
 * not end: a copy of it. Any thread. false: there is none.
 */
bool cdi_memory_overrun(cddp_comm *comm, const void *p, size_t bytes, struct cdi_extent *out);
/* A collective of the program's own begins: does it work in place in such memory? Fills in op's region and anywhere. */
void cdi_memory_place(cddp_comm *comm, struct cdi_coll *op);
/* Adds e to the list, and numbers it if it is of all ranks. Any thread. */
void cdi_memory_add(cddp_comm *comm, struct cdi_extent *e);
/* Removes from the list, and returns, the entry that begins at p; NULL: there is none. Any thread. */
struct cdi_extent *cdi_memory_remove(cddp_comm *comm, const void *p, bool registered);
/* Returns whether any entry of the list overlaps [p, p + bytes). Any thread. */
bool cdi_memory_overlaps(cddp_comm *comm, const void *p, size_t bytes);
/* Frees e, which is in no list, and its memory if the backend has made it. */
void cdi_extent_destroy(struct cdi_extent *e, const struct cdi_backend_ops *ops, struct cdi_backend *b);
/* At the end: give all back that the program has not. No other thread uses it. */
void cdi_memory_release(struct cdi_memory *m, const struct cdi_backend_ops *ops, struct cdi_backend *b);

#endif
