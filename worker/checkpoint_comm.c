/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collective calls over checkpoint files: rank 0 writes and reads, all ranks get its result and its bytes. An item
 * of which each rank has its own is so many items in the file: NAME[0], NAME[1], ...
 */
#include "common/cleanup.h"
#include "common/crc64.h"
#include "worker/checkpoint.h"
#include "worker/comm.h"
#include "worker/saver.h"
#include "worker/sized.h"

#include <stdio.h>
#include <string.h>

#define SUFFIX_BYTES 13 /* "[2147483647]" */

/* Rank 0's result, for all. */
struct verdict {
    int32_t status;
    int32_t os_error;
    char msg[CDI_ERROR_TEXT];
    uint64_t own_bytes;       /* a save: of the items of which each rank has its own */
    uint64_t step, n_damaged; /* a load: cddp_checkpoint_info */
    char damaged[sizeof((cddp_checkpoint_info *)NULL)->damaged];
};

static cddp_status share(cddp_comm *comm, struct verdict *v, struct cdi_error *err)
{
    cddp_status st;

    if (cddp_rank(comm) == 0 && v->status != CDDP_OK)
        memcpy(v->msg, err->msg, sizeof v->msg), v->os_error = err->os_error;
    st = cdi_comm_broadcast(comm, v, sizeof *v, CDDP_UINT8, 0, err);
    if (st != CDDP_OK)
        return st;
    if (v->status == CDDP_OK)
        return CDDP_OK;
    (void)cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(comm), 0), (cddp_status)v->status, "%s", v->msg);
    err->os_error = v->os_error;
    return err->status;
}

cddp_status cdi_checkpoint_share(cddp_comm *comm, cddp_status status, struct cdi_error *err)
{
    struct verdict v = {.status = status};

    return share(comm, &v, err);
}

static bool is_own(const cddp_checkpoint_item *item)
{
    return (item->flags & CDDP_ITEM_PER_RANK) != 0;
}

static bool is_on_device(cddp_comm *comm, const void *p)
{
    return cdi_comm_ops(comm)->is_device(cdi_comm_backend(comm), p);
}

/* What was enqueued is done: what is on a device may be moved. */
static cddp_status settle(cddp_comm *comm, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);

    return ops->on_device ? ops->copy(cdi_comm_backend(comm), NULL, NULL, 0, err) : CDDP_OK;
}

static cddp_status copy(cddp_comm *comm, void *to, const void *from, size_t bytes, struct cdi_error *err)
{
    if (bytes == 0)
        return CDDP_OK;
    if (is_on_device(comm, to) || is_on_device(comm, from))
        return cdi_comm_ops(comm)->copy(cdi_comm_backend(comm), to, from, bytes, err);
    memcpy(to, from, bytes);
    return CDDP_OK;
}

/* Bytes of one rank's own items. */
static size_t own_bytes(const cddp_checkpoint_item *items, size_t n_items)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n_items; i++)
        bytes += is_own(&items[i]) ? items[i].bytes : 0;
    return bytes;
}

/* ---------------------------------------------------------------------------------- the items as files see them ----
 */

/* Where the bytes of an item are for the file. */
enum place {
    PLACE_HERE,  /* where the program has them */
    PLACE_BLOCK, /* in the block */
    PLACE_AWAY,  /* on the device, where the program has them or, of a save in the background, in the snapshot */
};

/*
 * Each rank's own are in the block, all of them. What is on a device stays there and is moved piece by piece. A save in
 * the background has copies, since the program goes on: of what is on the device there (in_snapshot), if there is room.
 */
static enum place place_of(cddp_comm *comm, const struct cdi_save *s, const cddp_checkpoint_item *item, bool background)
{
    bool away = !is_own(item) && item->bytes > 0 && is_on_device(comm, item->data);

    if (away && (!background || s->snapshot != NULL))
        return PLACE_AWAY;
    return is_own(item) || background ? PLACE_BLOCK : PLACE_HERE;
}

#define SNAPSHOT_ALIGN ((size_t)256)

static size_t in_snapshot(size_t bytes)
{
    return (bytes + SNAPSHOT_ALIGN - 1) / SNAPSHOT_ALIGN * SNAPSHOT_ALIGN;
}

