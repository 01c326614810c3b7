/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks begin a save or a load: a failure on one of them becomes the same error on all, and options, items and step
 * that must be the same on all ranks are compared. One collective in the good case.
 */
#include "worker/comm/agree.h"
#include "common/cleanup.h"
#include "common/crc64.h"
#include "worker/checkpoint/items.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Broadcasts one rank's text. */
static cddp_status agree_broadcast_text(cddp_comm *comm, int root, char *text, size_t cap, struct cdi_error *err)
{
    return cdi_comm_broadcast(comm, text, cap, CDDP_UINT8, root, err);
}

static uint64_t hash_item(const cddp_checkpoint_item *item)
{
    const uint64_t numbers[] = {item->bytes, (uint64_t)item->kind, item->flags};

    return cdi_crc64(cdi_crc64(0, item->name, strlen(item->name) + 1), numbers, sizeof numbers);
}

static void item_text(char *text, size_t cap, const cddp_checkpoint_item *const *items, size_t n_items, uint64_t k)
{
    if (k >= n_items)
        (void)snprintf(text, cap, "nothing");
    else if (items[k]->kind == CDDP_ITEM_MEMORY)
        (void)snprintf(text, cap, "'%s' of %zu bytes%s", items[k]->name, items[k]->bytes,
                       items[k]->flags != 0 ? " of each rank" : "");
    else
        (void)snprintf(text, cap, "'%s', %s", items[k]->name, cdi_checkpoint_kind_name((unsigned)items[k]->kind));
}

#define BLOCK 512u /* hashes that are compared at once */

/* The same with its bytes, if they are on the host. */
static uint64_t hash_content(const cddp_comm *comm, const cddp_checkpoint_item *item)
{
    bool is_here = item->bytes > 0 && !cdi_backend_is_device(cdi_comm_ops(comm), cdi_comm_backend(comm), item->data);

    return cdi_crc64(hash_item(item), item->data, is_here ? item->bytes : 0);
}

/*
 * Finds, in a collective, the first item that differs between `other` and rank 0. *first is rank 0's number of items if
 * there is none.
 */
static cddp_status agree_find_difference(cddp_comm *comm, int other, const cddp_checkpoint_item *const *items,
                                         size_t n_items, bool by_content, uint64_t *first, struct cdi_error *err)
{
    uint64_t n = n_items, hashes[BLOCK], own[BLOCK] = {0};
    cddp_status st = cdi_comm_broadcast(comm, &n, 1, CDDP_UINT64, 0, err);

    *first = 0;

    for (uint64_t k = 0; k < n && st == CDDP_OK; k++) {
        uint64_t in_block = k % BLOCK, more = n - k < BLOCK ? n - k : BLOCK;

        for (uint64_t i = 0; in_block == 0 && i < more; i++)
            own[i] = hashes[i] = k + i >= n_items ? 0
                                 : by_content     ? hash_content(comm, items[k + i])
                                                  : hash_item(items[k + i]);
        if (in_block == 0)
            st = cdi_comm_broadcast(comm, hashes, more, CDDP_UINT64, 0, err);
        *first += *first == k && k < n_items && hashes[in_block] == own[in_block];
    }
    return st == CDDP_OK ? cdi_comm_broadcast(comm, first, 1, CDDP_UINT64, other, err) : st;
}

/* Names, in a collective, the first item that `other` has and rank 0 does not. All ranks know that the items differ. */
static cddp_status agree_name_difference(cddp_comm *comm, int other, const cddp_checkpoint_item *const *items,
                                         size_t n_items, struct cdi_error *err)
{
    uint64_t first;
    char root_text[320] = "", other_text[320] = "";
    cddp_status st = agree_find_difference(comm, other, items, n_items, false, &first, err);

    if (st != CDDP_OK)
        return st;
    item_text(root_text, sizeof root_text, items, n_items, first);
    item_text(other_text, sizeof other_text, items, n_items, first);
    st = agree_broadcast_text(comm, 0, root_text, sizeof root_text, err);
    if (st == CDDP_OK)
        st = agree_broadcast_text(comm, other, other_text, sizeof other_text, err);
    if (st != CDDP_OK)
        return st;
    return cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(comm), other), CDDP_E_MISMATCH,
                       "checkpoint: the ranks' items differ: the first one that should have the same name on all "
                       "ranks, but does not, is %s on rank 0 and %s on %s",
                       root_text, other_text, cdi_comm_who(comm, other).text);
}

/*
 * With CDDP_DEBUG=1 rank 0 logs, once, an item of which its value is saved and another rank's is different. A correct
 * program may have such items. A collective: all ranks know that `other` differs.
 */
