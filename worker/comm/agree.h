/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a communicator begin something together. */
#ifndef CDI_AGREE_H
#define CDI_AGREE_H

#include "worker/comm/comm.h"

/*
 * Shows every rank's card to all, so that each can compare them. A collective of one all-gather. A rank that has failed
 * alone takes part with its error, so that no rank waits for it, and all get that error: a broadcast more.
 *
 * what: what a rank could not do, such as "create its reducer". mine: `bytes` bytes, the same number on every rank,
 * without pointers; not read with an error. local: this rank's earlier error, or NULL. *cards receives all cards in
 * rank order, which the caller frees; NULL except on success. err is not NULL, and may be the same as local. Without
 * cards, mine and cards are NULL, and bytes is 0.
 *
 * Blocks until every rank has called it. Returns CDDP_OK; this rank's own error; the first other rank's status, with
 * its text and number; CDDP_E_NOMEM, which ends the communicator, as the others cannot go on without this rank; or what
 * a collective may return.
 */
cddp_status cdi_comm_agree(cddp_comm *comm, const char *what, const void *mine, size_t bytes, void **cards,
                           const struct cdi_error *local, struct cdi_error *err);

/*
 * The same for a caller that words failures itself: *failed is the first rank that has failed, and *err that rank's
 * error, as it is there. -1: none has. Returns CDDP_OK in both cases, and errors of the exchange otherwise. err is not
 * local.
 */
cddp_status cdi_comm_exchange(cddp_comm *comm, const char *what, const void *mine, size_t bytes, void **cards,
                              const struct cdi_error *local, int *failed, struct cdi_error *err);

/*
 * Ends the communicator, as this rank has no memory to take part any further, and its peers must not wait for ever.
 * Returns CDDP_E_NOMEM.
 */
cddp_status cdi_comm_give_up(cddp_comm *comm, const char *what, struct cdi_error *err);

#endif
