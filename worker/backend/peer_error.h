/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell one another through the job's store when something has gone wrong, for backends whose library leaves
 * a rank waiting: who failed first and why, and who came to an operation that did not end. Any thread; each call is one
 * or more exchanges with the store, so not for a hot loop.
 */
#ifndef CDI_BACKEND_PEER_ERROR_H
#define CDI_BACKEND_PEER_ERROR_H

#include "common/rank_list.h"
#include "worker/backend/backend.h"

#define CDI_WORD_PREFIX_MAX 48

struct cdi_peer_error {
    const struct cdi_oob *keys;
    const char *prefix; /* before each key: "nccl/", with what tells a part from the whole; below CDI_WORD_PREFIX_MAX */
    int rank, size;
    int of_job; /* rank as a rank of the job */
};

/* "PREFIX" followed by name. */
#define CDI_WORD_KEY_BYTES 192
void cdi_peer_error_key(const struct cdi_peer_error *w, const char *name, char key[CDI_WORD_KEY_BYTES]);
/* Is there anybody to tell, and a store? */
bool cdi_peer_error_has_peers(const struct cdi_peer_error *w);
/* Tell why this rank has failed; only the first rank's word is kept. What cannot be told is not. */
void cdi_peer_error_tell(const struct cdi_peer_error *w, const struct cdi_error *why);
/* CDDP_OK: nobody has said so. Else what the first rank to fail said, or the store's own error: its host may be gone.
 */
cddp_status cdi_peer_error_heard(const struct cdi_peer_error *w, struct cdi_error *err);
/*
 * Say that this rank waits in operation `number`, wait half a second for the others to say so too, and list who did
 * not: those the others wait for. Empty where all did, and in worlds too large to be asked one by one.
 */
void cdi_peer_error_late(const struct cdi_peer_error *w, uint64_t number, struct cdi_rank_list *late);

#endif
