/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collective calls for checkpoint files: rank 0 writes and reads, and all ranks get its result and its bytes. An
 * item of which each rank has its own is stored as one item per rank: NAME[0], NAME[1], ... For items other than memory
 * see worker/checkpoint/item.h. Everything that can fail on one rank alone is done before anything changes, and the
 * ranks report it to each other.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/float_state.h"
#include "protocol/flight.h"
#include "worker/base/sized.h"
#include "worker/checkpoint/draft.h"
#include "worker/checkpoint/items.h"
#include "worker/checkpoint/read.h"
#include "worker/comm/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Rank 0's result, sent to all. */
struct verdict {
    int32_t status;
    int32_t os_error;
    char msg[CDI_ERROR_TEXT];
    uint64_t step;               /* a load */
    char folder[CDI_DRAFT_NAME]; /* a sharded save */
    bool by_all;                 /* a load: every rank reads */
};

static cddp_status share_verdict(cddp_comm *comm, struct verdict *v, struct cdi_error *err)
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

/* ---------------------------------------------------------------------------------------------------- saving ---- */

/* Gathers all ranks' own items, ordered by rank. */
static cddp_status gather_own(struct cdi_items *l, cddp_comm *comm, struct cdi_error *err)
{
    size_t each = cdi_items_own_bytes(l->memory, l->n_memory);
    uint8_t *mine, *at;
    cddp_status st = CDDP_OK;

    if (each == 0)
        return CDDP_OK;
    at = mine = l->own + (size_t)cddp_world_size(comm) * each;
    for (size_t i = 0; i < l->n_memory && st == CDDP_OK; i++) {
        if (!cdi_item_is_own(&l->memory[i]))
            continue;
        st = cdi_items_copy(comm, at, l->memory[i].data, l->memory[i].bytes, err);
        at += l->memory[i].bytes;
    }
    return st == CDDP_OK ? cdi_comm_all_gather(comm, mine, l->own, each, CDDP_UINT8, err) : st;
}

/* Fills the list for a file: shared items from the user's memory, the others from what was gathered. */
static cddp_status checkpoint_fill_list(struct cdi_save *s, cddp_comm *comm, const struct cdi_items *l,
                                        struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), each = cdi_items_own_bytes(l->memory, l->n_memory), at = 0, k = 0;
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < l->n_memory && st == CDDP_OK; i++) {
        const cddp_checkpoint_item *item = &l->memory[i];

        if (!cdi_item_is_own(item)) {
            if (s->items[k].data != item->data)
                st = cdi_items_copy(comm, s->items[k].data, item->data, item->bytes, err);
            k++;
            continue;
        }
        for (size_t r = 0; r < world; r++, k++)
            if (item->bytes > 0)
                memcpy(s->items[k].data, l->own + r * each + at, item->bytes);
        at += item->bytes;
    }
    return st;
}

/* Makes the list for a file of what is memory, with copies for a save in the background. */
static cddp_status checkpoint_take(struct cdi_save *s, cddp_comm *comm, const struct cdi_items *l, bool background,
                                   struct cdi_error *err)
{
    cddp_status st = cdi_items_expand(s, comm, l->memory, l->n_memory, background, err);

    if (st == CDDP_OK)
        st = cdi_items_drain(comm, err);
    return st == CDDP_OK ? checkpoint_fill_list(s, comm, l, err) : st;
}

/* Appends the states' entries to those that are memory. */
static void append_entries(struct cdi_save *s)
{
    for (size_t i = 0; i < s->n_states; i++) {
        const struct cdi_state *w = &s->states[i];

        if (w->n_entries > 0)
            memcpy(s->items + s->n_items, w->entries, w->n_entries * sizeof *s->items);
        s->n_items += w->n_entries;
    }
}

/* ---------------------------------------------------------------------------------------------- by all ranks ---- */

/* Prepares the file of this rank, with copies of the items for a save in the background. */
static cddp_status prepare_shard(struct cdi_save *s, cddp_comm *comm, const struct cdi_items *l, bool background,
                                 struct cdi_error *err)
{
    struct cdi_pieces p = {0};
    cddp_status st = cdi_items_pieces(&p, l, s, comm, NULL, err);

