/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/item.h"

#include "common/cleanup.h"
#include "worker/comm/comm.h"
#include "worker/data/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *cdi_state_add(struct cdi_state *s, const char *suffix, size_t bytes, struct cdi_error *err)
{
    size_t text = strlen(s->name) + strlen(suffix) + 1;
    bool is_full = (s->n_entries & (s->n_entries - 1)) == 0; /* its room is a power of two */
    cddp_checkpoint_item *more =
        is_full ? reallocarray(s->entries, s->n_entries > 0 ? 2 * s->n_entries : 1, sizeof *more) : s->entries;
    char *name = malloc(text);
    void *data = calloc(bytes + 1, 1); /* for size 0, calloc may return NULL */

    if (more != NULL)
        s->entries = more;
    if (more == NULL || name == NULL || data == NULL) {
        free(name);
        free(data);
        (void)cdi_fail(err, CDDP_E_NOMEM, "checkpoint: item '%s': rank 0 has no memory for %zu bytes of it", s->name,
                       bytes);
        return NULL;
    }
    (void)snprintf(name, text, "%s%s", s->name, suffix);
    s->entries[s->n_entries++] = (cddp_checkpoint_item){
        .size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes, .kind = s->kind};
    return data;
}

void *cdi_state_at(const struct cdi_state *s, size_t k)
{
    return s->entries[k].data;
}

void cdi_state_drop(struct cdi_state *s)
{
    cddp_checkpoint_item *last = &s->entries[--s->n_entries];

    free((void *)(uintptr_t)last->name);
    free(last->data);
}

void cdi_state_release(struct cdi_state *s)
{
    while (s->n_entries > 0)
        cdi_state_drop(s);
    free(s->entries);
    free(s->scratch);
    *s = (struct cdi_state){0};
}

/* Sends bytes to rank `peer` (CDI_SEND), or receives them from it (CDI_RECV). The peer does the opposite. */
static cddp_status send_or_receive(cddp_comm *comm, enum cdi_coll_kind kind, void *at, size_t bytes, int peer,
                                   struct cdi_error *err)
{
    struct cdi_coll op = {.kind = kind,
                          .in = at,
                          .out = at,
                          .count = bytes,
                          .dtype = CDDP_UINT8,
                          .root = peer,
                          .bucket = -1,
                          .asked = cdi_api_caller(),
                          .lazy = true};
    uint64_t ticket;
    cddp_status st = bytes == 0 ? CDDP_OK : cdi_comm_ops(comm)->enqueue(cdi_comm_backend(comm), &op, &ticket, err);

    return bytes == 0 || st != CDDP_OK ? st : cdi_comm_ops(comm)->join(cdi_comm_backend(comm), ticket, err);
}

cddp_status cdi_state_exchange(cddp_comm *comm, int rank, void *at_root, void *own, size_t bytes, bool to_root,
                               struct cdi_error *err)
{
    int me = cdi_comm_world(comm)->rank;

    if (me != 0)
        return send_or_receive(comm, to_root ? CDI_SEND : CDI_RECV, own, bytes, 0, err);
    if (rank != 0)
        return send_or_receive(comm, to_root ? CDI_RECV : CDI_SEND, at_root, bytes, rank, err);
    return cdi_comm_ops(comm)->copy(cdi_comm_backend(comm), to_root ? at_root : own, to_root ? own : at_root, bytes,
                                    err);
}

/* ----------------------------------------------------------------------------------------------------- pieces ---- */

static bool is_power_of_two(size_t n)
{
    return (n & (n - 1)) == 0;
}

const char *cdi_pieces_name(struct cdi_pieces *p, const char *prefix, const char *suffix, struct cdi_error *err)
{
    size_t len = strlen(prefix) + strlen(suffix) + 1;
    char *name = malloc(len), **more = p->names;

    if (is_power_of_two(p->n_names)) /* their room is one */
        more = reallocarray(p->names, p->n_names > 0 ? 2 * p->n_names : 1,
                            sizeof *more); /* NOLINT(bugprone-sizeof-expression): they are pointers */
    if (more != NULL)
        p->names = more;
    if (more == NULL || name == NULL) {
        free(name);
        (void)cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
        return NULL;
    }
    (void)snprintf(name, len, "%s%s", prefix, suffix);
    p->names[p->n_names++] = name;
    return p->names[p->n_names - 1];
}

