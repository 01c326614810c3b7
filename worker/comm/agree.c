/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/agree.h"

#include "common/cleanup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Precedes each card. */
struct head {
    int32_t status, os_error;
};

/* Fails the job: this rank cannot take part any further, and its peers must not wait for ever. */
static cddp_status give_up(cddp_comm *comm, const char *what, struct cdi_error *err)
{
    struct cdi_error why;

    (void)cdi_fail(&why, CDDP_E_NOMEM, "rank %d could not %s: it has no memory to compare itself with %d ranks",
                   cdi_comm_world(comm)->rank, what, cdi_comm_world(comm)->size);
    cdi_comm_ops(comm)->abort(cdi_comm_backend(comm), CDDP_E_ABORTED, why.msg);
    *err = why;
    return why.status;
}

/* Broadcasts the text of the first rank that has failed. */
static cddp_status share_failure(cddp_comm *comm, const char *what, int failed, const struct head *head,
                                 const struct cdi_error *own, struct cdi_error *err)
{
    char text[CDI_ERROR_TEXT] = "", all[CDI_ERROR_TEXT + 128];
    struct cdi_error other;
    cddp_status st;

    if (own != NULL && failed == cdi_comm_world(comm)->rank)
        memcpy(text, own->msg, sizeof text);
    st = cdi_comm_broadcast(comm, text, sizeof text, CDDP_UINT8, failed, &other);
    if (own != NULL) {
        *err = *own;
        return own->status;
    }
    if (st != CDDP_OK) {
        *err = other;
        return st;
    }
    text[sizeof text - 1] = '\0';
    (void)snprintf(all, sizeof all, "rank %d could not %s: %s", failed, what, text);
    st = cdi_fail_told(err, cdi_rank_of_job(cdi_comm_world(comm), failed) + 1, (cddp_status)head->status, all);
    err->os_error = head->os_error;
    return st;
}

cddp_status cdi_comm_agree(cddp_comm *comm, const char *what, const void *mine, size_t bytes, void **cards,
                           const struct cdi_error *local, struct cdi_error *err)
{
    size_t world = (size_t)cdi_comm_world(comm)->size, each = sizeof(struct head) + bytes;
    CDI_AUTOFREE char *send = calloc(1, each);
    CDI_AUTOFREE char *all = calloc(world, each);
    struct cdi_error own = {.status = CDDP_OK}, other;
    struct head head = {0};
    cddp_status st;

    *cards = NULL;
    if (send == NULL || all == NULL)
        return give_up(comm, what, err);
    if (local != NULL) {
        own = *local;
        head = (struct head){own.status, own.os_error};
    } else if (bytes > 0) {
        memcpy(send + sizeof head, mine, bytes);
    }
    memcpy(send, &head, sizeof head);
    st = cdi_comm_all_gather(comm, send, all, each, CDDP_UINT8, &other);
    if (st != CDDP_OK) {
        *err = local != NULL ? own : other;
        return err->status;
    }
    for (size_t r = 0; r < world; r++) {
        memcpy(&head, all + r * each, sizeof head);
        if (head.status != CDDP_OK)
            return share_failure(comm, what, (int)r, &head, local != NULL ? &own : NULL, err);
    }
    for (size_t r = 0; r < world; r++)
        memmove(all + r * bytes, all + r * each + sizeof head, bytes);
    *cards = cdi_steal(&all);
    return CDDP_OK;
}
