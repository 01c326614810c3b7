/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/items.h"

#include "common/env.h"
#include "worker/base/sized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX_BYTES 13 /* "[2147483647]" */

bool cdi_item_is_on_device(cddp_comm *comm, const void *p)
{
    return cdi_backend_is_device(cdi_comm_ops(comm), cdi_comm_backend(comm), p);
}

cddp_status cdi_items_drain(cddp_comm *comm, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);

    return ops->on_device ? ops->copy(cdi_comm_backend(comm), NULL, NULL, 0, err) : CDDP_OK;
}

cddp_status cdi_items_copy(cddp_comm *comm, void *to, const void *from, size_t bytes, struct cdi_error *err)
{
    if (bytes == 0)
        return CDDP_OK;
    if (cdi_item_is_on_device(comm, to) || cdi_item_is_on_device(comm, from))
        return cdi_comm_ops(comm)->copy(cdi_comm_backend(comm), to, from, bytes, err);
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): where there are bytes, there is memory */
    memcpy(to, from, bytes);
    return CDDP_OK;
}

size_t cdi_items_own_bytes(const cddp_checkpoint_item *items, size_t n_items)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n_items; i++)
        bytes += cdi_item_is_own(&items[i]) ? items[i].bytes : 0;
    return bytes;
}

/*
 * -------------------------------------------------------------------------------- the items in the program's view ----
 */

void cdi_items_release(struct cdi_items *l)
{
    free(l->all);
    free(l->memory);
    free(l->alike);
    free(l->shared.items);
    free(l->own);
    free(l->pack);
}

/* Adds item i, which this rank has to read. */
static cddp_status list_add(struct cdi_items *l, struct cdi_save *s, cddp_comm *comm, size_t i, struct cdi_error *err)
{
    const cddp_checkpoint_item *item = &l->all[i];
    size_t copies = cdi_item_is_own(item) ? (size_t)cddp_world_size(comm) + 1 : 1;

    if (cdi_checkpoint_check_item(item, i, err) != CDDP_OK)
        return err->status;
    if (item->bytes > PTRDIFF_MAX / copies || (l->bytes += item->bytes * copies) > PTRDIFF_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: items up to '%s' (%zu bytes) are more than memory can hold",
                        item->name, item->bytes);
    if (item->kind == CDDP_ITEM_MEMORY) {
        l->memory[l->n_memory++] = *item;
        return CDDP_OK;
    }
    s->states[s->n_states++] =
        (struct cdi_state){.name = item->name, .object = item->data, .comm = comm, .kind = item->kind};
    if (cdi_item_ops(&s->states[s->n_states - 1])->check(&s->states[s->n_states - 1], err) != CDDP_OK)
        return cdi_error_wrap(err, "checkpoint: item '%s'", item->name);
    return CDDP_OK;
}

cddp_status cdi_items_read(struct cdi_items *l, struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items,
                           size_t n_items, bool all, struct cdi_error *err)
{
    bool looks = all || cddp_rank(comm) == 0;
    cddp_status st = CDDP_OK;

    if ((items == NULL && n_items > 0) || n_items > CDI_CHECKPOINT_MAX_ITEMS || (looks && n_items == 0))
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: %zu items; there must be 1 to %d",
                        items == NULL ? 0 : n_items, CDI_CHECKPOINT_MAX_ITEMS);
    l->all = cdi_sized_get_list(sizeof *l->all, items, n_items, "cddp_checkpoint_item", err);
    if (l->all == NULL)
        return err->status;
    for (size_t i = 0; i < n_items; i++)
        l->by_all = l->by_all || l->all[i].kind == CDDP_ITEM_FSDP;
    all = all || l->by_all;
    looks = looks || l->by_all;
    l->n = n_items;
    l->memory = calloc(n_items + 1, sizeof *l->memory);
    l->alike = calloc(n_items + 1, sizeof *l->alike); /* NOLINT(bugprone-sizeof-expression): they are pointers */
    s->states = calloc(n_items + 1, sizeof *s->states);
    if (l->memory == NULL || l->alike == NULL || s->states == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: no memory for %zu items", n_items);
    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        bool alike = all || cdi_item_is_own(&l->all[i]) || l->all[i].kind != CDDP_ITEM_MEMORY;

        if (looks || alike)
            st = list_add(l, s, comm, i, err);
        if (alike)
            l->alike[l->n_alike++] = &l->all[i];
    }
    if (st == CDDP_OK && looks)
        st = cdi_checkpoint_check_items(l->all, n_items, false, err);
    return st;
}

cddp_status cdi_items_shared(struct cdi_items *l, struct cdi_error *err)
{
    int64_t on;
    cddp_status st = cdi_env_int_or("CDDP_DEBUG", 0, 1, 0, &on, err);

    if (st != CDDP_OK || on == 0)
        return st;
    l->shared.items = calloc(l->n + 1, sizeof *l->shared.items); /* NOLINT(bugprone-sizeof-expression): pointers */
    if (l->shared.items == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: no memory for %zu items", l->n);
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].kind == CDDP_ITEM_MEMORY && l->all[i].flags == 0 && l->all[i].name != NULL &&
            (l->all[i].data != NULL || l->all[i].bytes == 0) && l->all[i].bytes <= PTRDIFF_MAX)
            l->shared.items[l->shared.n++] = &l->all[i];
    return CDDP_OK;
}

cddp_status cdi_items_make_room(struct cdi_items *l, const cddp_comm *comm, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), own = cdi_items_own_bytes(l->memory, l->n_memory), each = 1 + own;

    l->own = own > 0 && each <= SIZE_MAX / (world + 1) ? calloc(world + 1, each) : NULL;
    if (own > 0 && l->own == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: no memory for %zu bytes of each of %zu ranks", own, world);
    return CDDP_OK;
}

