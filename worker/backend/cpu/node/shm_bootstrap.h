/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a node set up shared memory: descriptors of memfds pass over abstract unix sockets (SCM_RIGHTS)
 * between the node's first rank and every other one. Both sides check the uid of the peer. No name ever appears in
 * /dev/shm. The ranks agree on every step: it succeeds on all, or all get an error that names a rank and its cause.
 */
#ifndef CDI_SHM_BOOTSTRAP_H
#define CDI_SHM_BOOTSTRAP_H

#include "worker/backend/backend.h"
#include "worker/backend/cpu/node/wait.h"

/* Stores under `name` why this rank cannot go on: "-3 2 the text", the status, `blamed` and the text of *why. */
void cdi_oob_tell_cause(const struct cdi_oob *oob, const char *name, const struct cdi_error *why);
/* Sets *err to such a text of another rank. Returns its status, never CDDP_OK. */
cddp_status cdi_oob_cause(const char *text, struct cdi_error *err);

/*
 * Creates a control segment that all ranks of the node share. A collective of the node; blocks until all have it, at
 * most for world->init_timeout_ms. m may be NULL. *out is set on success only. CDDP_E_TIMEOUT (names the missing
 * ranks), CDDP_E_PEER, CDDP_E_UNSUPPORTED (the node's ranks are on several hosts), CDDP_E_NOMEM, CDDP_E_SYSTEM,
 * CDDP_E_VERSION.
 */
cddp_status cdi_shm_bootstrap_control(struct cdi_shm **out, const struct cdi_world *world, const struct cdi_mapper *m,
                                      struct cdi_error *err);

/* Reports that this rank cannot take part in that: the other ranks of its node need not wait for it. */
void cdi_shm_bootstrap_refuse(const struct cdi_world *world, const struct cdi_error *why);

/*
 * Allocates `bytes` bytes of memory on every rank of the node and maps those of all: part[r] is that of local rank r. A
 * collective of the node, between two steps. Returns the outcome on this rank, which the caller compares with that of
 * the others. On failure nothing stays mapped. *broken is set for an error of the sockets themselves: then the ranks
 * have no common state, and the communicator has failed.
 */
cddp_status cdi_shm_bootstrap_parts(struct cdi_wait *w, size_t bytes, void **part, bool *broken, struct cdi_error *err);

#endif
