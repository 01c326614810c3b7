/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors that ranks exchange through the job's store, for backends whose library lets a rank wait forever: the first
 * failure with its reason, and how far each rank has come. Any thread. Each call makes one or more requests to the
 * store, so it is not for a hot loop.
 */
#ifndef CDI_BACKEND_PEER_ERROR_H
#define CDI_BACKEND_PEER_ERROR_H

#include "common/rank_list.h"
#include "worker/backend/backend.h"

#define CDI_PEER_ERROR_PREFIX_MAX 48

struct cdi_peer_error {
    const struct cdi_oob *keys;
    const char
        *prefix; /* before each key: "nccl/" and the part, if it is one; shorter than CDI_PEER_ERROR_PREFIX_MAX */
    int rank, size;
    const int *ranks; /* as in struct cdi_world */
};

#define CDI_PEER_ERROR_KEY_BYTES 192
/* Writes the key of `name`: the prefix, then the name. */
void cdi_peer_error_key(const struct cdi_peer_error *w, const char *name, char key[CDI_PEER_ERROR_KEY_BYTES]);
/* Are there other ranks, and a store? */
bool cdi_peer_error_has_peers(const struct cdi_peer_error *w);
/* Reports why this rank has failed; only the report of the first rank counts. Best effort. */
void cdi_peer_error_tell(const struct cdi_peer_error *w, const struct cdi_error *why);
/*
 * Returns CDDP_OK if no rank has reported a failure; otherwise the error of the first rank that did, or that of the
 * store itself, whose host may be gone.
 */
cddp_status cdi_peer_error_heard(const struct cdi_peer_error *w, struct cdi_error *err);

#define CDI_PEER_TELL_MS 250
/* How far this rank has come in a series of operations that is the same on all ranks. */
struct cdi_peer_place {
    uint64_t told, sum; /* the last number that was reported; and the one that the store has */
};
/*
 * Reports that this rank has come to operation `number`, unless that was reported. One thread for each series. Best
 * effort: nothing in worlds with too many ranks to check one by one. A rank tells within CDI_PEER_TELL_MS of its
 * arrival where it waits or pauses: a peer whose time is over then knows it, though this rank's time ends later, or its
 * part of the operation is done.
 */
void cdi_peer_error_tell_place(const struct cdi_peer_error *w, const char *series, struct cdi_peer_place *p,
                               uint64_t number);
/*
 * Lists the ranks that have not come to operation `number`, in which this rank waits, and has told so: the others wait
 * for those. Gives each rank half a second to tell. Returns false if that is not known, with an empty list.
 */
bool cdi_peer_error_late(const struct cdi_peer_error *w, const char *series, uint64_t number,
                         struct cdi_rank_list *late);

#endif
