/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator as the runtime's own modules (such as the reducer) use it, beside the public interface. */
#ifndef CDI_COMM_H
#define CDI_COMM_H

#include "worker/backend/backend.h"
#include "worker/backend/who.h"
#include "worker/base/last_error.h"

/*
 * Returns CDDP_OK if comm belongs to this process or is NULL, and CDDP_E_STATE in a child of its owner. Each public
 * function calls it first. Costs one load.
 */
cddp_status cdi_comm_own(const char *function, const cddp_comm *comm, struct cdi_error *err);
/*
 * Returns true and sets the last error if comm belongs to another process. For functions that end something, which a
 * child of vfork() would end for its parent, too. comm is not NULL. Costs a system call.
 */
bool cdi_comm_is_others(const char *function, const cddp_comm *comm);

/*
 * An object that was made from comm holds comm's memory, also after cddp_finalize, until it lets go: its last access.
 * If comm is over by then, the object has nothing to wait for, and only frees its memory. Any thread.
 */
void cdi_comm_hold(cddp_comm *comm);
void cdi_comm_let_go(cddp_comm *comm);
bool cdi_comm_is_over(const cddp_comm *comm);

/*
 * Defers the release of memory that running operations may still use: free_it(it) is called when this rank leaves comm,
 * or at once if it has left. The grave is part of that memory. Any thread.
 */
struct cdi_grave {
    void (*free_it)(void *it);
    void *it;
    struct cdi_grave *next;
};
void cdi_comm_bury(cddp_comm *comm, struct cdi_grave *grave);

/*
 * The step for the messages of cddp_log: that of the first reducer. Others that call this change nothing, until that
 * one calls cdi_comm_end_steps(); the next one that calls it takes its place. Any thread.
 */
void cdi_comm_set_step(cddp_comm *comm, const void *reducer, uint64_t step);
/* This reducer ends. Its last step stays, until another one takes its place. Any thread. */
void cdi_comm_end_steps(cddp_comm *comm, const void *reducer);
/* Returns that step plus 1; 0: there is no reducer yet. Any thread. */
uint64_t cdi_comm_step(const cddp_comm *comm);

/* Returns the number of a reducer that all ranks of comm have just created: 1, 2, ... */
uint32_t cdi_comm_number_model(cddp_comm *comm);

const struct cdi_world *cdi_comm_world(const cddp_comm *comm);
/* Returns the name of a rank of comm in messages. */
static inline struct cdi_who cdi_comm_who(const cddp_comm *comm, int rank)
{
    return cdi_who(cdi_comm_world(comm)->ranks, rank);
}
const struct cdi_backend_ops *cdi_comm_ops(const cddp_comm *comm);
struct cdi_backend *cdi_comm_backend(const cddp_comm *comm);
/* Returns the list of comm's memory. For memory.c alone. */
struct cdi_memory *cdi_comm_memory(cddp_comm *comm);
/*
 * What one module above keeps for comm. When this rank leaves comm, `fn` is called once with `arg`, before any peer
 * learns of it; cddp_finalize returns fn's error unless it has another one. All NULL at first.
 */
struct cdi_on_finalize {
    cddp_status (*fn)(void *arg, struct cdi_error *err);
    void *arg;
};
struct cdi_on_finalize *cdi_comm_on_finalize(cddp_comm *comm);

/*
 * Sets the public function on whose behalf this thread runs collectives from now on, and returns the one before, which
 * the caller restores at its end. A function that calls another one stays the one that is named.
 */
enum cdi_api_call cdi_api_enter(enum cdi_api_call what);
enum cdi_api_call cdi_api_caller(void);
/* The same for the reducer whose collectives these are: of cdi_comm_all_reduce, _broadcast and _all_gather. */
struct cdi_origin cdi_api_set_origin(struct cdi_origin of);
/* Sets asked and of. */
void cdi_api_mark(struct cdi_coll *op);

/* Blocking collectives, like the public ones, but with err instead of the thread's last error. */
cddp_status cdi_comm_all_reduce(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                cddp_redop op, struct cdi_error *err);
cddp_status cdi_comm_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root,
                               struct cdi_error *err);
cddp_status cdi_comm_all_gather(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                struct cdi_error *err);

#endif