/* Room on the device for a copy of what is there. Without it the copies are in the block, on the host. */
static void get_snapshot(struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n_items)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n_items; i++)
        if (!is_own(&items[i]) && items[i].bytes > 0 && is_on_device(comm, items[i].data))
            bytes += in_snapshot(items[i].bytes);
    if (bytes > 0)
        s->snapshot = s->mover.ops->borrow(s->mover.b, bytes);
}

/*
 * Rank 0's list for the file: an item of each rank's own once for each rank. Names are copied, and each item has its
 * memory, which is not filled yet.
 */
static cddp_status expand(struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n_items,
                          bool background, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), bytes = 0, n = 0, text = 0;
    uint8_t *at, *snap;
    cddp_status st;
    char *name;

    s->mover = (struct cdi_mover){cdi_comm_ops(comm), cdi_comm_backend(comm)};
    for (size_t i = 0; i < n_items && s->mover.ops->check_memory != NULL; i++)
        if (!is_own(&items[i]) && s->mover.ops->check_memory(s->mover.b, items[i].data, err) != CDDP_OK)
            return cdi_error_wrap(err, "checkpoint: item '%s'", items[i].name);
    if (background && s->mover.ops->borrow != NULL)
        get_snapshot(s, comm, items, n_items);
    for (size_t i = 0; i < n_items; i++) {
        size_t copies = is_own(&items[i]) ? world : 1;

        n += copies;
        text += copies * (strlen(items[i].name) + SUFFIX_BYTES);
        bytes += place_of(comm, s, &items[i], background) == PLACE_BLOCK ? copies * items[i].bytes : 0;
    }
    s->items = calloc(n + 1, sizeof *s->items);
    s->names = name = malloc(text + 1);
    s->block = at = malloc(bytes + 1);
    snap = s->snapshot;
    if (s->items == NULL || name == NULL || at == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a copy of %zu bytes of the checkpoint's items", bytes);
    for (size_t i = 0; i < n_items; i++) {
        size_t copies = is_own(&items[i]) ? world : 1;

        for (size_t r = 0; r < copies; r++) {
            cddp_checkpoint_item *to = &s->items[s->n_items++];

            *to = items[i];
            to->name = name;
            name += is_own(to) ? snprintf(name, strlen(items[i].name) + SUFFIX_BYTES, "%s[%zu]", items[i].name, r) + 1
                               : snprintf(name, strlen(items[i].name) + 1, "%s", items[i].name) + 1;
        }
    }
    st = cdi_checkpoint_check_items(s->items, s->n_items, err);
    for (size_t i = 0, k = 0; i < n_items && st == CDDP_OK; i++) {
        enum place place = place_of(comm, s, &items[i], background);

        for (size_t r = 0; r < (is_own(&items[i]) ? world : 1); r++, k++) {
            if (place == PLACE_BLOCK) {
                s->items[k].data = at;
                at += items[i].bytes;
            } else if (place == PLACE_AWAY) {
                s->items[k].flags |= CDI_ITEM_AWAY;
                if (background) {
                    s->items[k].data = snap;
                    snap += in_snapshot(items[i].bytes);
                }
            }
        }
    }
    return st;
}

/* ---------------------------------------------------------------------------------------------------- saving ---- */

/* The ranks' own items must be the same ones: a hash of their names and sizes. */
static uint64_t hash_own(const cddp_checkpoint_item *items, size_t n_items)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < n_items; i++) {
        if (!is_own(&items[i]))
            continue;
        hash = cdi_crc64(hash, items[i].name, strlen(items[i].name) + 1);
        hash = cdi_crc64(hash, &items[i].bytes, sizeof items[i].bytes);
    }
    return hash;
}

/*
 * All ranks' own items, behind one another by rank: the hash, then the bytes. A rank whose items are others has nothing
 * but its hash to give, and all are told.
 */