static cddp_status agree_warn(cddp_comm *comm, int other, const struct cdi_shared *shared, struct cdi_error *err)
{
    static atomic_flag has_warned = ATOMIC_FLAG_INIT;
    uint64_t first;
    cddp_status st = agree_find_difference(comm, other, shared->items, shared->n, true, &first, err);

    if (st == CDDP_OK && cddp_rank(comm) == 0 && first < shared->n && !atomic_flag_test_and_set(&has_warned))
        cddp_logf(comm, CDDP_LOG_RANK0, CDDP_LOG_WARN,
                  "checkpoint: item '%s' differs between rank 0 and %s, and rank 0's is saved for all ranks: if it "
                  "should differ, give it CDDP_ITEM_PER_RANK",
                  shared->items[first]->name, cdi_comm_who(comm, other).text);
    return st;
}

/* What the ranks compare. */
struct card {
    struct cdi_terms terms;
    uint64_t content; /* a hash of the shared items; 0: not to be compared */
    uint64_t hash;    /* of the items with the same names on all ranks */
};

/* Compares what the call has beside items. All ranks have all cards. */
static cddp_status agree_terms(cddp_comm *comm, const struct card *all, struct cdi_error *err)
{
    for (int r = 1; r < cddp_world_size(comm); r++) {
        const struct cdi_terms *a = &all[0].terms, *b = &all[r].terms;
        bool has_steps = a->by_all && b->by_all;
        const struct {
            const char *name;
            uint64_t a, b;
        } of[] = {{"cddp_checkpoint_save's step", has_steps ? a->step : 0, has_steps ? b->step : 0},
                  {"cddp_checkpoint_options.keep", (uint64_t)a->keep, (uint64_t)b->keep},
                  {"cddp_checkpoint_options.background", a->background, b->background},
                  {"cddp_checkpoint_options.flags", a->flags, b->flags}};
        const struct cdi_who who = cdi_comm_who(comm, r);
        int blamed = cdi_rank_of_job(cdi_comm_world(comm), r);

        for (size_t k = 0; k < sizeof of / sizeof of[0]; k++)
            if (of[k].a != of[k].b)
                return cdi_fail_by(err, blamed, CDDP_E_MISMATCH,
                                   k == 1 ? "checkpoint: %s is %" PRId64 " on rank 0 but %" PRId64 " on %s"
                                          : "checkpoint: %s is %" PRIu64 " on rank 0 but %" PRIu64 " on %s",
                                   of[k].name, of[k].a, of[k].b, who.text);
        if (a->file != b->file)
            return cdi_fail_by(err, blamed, CDDP_E_SYSTEM,
                               "checkpoint: %s finds another one of the same step than rank 0: all ranks read it, "
                               "so they need a directory that they share",
                               who.text);
    }
    return CDDP_OK;
}

cddp_status cdi_checkpoint_agree(cddp_comm *comm, cddp_status mine, const struct cdi_terms *terms,
                                 const cddp_checkpoint_item *const *items, size_t n_items,
                                 const struct cdi_shared *shared, struct cdi_error *err)
{
    struct card card = {.terms = terms != NULL ? *terms : (struct cdi_terms){0}};
    CDI_AUTOFREE void *cards = NULL;
    const struct card *all;
    struct cdi_error why;
    int failed;
    cddp_status st;

    for (size_t i = 0; i < n_items && mine == CDDP_OK; i++) {
        const uint64_t pair[] = {card.hash, hash_item(items[i])};

        card.hash = cdi_crc64(0, pair, sizeof pair);
    }
    for (size_t i = 0; shared != NULL && i < shared->n && mine == CDDP_OK; i++) {
        const uint64_t pair[] = {card.content, hash_content(comm, shared->items[i])};

        card.content = cdi_crc64(0, pair, sizeof pair);
    }
    st = cdi_comm_exchange(comm, "save or load a checkpoint", &card, sizeof card, &cards, mine == CDDP_OK ? NULL : err,
                           &failed, &why);
    if (mine != CDDP_OK && (st != CDDP_OK || failed == cddp_rank(comm)))
        return mine;
    if (st != CDDP_OK) {
        *err = why;
        return st;
    }
    if (failed >= 0) {
        st = cdi_fail_by(err, why.blamed - 1, why.status, failed == 0 ? "%s" : "%.980s, on %s", why.msg,
                         cdi_comm_who(comm, failed).text);
        err->os_error = why.os_error;
        return st;
    }
    all = cards;
    if (agree_terms(comm, all, err) != CDDP_OK)
        return err->status;
    for (int r = 1; r < cddp_world_size(comm); r++)
        if (all[r].hash != all[0].hash)
            return agree_name_difference(comm, r, items, n_items, err);
    for (int r = 1; r < cddp_world_size(comm); r++)
        if (all[r].terms.history != all[0].terms.history)
            return cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(comm), r), CDDP_E_MISMATCH,
                               "checkpoint: the steps of an optimizer were others on %s than on %s: one called "
                               "cddp_optim_skip, or gave another lr, grad_scale, max_norm or flags",
                               cdi_comm_who(comm, r).text, cdi_comm_who(comm, 0).text);
    for (int r = 1; r < cddp_world_size(comm); r++)
        if (all[0].content != 0 && all[r].content != 0 && all[r].content != all[0].content)
            return agree_warn(comm, r, shared != NULL ? shared : &(struct cdi_shared){0}, err);
    return CDDP_OK;
}
