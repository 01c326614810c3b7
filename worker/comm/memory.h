/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator's list of the memory that the program has allocated by cddp_alloc or registered, where collectives and
 * reducers look up the program's buffers.
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

/* One entry of it. */
struct cdi_extent {
    void *base;
    size_t bytes;
    enum cdi_memory_kind kind;
    struct cdi_region *region; /* speeds up operations in it; NULL: none */
    uint64_t id;               /* memory of all ranks: 1, 2, ..., equal on all ranks; 0: other memory */
    struct cdi_extent *next;
};

/* Zeroed memory is an empty list. */
struct cdi_memory {
    pthread_mutex_t lock;
    struct cdi_extent *list;
    /* The number of entries of all ranks so far, equal on all ranks. Does not shrink. */
    _Atomic uint64_t n_shared;
};

/* Copies the entry of all ranks that holds [p, p + bytes) to *out. Returns false if there is none. Any thread. */
bool cdi_memory_find(cddp_comm *comm, const void *p, size_t bytes, struct cdi_extent *out);
/*
 * Copies to *out the entry that cddp_alloc has made for all ranks and that [p, p + bytes) overruns: it begins in it, or
 * right after it, and does not end in it. Returns false if there is none. Any thread.
 */
bool cdi_memory_overrun(cddp_comm *comm, const void *p, size_t bytes, struct cdi_extent *out);
/* Sets op's region and `anywhere`, for a collective of the program that may work in place in such memory. */
void cdi_memory_place(cddp_comm *comm, struct cdi_coll *op);
/* Adds e to the list, and numbers it if it is memory of all ranks. Any thread. */
void cdi_memory_add(cddp_comm *comm, struct cdi_extent *e);
/* Removes the entry that begins at p from the list and returns it; NULL: there is none. Any thread. */
struct cdi_extent *cdi_memory_remove(cddp_comm *comm, const void *p, bool registered);
/* Returns whether any entry of the list overlaps [p, p + bytes). Any thread. */
bool cdi_memory_overlaps(cddp_comm *comm, const void *p, size_t bytes);
/* Frees e, which is not in the list, and its memory if the backend has allocated it. */
void cdi_extent_destroy(struct cdi_extent *e, const struct cdi_backend_ops *ops, struct cdi_backend *b);
/* Frees all entries that the program has not freed. No other thread uses the list. */
void cdi_memory_release(struct cdi_memory *m, const struct cdi_backend_ops *ops, struct cdi_backend *b);

#endif