static cddp_status gather_own(uint8_t **all, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n_items,
                              size_t own, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), each = sizeof(uint64_t) + own;
    bool is_list = cdi_checkpoint_check_items(items, n_items, NULL) == CDDP_OK;
    uint64_t hash = is_list ? hash_own(items, n_items) : 0, root;
    CDI_AUTOFREE uint8_t *mine = calloc(1, each);
    uint8_t *at = mine;
    cddp_status st = CDDP_OK;

    *all = malloc(world * each);
    if (*all == NULL || mine == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: no memory for %zu bytes of each of %zu ranks", own, world);
    memcpy(at, &hash, sizeof hash);
    at += sizeof hash;
    for (size_t i = 0; i < n_items && st == CDDP_OK && is_list && own_bytes(items, n_items) == own; i++) {
        if (!is_own(&items[i]))
            continue;
        st = copy(comm, at, items[i].data, items[i].bytes, err);
        at += items[i].bytes;
    }
    if (st == CDDP_OK)
        st = cdi_comm_all_gather(comm, mine, *all, each, CDDP_UINT8, err);
    memcpy(&root, *all, sizeof root);
    for (size_t r = 1; r < world && st == CDDP_OK; r++)
        if (memcmp(*all + r * each, &root, sizeof root) != 0)
            return cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(comm), (int)r), CDDP_E_MISMATCH,
                               "checkpoint: rank %zu's items with CDDP_ITEM_PER_RANK are not those of rank 0 in name, "
                               "size or order",
                               r);
    return st;
}

/* Fill rank 0's list: shared items from the user's memory, the others from what was gathered. */
static cddp_status fill(struct cdi_save *s, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n_items,
                        const uint8_t *own, size_t own_each, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), at = sizeof(uint64_t), k = 0;
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n_items && st == CDDP_OK; i++) {
        if (!is_own(&items[i])) {
            if (s->items[k].data != items[i].data)
                st = copy(comm, s->items[k].data, items[i].data, items[i].bytes, err);
            k++;
            continue;
        }
        for (size_t r = 0; r < world; r++, k++)
            if (own != NULL && items[i].bytes > 0)
                memcpy(s->items[k].data, own + r * own_each + at, items[i].bytes);
        at += items[i].bytes;
    }
    return st;
}

static cddp_status save_on_root(cddp_comm *comm, struct cdi_save *s, const cddp_checkpoint_item *items, size_t n_items,
                                const uint8_t *own, size_t own_each, bool background, struct cdi_error *err)
{
    cddp_status st = s->dir == NULL ? cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory")
                                    : expand(s, comm, items, n_items, background, err);

    if (st == CDDP_OK)
        st = settle(comm, err);
    if (st == CDDP_OK)
        st = fill(s, comm, items, n_items, own, own_each, err);
    if (st != CDDP_OK)
        return st;
    return background ? cdi_saver_start(cdi_comm_saver(comm), s, err)
                      : cdi_checkpoint_write(s->dir, s->step, s->items, s->n_items, s->keep, &s->mover, err);
}

/* What the program says, or NULL, with defaults. */
static cddp_status read_options(cddp_checkpoint_options *opt, const cddp_checkpoint_options *said,
                                struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    *opt = (cddp_checkpoint_options){.size = sizeof *opt};
    if (said != NULL)
        st = cdi_sized_get(opt, sizeof *opt, said, "cddp_checkpoint_options", err);
    if (opt->keep < 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_checkpoint_options.keep is negative");
    if (opt->keep == 0)
        opt->keep = 2;
    return st;
}

static cddp_status check_place(const cddp_comm *comm, const char *dir, struct cdi_error *err)
{
    if (comm == NULL || dir == NULL || *dir == '\0')
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: no communicator or no directory");
    return CDDP_OK;
}

cddp_status cdi_checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                                size_t n_items, const cddp_checkpoint_options *opt, struct cdi_error *err)
{
    bool is_root;
    CDI_AUTOFREE cddp_checkpoint_item *list = NULL;
    CDI_AUTOFREE uint8_t *own = NULL;
    cddp_checkpoint_options how;
    struct cdi_error unread;
    struct verdict v = {0};
    cddp_status st = check_place(comm, dir, err);

    if (st != CDDP_OK)
        return st;
    list = cdi_checkpoint_join(items, n_items, NULL, 0, &unread);
    is_root = cddp_rank(comm) == 0;
    if (is_root) {
        v.status = read_options(&how, opt, err);
        if (v.status == CDDP_OK && list == NULL) {
            *err = unread;
            v.status = unread.status;
        }
        if (v.status == CDDP_OK)
            v.status = cdi_checkpoint_check_items(list, n_items, err);
        if (v.status == CDDP_OK)
            v.status = cdi_saver_wait(*cdi_comm_saver(comm), err);
        v.own_bytes = v.status == CDDP_OK && list != NULL ? own_bytes(list, n_items) : 0;
    }
    st = share(comm, &v, err);
    if (st == CDDP_OK) /* also where rank 0 has none: another rank may have some */
        st = gather_own(&own, comm, list, list == NULL ? 0 : n_items, v.own_bytes, err);
    if (st != CDDP_OK)
        return st;
    if (is_root && list != NULL) { /* else share has said why */
        struct cdi_save s = {.dir = strdup(dir), .step = step, .keep = how.keep};

        v.status = save_on_root(comm, &s, list, n_items, own, sizeof(uint64_t) + v.own_bytes, how.background != 0, err);
        cdi_save_release(&s);
    }
    return share(comm, &v, err);
}

