/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime's own modules (the reducer) see of a communicator beside the public interface. */
#ifndef CDI_COMM_H
#define CDI_COMM_H

#include "worker/backend/backend.h"
#include "worker/base/last_error.h"

/*
 * CDDP_OK where comm belongs to this process, or is NULL; CDDP_E_STATE in a child of its owner. Each public function
 * asks before it does anything else. Costs one load.
 */
cddp_status cdi_comm_own(const char *function, const cddp_comm *comm, struct cdi_error *err);
/*
 * The same for functions that end something, which a child of vfork() would end for its parent, too. true: it is
 * another process's, and the last error is set. comm is not NULL. Costs a system call.
 */
bool cdi_comm_is_others(const char *function, const cddp_comm *comm);

/*
 * What was made of comm keeps its memory, also after cddp_finalize, until it lets go, which is its last access. Before
 * that it asks whether comm is over: then there is nothing to wait for, and only memory to give back. Any thread.
 */
void cdi_comm_hold(cddp_comm *comm);
void cdi_comm_let_go(cddp_comm *comm);
bool cdi_comm_is_over(const cddp_comm *comm);

/*
 * Memory that operations under way may still use: free_it(it) is called once this rank has left comm, or at once where
 * it has. The grave is part of it. Any thread.
 */
struct cdi_grave {
    void (*free_it)(void *it);
    void *it;
    struct cdi_grave *next;
};
void cdi_comm_bury(cddp_comm *comm, struct cdi_grave *grave);

const struct cdi_world *cdi_comm_world(const cddp_comm *comm);
const struct cdi_backend_ops *cdi_comm_ops(const cddp_comm *comm);
struct cdi_backend *cdi_comm_backend(const cddp_comm *comm);
/* Memory that all ranks have, for memory.c alone. */
struct cdi_memory *cdi_comm_memory(cddp_comm *comm);
/*
 * What one module above keeps for comm. When this rank leaves comm, `fn` is called once with `arg`, before any peer
 * learns of it; cddp_finalize returns fn's error if it has none of its own. All NULL at first.
 */
struct cdi_on_finalize {
    cddp_status (*fn)(void *arg, struct cdi_error *err);
    void *arg;
};
struct cdi_on_finalize *cdi_comm_on_finalize(cddp_comm *comm);

/*
 * Collectives that this thread uses from now on are said to be those of a public function. Returns what was said
 * before, which the function says again at its end; what was said already stays.
 */
enum cdi_asked cdi_comm_ask(enum cdi_asked what);
enum cdi_asked cdi_comm_asked(void);

/* Blocking collectives as the public ones, but with err instead of the thread's last error. */
cddp_status cdi_comm_all_reduce(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                cddp_redop op, struct cdi_error *err);
cddp_status cdi_comm_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root,
                               struct cdi_error *err);
cddp_status cdi_comm_all_gather(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                struct cdi_error *err);

#endif