    cdi_pieces_pack(&p);
    if (st == CDDP_OK)
        st = checkpoint_take(s, comm, &(struct cdi_items){.memory = p.items, .n_memory = p.n}, background, err);
    s->ranges = p.ranges;
    p.ranges = NULL;
    cdi_pieces_release(&p);
    return st;
}

/* Makes all ranks return the error of one of them. A collective. */
static cddp_status checkpoint_agree(cddp_comm *comm, cddp_status mine, struct cdi_error *err)
{
    return cdi_checkpoint_agree(comm, mine, NULL, NULL, 0, NULL, err);
}

/* Removes what was written, before any rank returns the error. A collective. */
static cddp_status give_up(cddp_comm *comm, struct cdi_save *s, cddp_status st)
{
    struct verdict v = {0};
    struct cdi_error ignored;

    cdi_draft_drop(s->draft);
    s->draft = NULL;
    (void)share_verdict(comm, &v, &ignored);
    return st;
}

static cddp_status save_by_all(cddp_comm *comm, struct cdi_save *s, const struct cdi_items *l, bool background,
                               struct cdi_error *err)
{
    struct verdict v = {0};
    bool is_root = cddp_rank(comm) == 0;
    cddp_status st;

    s->comm = comm;
    if (is_root)
        v.status = cdi_draft_begin(&s->draft, s->dir, s->step, err);
    if (s->draft != NULL)
        (void)snprintf(v.folder, sizeof v.folder, "%s", cdi_draft_name(s->draft));
    st = share_verdict(comm, &v, err);
    if (st != CDDP_OK)
        return st;
    memcpy(s->folder, v.folder, sizeof s->folder);
    st = checkpoint_agree(comm, prepare_shard(s, comm, l, background, err), err);
    if (st == CDDP_OK && background) {
        st = checkpoint_agree(comm, cdi_saver_start(cdi_comm_on_finalize(comm), s, err), err);
        if (st != CDDP_OK)
            cdi_saver_cancel(cdi_comm_on_finalize(comm)->arg);
        return st;
    }
    if (st == CDDP_OK)
        st = checkpoint_agree(comm, cdi_save_write_shard(s, err), err);
    if (st != CDDP_OK)
        return give_up(comm, s, st);
    v = (struct verdict){.status = is_root ? cdi_save_publish(s, err) : CDDP_OK};
    return share_verdict(comm, &v, err);
}

static cddp_status save_on_root(cddp_comm *comm, struct cdi_save *s, const struct cdi_items *l, bool background,
                                struct cdi_error *err)
{
    cddp_status st = checkpoint_take(s, comm, l, background, err);

    if (st != CDDP_OK)
        return st;
    append_entries(s);
    if (cdi_checkpoint_check_items(s->items, s->n_items, false, err) != CDDP_OK)
        return err->status;
    return background ? cdi_saver_start(cdi_comm_on_finalize(comm), s, err)
                      : cdi_checkpoint_write(s->dir, s->step, s->items, s->n_items, s->keep, &s->mover, err);
}

/* Reads the program's options, or NULL, with defaults. */
static cddp_status checkpoint_read_options(cddp_checkpoint_options *opt, const cddp_checkpoint_options *given,
                                           struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    *opt = (cddp_checkpoint_options){.size = sizeof *opt};
    if (given != NULL)
        st = cdi_sized_get(opt, sizeof *opt, given, "cddp_checkpoint_options", err);
    if (st == CDDP_OK && (opt->flags & ~(uint64_t)CDDP_CHECKPOINT_SHARDED) != 0)
        st = cdi_fail(err, CDDP_E_INVALID, "cddp_checkpoint_options.flags has unknown bits (%#" PRIx64 ")", opt->flags);
    if (opt->keep == 0)
        opt->keep = 2;
    return st;
}

static cddp_status check_dir(const char *dir, struct cdi_error *err)
{
    return dir != NULL && *dir != '\0' ? CDDP_OK : cdi_fail(err, CDDP_E_INVALID, "checkpoint: no directory");
}