/*
 * ----------------------------------------------------------------------------------- the items in the file's view ----
 */

/* Where the bytes of an item are when the file is written or read. */
enum place {
    PLACE_HERE,   /* in the program's memory */
    PLACE_BLOCK,  /* in the block */
    PLACE_DEVICE, /* on the device: in the program's memory or, for a save in the background, in the snapshot */
};

/*
 * Each rank's own items are all in the block. Items on a device stay there and are copied piece by piece. A save in the
 * background has copies, since the program continues; copies of items on the device stay there (in_snapshot), if there
 * is memory.
 */
static enum place item_place(cddp_comm *comm, const struct cdi_save *s, const cddp_checkpoint_item *item,
                             bool background)
{
    bool away = !cdi_item_is_own(item) && item->bytes > 0 && cdi_item_is_on_device(comm, item->data);

    if (away && (!background || s->snapshot != NULL))
        return PLACE_DEVICE;
    return cdi_item_is_own(item) || background ? PLACE_BLOCK : PLACE_HERE;
}

#define SNAPSHOT_ALIGN ((size_t)256)

static size_t in_snapshot(size_t bytes)
{
    return (bytes + SNAPSHOT_ALIGN - 1) / SNAPSHOT_ALIGN * SNAPSHOT_ALIGN;
}

/* Allocates device memory for copies of the items there. Without it the copies are in the block, on the host. */
static void get_snapshot(struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n_items)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n_items; i++)
        if (!cdi_item_is_own(&items[i]) && items[i].bytes > 0 && cdi_item_is_on_device(comm, items[i].data))
            bytes += in_snapshot(items[i].bytes);
    if (bytes > 0)
        s->snapshot = s->mover.ops->borrow(s->mover.b, bytes);
}

static size_t count_entries(const struct cdi_save *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_states; i++)
        n += s->states[i].n_entries;
    return n;
}

cddp_status cdi_items_expand(struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n_items,
                             bool background, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), bytes = 0, n = 0, text = 0;
    uint8_t *at, *snap;
    char *name;

    s->mover = (struct cdi_mover){cdi_comm_ops(comm), cdi_comm_backend(comm)};
    for (size_t i = 0; i < n_items && s->mover.ops->check_memory != NULL; i++)
        if (!cdi_item_is_own(&items[i]) && s->mover.ops->check_memory(s->mover.b, items[i].data, err) != CDDP_OK)
            return cdi_error_wrap(err, "checkpoint: item '%s'", items[i].name);
    if (background && s->mover.ops->borrow != NULL)
        get_snapshot(s, comm, items, n_items);
    for (size_t i = 0; i < n_items; i++) {
        size_t copies = cdi_item_is_own(&items[i]) ? world : 1;

        n += copies;
        text += copies * (strlen(items[i].name) + SUFFIX_BYTES);
        bytes += item_place(comm, s, &items[i], background) == PLACE_BLOCK ? copies * items[i].bytes : 0;
    }
    s->items = calloc(n + count_entries(s) + 1, sizeof *s->items);
    s->names = name = malloc(text + 1);
    s->block = at = malloc(bytes + 1);
    snap = s->snapshot;
    if (s->items == NULL || name == NULL || at == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a copy of %zu bytes of the checkpoint's items", bytes);
    for (size_t i = 0; i < n_items; i++) {
        size_t copies = cdi_item_is_own(&items[i]) ? world : 1;

        for (size_t r = 0; r < copies; r++) {
            cddp_checkpoint_item *to = &s->items[s->n_items++];

            *to = items[i];
            to->name = name;
            name += cdi_item_is_own(to)
                        ? snprintf(name, strlen(items[i].name) + SUFFIX_BYTES, "%s[%zu]", items[i].name, r) + 1
                        : snprintf(name, strlen(items[i].name) + 1, "%s", items[i].name) + 1;
        }
    }
    for (size_t i = 0, k = 0; i < n_items; i++) {
        enum place place = item_place(comm, s, &items[i], background);

        for (size_t r = 0; r < (cdi_item_is_own(&items[i]) ? world : 1); r++, k++) {
            if (place == PLACE_BLOCK) {
                s->items[k].data = at;
                at += items[i].bytes;
            } else if (place == PLACE_DEVICE) {
                s->items[k].flags |= CDI_ITEM_ON_DEVICE;
                if (background) {
                    s->items[k].data = snap;
                    snap += in_snapshot(items[i].bytes);
                }
            }
        }
    }
    return CDDP_OK;
}

bool cdi_item_has_pieces(const struct cdi_state *s)
{
    return cdi_item_ops(s)->pieces != NULL;
}

cddp_status cdi_items_pieces(struct cdi_pieces *p, const struct cdi_items *l, struct cdi_save *s, cddp_comm *comm,
                             struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < l->n_memory && st == CDDP_OK; i++)
        st = cdi_pieces_add_memory(p, &l->memory[i], comm, f != NULL, err);
    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++) {
        struct cdi_state *w = &s->states[i];

        if (cdi_item_has_pieces(w) && (st = cdi_item_ops(w)->pieces(w, f, p, err)) != CDDP_OK)
            st = cdi_error_wrap(err, "checkpoint: item '%s'", w->name);
        else if (!cdi_item_has_pieces(w) && f != NULL && cddp_rank(comm) == 0)
            st = cdi_item_ops(w)->begin_load(w, f, err);
        for (size_t k = 0; k < w->n_entries && f == NULL && st == CDDP_OK; k++)
            st = cdi_pieces_add(p, &w->entries[k], (struct cdi_range){w->entries[k].bytes, 0}, err);
    }
    return st == CDDP_OK && p->n > 0 ? cdi_checkpoint_check_items(p->items, p->n, true, err) : st;
}
