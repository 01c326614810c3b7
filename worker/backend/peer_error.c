/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/peer_error.h"

#include "worker/backend/who.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define WHY_MS 1000 /* between the count of a failure and its reason */
#define NAMED_RANKS_MAX 512
#define NAME_BYTES 64

void cdi_peer_error_key(const struct cdi_peer_error *w, const char *name, char key[CDI_PEER_ERROR_KEY_BYTES])
{
    (void)snprintf(key, CDI_PEER_ERROR_KEY_BYTES, "%s%s", w->prefix, name);
}

bool cdi_peer_error_has_peers(const struct cdi_peer_error *w)
{
    return w->size > 1 && w->keys->add != NULL;
}

static cddp_status peer_error_add(const struct cdi_peer_error *w, const char *name, int64_t delta, int64_t *n,
                                  struct cdi_error *err)
{
    char key[CDI_PEER_ERROR_KEY_BYTES];

    cdi_peer_error_key(w, name, key);
    return w->keys->add(w->keys->arg, key, delta, n, err);
}

/* "STATUS BLAMED text". */
void cdi_peer_error_tell(const struct cdi_peer_error *w, const struct cdi_error *why)
{
    char key[CDI_PEER_ERROR_KEY_BYTES], text[CDI_ERROR_TEXT + 64];
    int blamed = why->blamed != 0 ? why->blamed : (w->ranks != NULL ? w->ranks[w->rank] : w->rank) + 1;
    int64_t n = 0;

    if (!cdi_peer_error_has_peers(w))
        return;
    if (why->status == CDDP_E_ABORTED)
        (void)snprintf(text, sizeof text, "%d %d %s", (int)why->status, blamed, why->msg);
    else
        (void)snprintf(text, sizeof text, "%d %d %.60s gave up: %.960s", (int)why->status, blamed,
                       cdi_who(w->ranks, w->rank).text, why->msg);
    if (peer_error_add(w, "failed", 1, &n, NULL) != CDDP_OK || n != 1)
        return;
    cdi_peer_error_key(w, "failed/why", key);
    (void)w->keys->set(w->keys->arg, key, text, strlen(text), NULL);
}

cddp_status cdi_peer_error_heard(const struct cdi_peer_error *w, struct cdi_error *err)
{
    char key[CDI_PEER_ERROR_KEY_BYTES], text[CDI_ERROR_TEXT + 64];
    int status = CDDP_E_ABORTED, blamed = 0, at = 0;
    int64_t n = 0;
    size_t len = 0;
    cddp_status st;

    if (!cdi_peer_error_has_peers(w))
        return CDDP_OK;
    st = peer_error_add(w, "failed", 0, &n, err);
    if (st != CDDP_OK || n == 0)
        return st;
    cdi_peer_error_key(w, "failed/why", key);
    st = w->keys->get(w->keys->arg, key, text, sizeof text - 1, &len, WHY_MS, err);
    if (st != CDDP_OK)
        return st;
    text[len] = '\0';
    if (sscanf(text, "%d %d %n", &status, &blamed, &at) != 2 || status >= 0)
        status = CDDP_E_ABORTED;
    return cdi_fail_by(err, blamed - 1, (cddp_status)status, "%.1000s", text + at);
}

static bool can_name_ranks(const struct cdi_peer_error *w)
{
    return cdi_peer_error_has_peers(w) && w->size <= NAMED_RANKS_MAX;
}

void cdi_peer_error_tell_place(const struct cdi_peer_error *w, const char *series, struct cdi_peer_place *p,
                               uint64_t number)
{
    char name[NAME_BYTES];

    if (p->told == number)
        return;
    p->told = number;
    (void)snprintf(name, sizeof name, "%s/%d", series, w->rank);
    if (can_name_ranks(w) && peer_error_add(w, name, (int64_t)(number - p->sum), NULL, NULL) == CDDP_OK)
        p->sum = number;
}

bool cdi_peer_error_late(const struct cdi_peer_error *w, const char *series, uint64_t number,
                         struct cdi_rank_list *late)
{
    const struct timespec moment = {.tv_nsec = 2 * CDI_PEER_TELL_MS * 1000000};
    struct cdi_rank_list found = {0};
    char name[NAME_BYTES];
    int64_t n;

    if (!can_name_ranks(w))
        return false;
    (void)nanosleep(&moment, NULL);
    for (int r = 0; r < w->size; r++) {
        (void)snprintf(name, sizeof name, "%s/%d", series, r);
        if (r == w->rank)
            continue;
        if (peer_error_add(w, name, 0, &n, NULL) != CDDP_OK)
            return false;
        if ((uint64_t)n < number)
            cdi_rank_list_add(&found, r);
    }
    *late = found;
    return true;
}