/*
 * Collects the whole states of optimizers, reducers and samplers on rank 0. by_all: only of those that do not lie in
 * pieces. A collective.
 */
static cddp_status checkpoint_collect(struct cdi_save *s, cddp_comm *comm, bool by_all, struct cdi_error *err)
{
    struct verdict v = {0};
    cddp_status st;

    for (size_t i = 0; cddp_rank(comm) == 0 && i < s->n_states && v.status == CDDP_OK; i++)
        if (!by_all || !cdi_item_has_pieces(&s->states[i]))
            v.status = cdi_item_ops(&s->states[i])->begin_save(&s->states[i], err);
    st = share_verdict(comm, &v, err);
    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++)
        if (cdi_item_ops(&s->states[i])->collect != NULL && (!by_all || !cdi_item_has_pieces(&s->states[i])))
            st = cdi_item_ops(&s->states[i])->collect(&s->states[i], err);
    return st;
}

/* Rejects a name that a sampler uses as well, also while it does not: where ranks stand would decide on the save. */
static cddp_status check_sampler_names(const struct cdi_items *l, struct cdi_error *err)
{
    for (size_t i = 0; i < l->n; i++) {
        size_t len = strlen(l->all[i].name);

        for (size_t k = 0; k < l->n && l->all[i].kind == CDDP_ITEM_SAMPLER; k++)
            if (strncmp(l->all[k].name, l->all[i].name, len) == 0 && strcmp(l->all[k].name + len, ".ranks") == 0)
                return cdi_fail(err, CDDP_E_INVALID,
                                "checkpoint: item '%s' has the name under which the sampler '%s' stores the places of "
                                "all ranks: give one of them another name",
                                l->all[k].name, l->all[i].name);
    }
    return CDDP_OK;
}

static cddp_status checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                                   size_t n_items, const cddp_checkpoint_options *opt, struct cdi_items *l,
                                   struct cdi_save *s, struct cdi_error *err)
{
    bool is_root = cddp_rank(comm) == 0;
    cddp_checkpoint_options how = {.size = sizeof how};
    struct cdi_terms terms;
    struct verdict v = {0};
    cddp_status st = check_dir(dir, err);

    if (st == CDDP_OK)
        st = checkpoint_read_options(&how, opt, err);
    l->by_all = (how.flags & CDDP_CHECKPOINT_SHARDED) != 0;
    if (st == CDDP_OK)
        st = cdi_items_read(l, s, comm, items, n_items, l->by_all, err);
    if (st == CDDP_OK && !l->by_all)
        st = cdi_items_make_room(l, comm, err);
    if (st == CDDP_OK)
        st = cdi_saver_wait(cdi_comm_on_finalize(comm)->arg, err);
    if (st == CDDP_OK && is_root)
        st = check_sampler_names(l, err);
    if (st == CDDP_OK && is_root)
        st = cdi_checkpoint_may_write(dir, err);
    if (st == CDDP_OK)
        st = cdi_items_shared(l, err);
    s->step = step;
    s->keep = how.keep;
    if (st == CDDP_OK && (s->dir = strdup(dir)) == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
    terms = (struct cdi_terms){.step = step,
                               .flags = how.flags,
                               .background = how.background != 0,
                               .keep = how.keep < 0 ? -1 : how.keep,
                               .by_all = l->by_all};
    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++)
        if (cdi_item_ops(&s->states[i])->history != NULL)
            terms.history = terms.history * 31 + cdi_item_ops(&s->states[i])->history(&s->states[i]);
    st = cdi_checkpoint_agree(comm, st, &terms, l->alike, l->n_alike, &l->shared, err);
    if (st == CDDP_OK && !l->by_all)
        st = gather_own(l, comm, err);
    if (st == CDDP_OK)
        st = checkpoint_collect(s, comm, l->by_all, err);
    if (st == CDDP_OK && l->by_all)
        return save_by_all(comm, s, l, how.background != 0, err);
    if (st != CDDP_OK)
        return st;
    if (is_root)
        v.status = save_on_root(comm, s, l, how.background != 0, err);
    return share_verdict(comm, &v, err);
}