static cddp_status wait_for_save(cddp_comm *comm, struct cdi_error *err)
{
    struct verdict v = {0};

    if (comm == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: no communicator");
    if (cddp_rank(comm) == 0)
        v.status = cdi_saver_wait(*cdi_comm_saver(comm), err);
    return share(comm, &v, err);
}

/* --------------------------------------------------------------------------------------------------- loading ---- */

/*
 * Read `alone`, and behind it rank 0's list. All of it is in one whole file, or nothing is changed. present: of each,
 * is it there?
 */
static cddp_status read_list(struct cdi_save *s, cddp_comm *comm, const char *dir, const cddp_checkpoint_item *alone,
                             size_t n_alone, const cddp_checkpoint_item *items, size_t n_items, uint8_t **present,
                             cddp_checkpoint_info *info, struct cdi_error *err)
{
    CDI_AUTOFREE cddp_checkpoint_item *all = NULL;
    cddp_status st = n_items > 0 ? expand(s, comm, items, n_items, false, err) : CDDP_OK;

    if (st == CDDP_OK)
        st = settle(comm, err);
    if (st != CDDP_OK)
        return st;
    *present = calloc(n_alone + s->n_items + 1, 1);
    all = calloc(n_alone + s->n_items + 1, sizeof *all);
    if (*present == NULL || all == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
    if (n_alone > 0)
        memcpy(all, alone, n_alone * sizeof *all);
    if (s->n_items > 0)
        memcpy(all + n_alone, s->items, s->n_items * sizeof *all);
    return cdi_checkpoint_read(dir, all, n_alone + s->n_items, *present, &s->mover, info, err);
}

/* Of one item, what each rank saved, from rank 0's list from k on (elsewhere NULL); a byte says whether it did. */
static cddp_status give_own(cddp_comm *comm, const struct cdi_save *s, size_t k, const uint8_t *present,
                            const cddp_checkpoint_item *item, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), each = 1 + item->bytes;
    CDI_AUTOFREE uint8_t *all = calloc(world, each);
    const uint8_t *mine;
    cddp_status st;

    if (all == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: no memory for %zu bytes of each of %zu ranks", item->bytes,
                        world);
    mine = all + (size_t)cddp_rank(comm) * each;
    for (size_t r = 0; r < world && present != NULL && s->items != NULL; r++) {
        all[r * each] = present[k + r];
        if (present[k + r] && item->bytes > 0)
            memcpy(all + r * each + 1, s->items[k + r].data, item->bytes);
    }
    st = cdi_comm_broadcast(comm, all, world * each, CDDP_UINT8, 0, err);
    return st == CDDP_OK && mine[0] != 0 ? copy(comm, item->data, mine + 1, item->bytes, err) : st;
}

static cddp_status give_all(cddp_comm *comm, const struct cdi_save *s, const uint8_t *present,
                            const cddp_checkpoint_item *items, size_t n_items, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    size_t k = 0;

    for (size_t i = 0; st == CDDP_OK && i < n_items; i++) {
        if (is_own(&items[i]))
            st = give_own(comm, s, k, present, &items[i], err);
        else
            st = cdi_comm_broadcast(comm, items[i].data, items[i].bytes, CDDP_UINT8, 0, err);
        k += is_own(&items[i]) ? (size_t)cddp_world_size(comm) : 1;
    }
    return st;
}

cddp_status cdi_checkpoint_peek(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *item,
                                struct cdi_error *err)
{
    cddp_checkpoint_info info;
    uint8_t present;
    cddp_status st = cdi_saver_wait(*cdi_comm_saver(comm), err);

    return st == CDDP_OK ? cdi_checkpoint_read(dir, item, 1, &present, NULL, &info, err) : st;
}

cddp_status cdi_checkpoint_move(cddp_comm *comm, enum cdi_op_kind kind, void *at, size_t bytes, int peer,
                                struct cdi_error *err)
{
    struct cdi_op op = {.kind = kind,
                        .in = at,
                        .out = at,
                        .count = bytes,
                        .dtype = CDDP_UINT8,
                        .root = peer,
                        .bucket = -1,
                        .asked = cdi_comm_asked(),
                        .lazy = true};
    uint64_t ticket;
    cddp_status st = bytes == 0 ? CDDP_OK : cdi_comm_ops(comm)->enqueue(cdi_comm_backend(comm), &op, &ticket, err);

    return bytes == 0 || st != CDDP_OK ? st : cdi_comm_ops(comm)->join(cdi_comm_backend(comm), ticket, err);
}

cddp_status cdi_checkpoint_load(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *alone, size_t n_alone,
                                const cddp_checkpoint_item *items, size_t n_items, cddp_checkpoint_info *info,
                                struct cdi_error *err)
{
    CDI_AUTOFREE cddp_checkpoint_item *list = NULL;
    CDI_AUTOFREE uint8_t *present = NULL;
    cddp_checkpoint_info found = {.size = sizeof found};
    struct cdi_save s = {0};
    struct verdict v = {0};
    cddp_status st;

    if (check_place(comm, dir, err) != CDDP_OK ||
        (info != NULL && cdi_sized_check(info, "cddp_checkpoint_info", err) != CDDP_OK))
        return err->status;
    list = cdi_checkpoint_join(items, n_items, NULL, 0, err);
    if (list == NULL || (n_items > 0 && cdi_checkpoint_check_items(list, n_items, err) != CDDP_OK))
        return err->status;
    if (cddp_rank(comm) == 0) {
        v.status = cdi_saver_wait(*cdi_comm_saver(comm), err);
        if (v.status == CDDP_OK)
            v.status = read_list(&s, comm, dir, alone, n_alone, list, n_items, &present, &found, err);
        v.step = found.step;
        v.n_damaged = found.n_damaged;
        memcpy(v.damaged, found.damaged, sizeof v.damaged);
    }
    st = share(comm, &v, err);
    if (st == CDDP_OK)
        st = give_all(comm, &s, present == NULL ? NULL : present + n_alone, list, n_items, err);
    cdi_save_release(&s);
    if (st == CDDP_OK && info != NULL) {
        found.step = v.step;
        found.n_damaged = v.n_damaged;
        memcpy(found.damaged, v.damaged, sizeof found.damaged);
        cdi_sized_put(info, &found, sizeof found);
    }
    return st;
}

cddp_status cddp_checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                                 size_t n_items, const cddp_checkpoint_options *opt)
{
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_CHECKPOINT_SAVE);
    struct cdi_error err = {.status = CDDP_OK};
    cddp_status st = cdi_comm_own("cddp_checkpoint_save", comm, &err);

    if (st == CDDP_OK)
        st = cdi_checkpoint_save(comm, dir, step, items, n_items, opt, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}

cddp_status cddp_checkpoint_wait(cddp_comm *comm)
{
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_CHECKPOINT_WAIT);
    struct cdi_error err = {.status = CDDP_OK};
    cddp_status st = cdi_comm_own("cddp_checkpoint_wait", comm, &err);

    if (st == CDDP_OK)
        st = wait_for_save(comm, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}

cddp_status cddp_checkpoint_load(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                                 cddp_checkpoint_info *info)
{
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_CHECKPOINT_LOAD);
    struct cdi_error err = {.status = CDDP_OK};
    cddp_status st = cdi_comm_own("cddp_checkpoint_load", comm, &err);

    if (st == CDDP_OK && n_items == 0)
        st = cdi_checkpoint_check_items(items, n_items, &err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_load(comm, dir, NULL, 0, items, n_items, info, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}