cddp_status cdi_pieces_add(struct cdi_pieces *p, const cddp_checkpoint_item *item, struct cdi_range range,
                           struct cdi_error *err)
{
    if (p->n == p->room) {
        size_t room = p->room > 0 ? 2 * p->room : 64;
        cddp_checkpoint_item *items = reallocarray(p->items, room, sizeof *items);
        struct cdi_range *ranges;

        if (items != NULL)
            p->items = items;
        ranges = items == NULL ? NULL : reallocarray(p->ranges, room, sizeof *ranges);
        if (ranges == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
        p->ranges = ranges;
        p->room = room;
    }
    p->items[p->n] = *item;
    p->ranges[p->n++] = range;
    return CDDP_OK;
}

/* Smaller items are rank 0's alone, as everything is in a checkpoint of one file; parts begin at such addresses. */
#define CUT_FROM ((size_t)64 << 10)
#define CUT_ALIGN ((size_t)4 << 10)

cddp_status cdi_pieces_add_memory(struct cdi_pieces *p, const cddp_checkpoint_item *item, const cddp_comm *comm,
                                  bool loads, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(comm), rank = (size_t)cddp_rank(comm), begin = 0, end = item->bytes;
    cddp_checkpoint_item piece = *item;
    cddp_status st = CDDP_OK;

    for (size_t r = 0; r < world && (item->flags & CDDP_ITEM_PER_RANK) != 0 && st == CDDP_OK; r++) {
        char suffix[24];

        (void)snprintf(suffix, sizeof suffix, "[%zu]", r);
        piece.name = cdi_pieces_name(p, item->name, suffix, err);
        piece.flags = loads ? item->flags : 0;
        piece.bytes = r == rank ? item->bytes : 0;
        st = piece.name == NULL ? err->status : cdi_pieces_add(p, &piece, (struct cdi_range){item->bytes, 0}, err);
    }
    if ((item->flags & CDDP_ITEM_PER_RANK) != 0)
        return st;
    if (!loads && item->bytes < CUT_FROM) {
        end = rank == 0 ? end : 0;
    } else if (!loads) {
        size_t part = (item->bytes / world + CUT_ALIGN) / CUT_ALIGN * CUT_ALIGN;

        begin = part * rank < end ? part * rank : end;
        end = end - begin < part ? end : begin + part;
    }
    piece.data = begin < end ? (uint8_t *)item->data + begin : NULL;
    piece.bytes = end - begin;
    return cdi_pieces_add(p, &piece, (struct cdi_range){item->bytes, begin}, err);
}

void cdi_pieces_pack(struct cdi_pieces *p)
{
    size_t n = 0;

    for (size_t i = 0; i < p->n; i++) {
        if (p->items[i].bytes == 0 && p->ranges[i].whole > 0)
            continue;
        p->items[n] = p->items[i];
        p->ranges[n++] = p->ranges[i];
    }
    p->n = n;
}

void cdi_pieces_release(struct cdi_pieces *p)
{
    for (size_t i = 0; i < p->n_names; i++)
        free(p->names[i]);
    free(p->names);
    free(p->items);
    free(p->ranges);
    *p = (struct cdi_pieces){0};
}

/* --------------------------------------------------------------------------------------------------- samplers ---- */

/*
 * The places of all ranks, and then this rank's. In a file there is one, unless ranks stand at different places: then
 * it is the first of them, and NAME.ranks has them all.
 */
static cddp_sampler_state *places_of(const struct cdi_state *s)
{
    return s->scratch;
}

static cddp_status sampler_check(struct cdi_state *s, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(s->comm);

    s->scratch = calloc(world + 1, sizeof(cddp_sampler_state));
    if (s->scratch == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a sampler's position");
    cddp_sampler_get_state(s->object, &places_of(s)[world]);
    return CDDP_OK;
}

static cddp_status sampler_begin_save(struct cdi_state *s, struct cdi_error *err)
{
    size_t bytes = (size_t)cddp_world_size(s->comm) * sizeof(cddp_sampler_state);

    if (cdi_state_add(s, "", sizeof(cddp_sampler_state), err) == NULL || cdi_state_add(s, ".ranks", bytes, err) == NULL)
        return err->status;
    return CDDP_OK;
}

static cddp_status sampler_collect(struct cdi_state *s, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(s->comm), first;
    cddp_sampler_state *places = places_of(s);
    cddp_status st = cdi_comm_all_gather(s->comm, &places[world], places, sizeof *places, CDDP_UINT8, err);
    bool differ = false;

    if (st != CDDP_OK || s->n_entries == 0)
        return st;
    first = cdi_sampler_first_place(places, world, NULL);
    memcpy(cdi_state_at(s, 0), &places[first], sizeof *places);
    for (size_t r = 1; r < world; r++)
        differ = differ || memcmp(&places[r], &places[0], sizeof *places) != 0;
    if (differ)
        memcpy(cdi_state_at(s, 1), places, world * sizeof *places);
    else
        cdi_state_drop(s);
    return CDDP_OK;
}

/* Reads the places of all ranks. A world of another size has a use for them only if they are in one order of samples.
 */
static cddp_status sampler_read_ranks(struct cdi_state *s, struct cdi_checkpoint_file *f, size_t bytes,
                                      struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(s->comm), saved = bytes / sizeof(cddp_sampler_state);
    bool one_order;
    cddp_status st;

    if (bytes == 0 || bytes % sizeof(cddp_sampler_state) != 0)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "checkpoint: item '%s.ranks' has %zu bytes, which is not a list of places", s->name, bytes);
    if (cdi_state_add(s, ".ranks", bytes, err) == NULL)
        return err->status;
    st = cdi_checkpoint_fit(f, s->entries, NULL, s->n_entries, NULL, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_fill(f, s->entries, NULL, s->n_entries, NULL, err);
    if (st != CDDP_OK)
        return st;
    (void)cdi_sampler_first_place(cdi_state_at(s, 1), saved, &one_order);
    if (saved != world && !one_order)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "checkpoint: item '%s': the samplers of %zu ranks were saved in the middle of epochs of "
                        "different orders, which %zu ranks cannot share: load it with %zu ranks",
                        s->name, saved, world, saved);
    return CDDP_OK;
}

static cddp_status sampler_begin_load(struct cdi_state *s, struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    size_t len = strlen(s->name) + sizeof ".ranks", bytes;
    CDI_AUTOFREE char *ranks = malloc(len);
    cddp_status st = CDDP_OK;

    if (ranks == NULL || cdi_state_add(s, "", sizeof(cddp_sampler_state), err) == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a sampler's position");
    (void)snprintf(ranks, len, "%s.ranks", s->name);
    st = cdi_checkpoint_fit(f, s->entries, NULL, s->n_entries, NULL, err);
    if (st == CDDP_OK && cdi_checkpoint_find(f, ranks, CDDP_ITEM_SAMPLER, &bytes))
        return sampler_read_ranks(s, f, bytes, err);
    return st == CDDP_OK ? cdi_checkpoint_fill(f, s->entries, NULL, s->n_entries, NULL, err) : st;
}

/* Returns how many ranks have saved different places; 0: all were at the same one. */
static size_t ranks_apart(const struct cdi_state *s)
{
    return s->n_entries > 1 ? s->entries[1].bytes / sizeof(cddp_sampler_state) : 0;
}

/* Each rank's sampler has its own options, and each rank has its place. */
static cddp_status sampler_compare(struct cdi_state *s, cddp_status *fits, struct cdi_error *err)
{
    size_t world = (size_t)cddp_world_size(s->comm);
    cddp_sampler_state *places = places_of(s);
    cddp_status st;

    for (size_t r = 0; r < world && s->n_entries > 0; r++)
        places[r] = ranks_apart(s) == world ? ((cddp_sampler_state *)cdi_state_at(s, 1))[r]
                                            : *(cddp_sampler_state *)cdi_state_at(s, 0);
    st = cdi_comm_broadcast(s->comm, places, world * sizeof *places, CDDP_UINT8, 0, err);
    if (st == CDDP_OK)
        *fits = cdi_sampler_check_state(s->object, &places[cddp_rank(s->comm)], err);
    return st;
}

static cddp_status sampler_restore(struct cdi_state *s, struct cdi_error *err)
{
    int world = cddp_world_size(s->comm);

    (void)err;
    if (ranks_apart(s) != 0 && ranks_apart(s) != (size_t)world)
        cddp_logf(s->comm, CDDP_LOG_RANK0, CDDP_LOG_WARN,
                  "checkpoint: item '%s': %zu ranks stood at different places of their epoch when it was saved; all %d "
                  "ranks begin at the first of these, so that no sample is lost, and some come again",
                  s->name, ranks_apart(s), world);
    return cddp_sampler_set_state(s->object, &places_of(s)[cddp_rank(s->comm)]); /* the state was checked */
}

static const struct cdi_item_ops sampler = {.check = sampler_check,
                                            .begin_save = sampler_begin_save,
                                            .collect = sampler_collect,
                                            .begin_load = sampler_begin_load,
                                            .compare = sampler_compare,
                                            .restore = sampler_restore};

const struct cdi_item_ops *cdi_item_ops(const struct cdi_state *s)
{
    return s->kind == CDDP_ITEM_SAMPLER ? &sampler : *(const struct cdi_item_ops *const *)s->object;
}