static cddp_status wait_for_save(cddp_comm *comm, struct cdi_error *err)
{
    return checkpoint_agree(comm, cdi_saver_wait(cdi_comm_on_finalize(comm)->arg, err), err);
}

/* --------------------------------------------------------------------------------------------------- loading ---- */

/* The checkpoint that was found. */
struct found {
    struct cdi_checkpoint_file *file; /* on rank 0; by_all: on each */
    bool by_all;                      /* every rank reads its part */
    uint8_t *present;                 /* for each of s->items: 1 if the file has it */
    cddp_checkpoint_info info;
};

/*
 * Finds the newest whole checkpoint. by_all: every rank reads it, as any that is sharded; the ranks share the work of
 * the checksums. A collective.
 */
static cddp_status checkpoint_find(struct found *f, cddp_comm *comm, const char *dir, bool by_all,
                                   struct cdi_error *err)
{
    size_t rank = (size_t)cddp_rank(comm), world = (size_t)cddp_world_size(comm);
    struct cdi_search s = {.dir = dir, .info = f->info};
    struct verdict v = {0};
    cddp_status st;

    if (rank == 0)
        v.status = cdi_search_begin(&s, dir, err);
    do {
        struct cdi_error why = {.status = CDDP_OK};
        struct cdi_terms terms = {0};

        if (rank == 0 && v.status == CDDP_OK) {
            v.step = s.steps[s.at];
            v.by_all = by_all || cdi_checkpoint_is_sharded(dir, v.step);
        }
        st = share_verdict(comm, &v, err);
        if (st != CDDP_OK)
            break;
        f->by_all = v.by_all;
        if (v.by_all || rank == 0)
            st = cdi_checkpoint_open_step(&f->file, dir, v.step, v.by_all ? rank : 0, v.by_all ? world : 1, &why);
        if (v.by_all && st == CDDP_OK)
            terms.file = cdi_checkpoint_id(f->file);
        st = cdi_checkpoint_agree(comm, st, &terms, NULL, 0, NULL, &why);
        if (st == CDDP_OK) {
            if (rank == 0)
                cdi_search_found(&s, f->file);
            f->info = s.info;
            f->info.step = v.step;
        } else {
            cdi_checkpoint_close(f->file);
            f->file = NULL;
            *err = why;
            if (st == CDDP_E_IO) /* rank 0's list and result count; the others note what is damaged, too */
                v.status = cdi_search_pass_over(&s, &why, rank == 0 ? err : NULL);
        }
    } while (st == CDDP_E_IO);
    free(s.steps);
    return st;
}

/* Checks, on rank 0, that all of it fits. Reads states; memory stays as it is. */
static cddp_status checkpoint_fits(struct found *f, struct cdi_save *s, cddp_comm *comm, const struct cdi_items *l,
                                   struct cdi_error *err)
{
    cddp_status st = cdi_items_expand(s, comm, l->memory, l->n_memory, false, err);

    if (st == CDDP_OK && s->n_items > 0)
        st = cdi_checkpoint_check_items(s->items, s->n_items, false, err);
    if (st == CDDP_OK)
        f->present = calloc(s->n_items + 1, 1);
    if (st == CDDP_OK && f->present == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
    if (st == CDDP_OK)
        st = cdi_checkpoint_fit(f->file, s->items, NULL, s->n_items, f->present, err);
    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++)
        st = cdi_item_ops(&s->states[i])->begin_load(&s->states[i], f->file, err);
    return st;
}

/* Does each rank's own checks. A collective. */
static cddp_status checkpoint_compare(struct cdi_save *s, cddp_comm *comm, struct cdi_error *err)
{
    cddp_status fit = CDDP_OK, st = CDDP_OK;
    bool any = false;

    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++) {
        const struct cdi_item_ops *ops = cdi_item_ops(&s->states[i]);
        struct cdi_error why = {.status = CDDP_OK};
        cddp_status one = CDDP_OK;

        if (ops->compare == NULL)
            continue;
        any = true;
        st = ops->compare(&s->states[i], &one, &why);
        if (st != CDDP_OK) {
            *err = why;
        } else if (fit == CDDP_OK && one != CDDP_OK) {
            fit = one;
            *err = why;
            (void)cdi_error_wrap(err, "checkpoint: item '%s'", s->states[i].name);
        }
    }
    return any && st == CDDP_OK ? cdi_checkpoint_agree(comm, fit, NULL, NULL, 0, NULL, err) : st;
}

