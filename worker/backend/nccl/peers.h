/* SPDX-License-Identifier: Apache-2.0 */
/* Failures and peers: what ranks report to one another through the job's store. No lock is held. */
#ifndef CDI_NCCL_PEERS_H
#define CDI_NCCL_PEERS_H

#include "worker/backend/nccl/state/state.h"

/* Checks the store for the failure of a peer, which is then this communicator's, too. */
void cdi_peers_listen(struct cdi_backend *b);
/* Notifies the peers of this communicator's failure, once its error message is complete, unless that was done. */
void cdi_peers_notify(struct cdi_backend *b);
/* Returns a number that changes whenever this rank comes to another collective, or replay of one. */
uint64_t cdi_peers_place(struct cdi_backend *b);
/* Tells the peers how far this rank has come. The progress thread. */
void cdi_peers_tell_place(struct cdi_backend *b);
/* After a timeout: asks the store which ranks are late, and adds them to the error message. The progress thread. */
void cdi_peers_name_late(struct cdi_backend *b);

#endif
