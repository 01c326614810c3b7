/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/agree.h"

#include "common/cleanup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Precedes each card. */
struct head {
    int32_t status, os_error, blamed;
};

cddp_status cdi_comm_give_up(cddp_comm *comm, const char *what, struct cdi_error *err)
{
    struct cdi_error why, told;

    (void)cdi_fail(&why, CDDP_E_NOMEM, "%s could not %s: it has no memory to compare itself with %d ranks",
                   cdi_comm_who(comm, cdi_comm_world(comm)->rank).text, what, cdi_comm_world(comm)->size);
    told = why;
    told.status = CDDP_E_ABORTED;
    cdi_comm_ops(comm)->abort(cdi_comm_backend(comm), &told);
    if (err != NULL)
        *err = why;
    return why.status;
}

/* Broadcasts the text of the first rank that has failed. */
static cddp_status share_failure(cddp_comm *comm, int failed, const struct head *head, const struct cdi_error *local,
                                 struct cdi_error *err)
{
    char text[CDI_ERROR_TEXT] = "";
    cddp_status st;

    if (local != NULL && failed == cdi_comm_world(comm)->rank)
        memcpy(text, local->msg, sizeof text);
    st = cdi_comm_broadcast(comm, text, sizeof text, CDDP_UINT8, failed, err);
    if (st != CDDP_OK)
        return st;
    *err = (struct cdi_error){.status = (cddp_status)head->status,
                              .blamed =
                                  head->blamed > 0 ? head->blamed : cdi_rank_of_job(cdi_comm_world(comm), failed) + 1,
                              .os_error = head->os_error};
    memcpy(err->msg, text, sizeof text - 1);
    return CDDP_OK;
}

cddp_status cdi_comm_exchange(cddp_comm *comm, const char *what, const void *mine, size_t bytes, void **cards,
                              const struct cdi_error *local, int *failed, struct cdi_error *err)
{
    size_t world = (size_t)cdi_comm_world(comm)->size, each = sizeof(struct head) + bytes;
    CDI_AUTOFREE char *send = calloc(1, each);
    CDI_AUTOFREE char *all = calloc(world, each);
    struct head head = {0};
    cddp_status st;

    *failed = -1;
    if (cards != NULL)
        *cards = NULL;
    if (send == NULL || all == NULL)
        return cdi_comm_give_up(comm, what, err);
    if (local != NULL)
        head = (struct head){local->status, local->os_error, local->blamed};
    else if (bytes > 0)
        memcpy(send + sizeof head, mine, bytes);
    memcpy(send, &head, sizeof head);
    st = cdi_comm_all_gather(comm, send, all, each, CDDP_UINT8, err);
    if (st != CDDP_OK)
        return st;
    for (size_t r = 0; r < world; r++) {
        memcpy(&head, all + r * each, sizeof head);
        if (head.status == CDDP_OK)
            continue;
        *failed = (int)r;
        return share_failure(comm, *failed, &head, local, err);
    }
    for (size_t r = 0; r < world; r++)
        memmove(all + r * bytes, all + r * each + sizeof head, bytes);
    if (cards != NULL)
        *cards = cdi_steal(&all);
    return CDDP_OK;
}

cddp_status cdi_comm_agree(cddp_comm *comm, const char *what, const void *mine, size_t bytes, void **cards,
                           const struct cdi_error *local, struct cdi_error *err)
{
    char text[CDI_ERROR_TEXT + 128];
    struct cdi_error why;
    int failed;
    cddp_status st = cdi_comm_exchange(comm, what, mine, bytes, cards, local, &failed, &why);

    if (st == CDDP_OK && failed < 0)
        return CDDP_OK;
    if (local != NULL) {
        *err = *local;
        return err->status;
    }
    if (st == CDDP_OK) {
        (void)snprintf(text, sizeof text, "%.60s could not %s: %s", cdi_comm_who(comm, failed).text, what, why.msg);
        st = cdi_fail_told(err, why.blamed, why.status, text);
        err->os_error = why.os_error;
        return st;
    }
    *err = why;
    return st;
}