/*
 * Distributes one item that each rank saved, from rank 0's list from k on (elsewhere there is none). A byte shows each
 * rank whether it saved the item.
 */
static cddp_status give_own(cddp_comm *comm, const struct cdi_save *s, size_t k, const uint8_t *present,
                            const cddp_checkpoint_item *item, uint8_t *all, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), each = 1 + item->bytes;
    const uint8_t *mine;
    cddp_status st;

    if (item->bytes == 0)
        return CDDP_OK;
    mine = all + (size_t)cddp_rank(comm) * each;
    for (size_t r = 0; r < world && present != NULL; r++) {
        all[r * each] = present[k + r];
        if (present[k + r])
            memcpy(all + r * each + 1, s->items[k + r].data, item->bytes);
    }
    st = cdi_comm_broadcast(comm, all, world * each, CDDP_UINT8, 0, err);
    return st == CDDP_OK && mine[0] != 0 ? cdi_items_copy(comm, item->data, mine + 1, item->bytes, err) : st;
}

/* Items of up to SMALL bytes travel together: a collective for each would take longer than their bytes. */
#define SMALL ((size_t)16 << 10)
#define PACK ((size_t)1 << 20)

/* Returns the number of items from `first` on that travel in one pack, and the bytes of these. */
static size_t count_pack(const struct cdi_items *l, size_t first, size_t *bytes)
{
    size_t n = 0;

    *bytes = 0;
    for (; first + n < l->n_memory; n++) {
        const cddp_checkpoint_item *item = &l->memory[first + n];

        if (cdi_item_is_own(item) || item->bytes > SMALL || *bytes + item->bytes > PACK)
            break;
        *bytes += item->bytes;
    }
    return n;
}

/* Distributes n items, which are `bytes` in all. A collective also if the copy fails on one rank. */
static cddp_status give_pack(cddp_comm *comm, const struct cdi_items *l, size_t first, size_t n, size_t bytes,
                             struct cdi_error *err)
{
    bool is_root = cddp_rank(comm) == 0;
    struct cdi_error why;
    cddp_status st = CDDP_OK, sent = CDDP_OK;

    for (int turn = 0; turn < 2; turn++) {
        uint8_t *at = l->pack;

        if (turn == 1)
            sent = cdi_comm_broadcast(comm, l->pack, bytes, CDDP_UINT8, 0, &why);
        for (size_t i = first; i < first + n && is_root == (turn == 0) && st == CDDP_OK && sent == CDDP_OK; i++) {
            const cddp_checkpoint_item *item = &l->memory[i];

            st = cdi_items_copy(comm, is_root ? at : item->data, is_root ? item->data : at, item->bytes, err);
            at += item->bytes;
        }
    }
    if (st == CDDP_OK && sent != CDDP_OK)
        *err = why;
    return st != CDDP_OK ? st : sent;
}

/* Distributes everything from rank 0 to all. */
static cddp_status give_all(cddp_comm *comm, struct cdi_save *s, const uint8_t *present, const struct cdi_items *l,
                            struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    size_t k = 0;

    for (size_t i = 0; st == CDDP_OK && i < l->n_memory;) {
        const cddp_checkpoint_item *item = &l->memory[i];
        size_t bytes, n = count_pack(l, i, &bytes);

        if (n > 0)
            st = give_pack(comm, l, i, n, bytes, err);
        else if (cdi_item_is_own(item))
            st = give_own(comm, s, k, present, item, l->own, err);
        else
            st = cdi_comm_broadcast(comm, item->data, item->bytes, CDDP_UINT8, 0, err);
        k += n > 0 ? n : cdi_item_is_own(item) ? (size_t)cddp_world_size(comm) : 1;
        i += n > 0 ? n : 1;
    }
    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++)
        st = cdi_item_ops(&s->states[i])->restore(&s->states[i], err);
    return st;
}

/* The same as checkpoint_fits for what this rank reads. */
static cddp_status pieces_fit(struct cdi_pieces *p, const struct found *f, struct cdi_save *s, cddp_comm *comm,
                              const struct cdi_items *l, struct cdi_error *err)
{
    cddp_status st = cdi_items_pieces(p, l, s, comm, f->file, err);

    s->mover = (struct cdi_mover){cdi_comm_ops(comm), cdi_comm_backend(comm)};
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].bytes > 0 && cdi_item_is_on_device(comm, p->items[i].data))
            p->items[i].flags |= CDI_ITEM_ON_DEVICE;
    return st == CDDP_OK ? cdi_checkpoint_fit(f->file, p->items, p->ranges, p->n, NULL, err) : st;
}

/* Reads this rank's part. From here on data changes. */
static cddp_status fill_pieces(const struct cdi_pieces *p, const struct found *f, const struct cdi_save *s,
                               cddp_comm *comm, struct cdi_error *err)
{
    cddp_status st = cdi_items_drain(comm, err);

    if (st == CDDP_OK && cddp_rank(comm) == 0)
        st = cdi_checkpoint_own(f->file, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_fill(f->file, p->items, p->ranges, p->n, &s->mover, err);
    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++)
        if (cdi_item_has_pieces(&s->states[i]))
            st = cdi_item_ops(&s->states[i])->loaded(&s->states[i], err);
    return st;
}

static cddp_status load_by_all(const struct found *f, struct cdi_save *s, cddp_comm *comm, const struct cdi_items *l,
                               struct cdi_error *err)
{
    struct cdi_pieces p = {0};
    cddp_status st = checkpoint_agree(comm, pieces_fit(&p, f, s, comm, l, err), err);

    if (st == CDDP_OK)
        st = checkpoint_compare(s, comm, err);
    if (st == CDDP_OK)
        st = checkpoint_agree(comm, fill_pieces(&p, f, s, comm, err), err);
    for (size_t i = 0; i < s->n_states && st == CDDP_OK; i++)
        if (!cdi_item_has_pieces(&s->states[i]))
            st = cdi_item_ops(&s->states[i])->restore(&s->states[i], err);
    cdi_pieces_release(&p);
    return st;
}

static cddp_status checkpoint_check_memory(cddp_comm *comm, const struct cdi_items *l, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);

    for (size_t i = 0; i < l->n_memory && ops->check_memory != NULL; i++)
        if (ops->check_memory(cdi_comm_backend(comm), l->memory[i].data, err) != CDDP_OK)
            return cdi_error_wrap(err, "checkpoint: item '%s'", l->memory[i].name);
    return CDDP_OK;
}

static cddp_status checkpoint_load(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                                   const cddp_checkpoint_info *info, struct cdi_items *l, struct cdi_save *s,
                                   struct found *f, struct cdi_error *err)
{
    bool is_root = cddp_rank(comm) == 0;
    struct verdict v = {0};
    cddp_status st = check_dir(dir, err);

    if (st == CDDP_OK && info != NULL)
        st = cdi_sized_check(info, "cddp_checkpoint_info", err);
    if (st == CDDP_OK)
        st = cdi_items_read(l, s, comm, items, n_items, true, err);
    if (st == CDDP_OK)
        st = checkpoint_check_memory(comm, l, err);
    if (st == CDDP_OK)
        st = cdi_items_make_room(l, comm, err);
    if (st == CDDP_OK && (l->pack = malloc(PACK)) == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
    if (st == CDDP_OK)
        st = cdi_saver_wait(cdi_comm_on_finalize(comm)->arg, err);
    st = cdi_checkpoint_agree(comm, st, NULL, l->alike, l->n_alike, NULL, err);
    if (st == CDDP_OK)
        st = checkpoint_find(f, comm, dir, l->by_all, err);
    if (st == CDDP_OK && f->by_all)
        return load_by_all(f, s, comm, l, err);
    if (st != CDDP_OK)
        return st;
    if (is_root)
        v.status = checkpoint_fits(f, s, comm, l, err);
    st = share_verdict(comm, &v, err);
    if (st == CDDP_OK)
        st = checkpoint_compare(s, comm, err);
    if (st != CDDP_OK)
        return st;
    if (is_root) /* from here on data changes */
        v.status = cdi_items_drain(comm, err);
    if (is_root && v.status == CDDP_OK)
        v.status = cdi_checkpoint_own(f->file, err);
    if (is_root && v.status == CDDP_OK)
        v.status = cdi_checkpoint_fill(f->file, s->items, NULL, s->n_items, &s->mover, err);
    st = share_verdict(comm, &v, err);
    return st == CDDP_OK ? give_all(comm, s, f->present, l, err) : st;
}

/* ---------------------------------------------------------------------------------------------------- public ---- */

/* Rejects NULL, and a child of the process that joined, which cannot reach the others. */
static cddp_status checkpoint_check_comm(const char *function, const cddp_comm *comm, struct cdi_error *err)
{
    if (comm == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: comm must not be NULL", function);
    return cdi_comm_own(function, comm, err);
}

/* Notes a call that has succeeded in the agent's flight page. */
static void mark(const cddp_comm *comm, cddp_status st, enum cdi_flight_mark_kind kind, uint64_t step, int64_t begun_ns)
{
    struct cdi_flight *flight = st == CDDP_OK ? cdi_comm_world(comm)->flight : NULL;

    if (flight != NULL)
        cdi_flight_mark(flight, kind, step, begun_ns, cdi_now_ns());
}

cddp_status cddp_checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                                 size_t n_items, const cddp_checkpoint_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_CHECKPOINT_SAVE);
    int64_t begun_ns = cdi_now_ns();
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_save s = {0};
    struct cdi_items l = {0};
    cddp_status st = checkpoint_check_comm("cddp_checkpoint_save", comm, &err);

    if (st == CDDP_OK)
        st = checkpoint_save(comm, dir, step, items, n_items, opt, &l, &s, &err);
    mark(comm, st, CDI_MARK_SAVE, step, begun_ns);
    cdi_save_release(&s);
    cdi_items_release(&l);
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}

cddp_status cddp_checkpoint_wait(cddp_comm *comm)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_CHECKPOINT_WAIT);
    int64_t begun_ns = cdi_now_ns();
    struct cdi_error err = {.status = CDDP_OK};
    cddp_status st = checkpoint_check_comm("cddp_checkpoint_wait", comm, &err);

    if (st == CDDP_OK)
        st = wait_for_save(comm, &err);
    mark(comm, st, CDI_MARK_WAIT, 0, begun_ns);
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}

cddp_status cddp_checkpoint_load(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                                 cddp_checkpoint_info *info)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_CHECKPOINT_LOAD);
    int64_t begun_ns = cdi_now_ns();
    struct cdi_error err = {.status = CDDP_OK};
    struct found f = {.info = {.size = sizeof f.info}};
    struct cdi_save s = {0};
    struct cdi_items l = {0};
    cddp_status st = checkpoint_check_comm("cddp_checkpoint_load", comm, &err);

    if (st == CDDP_OK)
        st = checkpoint_load(comm, dir, items, n_items, info, &l, &s, &f, &err);
    if (st == CDDP_OK && info != NULL)
        cdi_sized_put(info, &f.info, sizeof f.info);
    else if (st == CDDP_OK && f.info.n_damaged > 0)
        cddp_logf(comm, CDDP_LOG_RANK0, CDDP_LOG_WARN, "%s (%zu damaged, passed over); loaded that of step %" PRIu64,
                  f.info.damaged, f.info.n_damaged, f.info.step);
    mark(comm, st, CDI_MARK_LOAD, 0, begun_ns);
    cdi_checkpoint_close(f.file);
    free(f.present);
    cdi_save_release(&s);
    cdi_items_release(&l);
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}
