/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/item.h"

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

void cdi_state_release(struct cdi_state *s)
{
    for (size_t k = 0; k < s->n_entries; k++) {
        free((void *)(uintptr_t)s->entries[k].name);
        free(s->entries[k].data);
    }
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
                          .asked = cdi_comm_asked(),
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

/* --------------------------------------------------------------------------------------------------- samplers ---- */

static cddp_status sampler_check(void *object, const cddp_comm *comm, struct cdi_error *err)
{
    (void)object, (void)comm, (void)err;
    return CDDP_OK;
}

static cddp_status sampler_begin_save(struct cdi_state *s, struct cdi_error *err)
{
    cddp_sampler_state *state = cdi_state_add(s, "", sizeof *state, err);

    if (state == NULL)
        return err->status;
    cddp_sampler_get_state(s->object, state);
    return CDDP_OK;
}

static cddp_status sampler_begin_load(struct cdi_state *s, const struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    cddp_status st = cdi_state_add(s, "", sizeof(cddp_sampler_state), err) != NULL ? CDDP_OK : err->status;

    if (st == CDDP_OK)
        st = cdi_checkpoint_fit(f, s->entries, s->n_entries, NULL, err);
    return st == CDDP_OK ? cdi_checkpoint_fill(f, s->entries, s->n_entries, NULL, err) : st;
}

/* Each rank's sampler has its own options. After this, s->scratch holds the state. */
static cddp_status sampler_compare(struct cdi_state *s, cddp_comm *comm, cddp_status *fits, struct cdi_error *err)
{
    cddp_sampler_state state = {{0}};
    cddp_status st;

    if (s->n_entries > 0)
        memcpy(&state, cdi_state_at(s, 0), sizeof state);
    st = cdi_comm_broadcast(comm, &state, sizeof state, CDDP_UINT8, 0, err);
    if (st != CDDP_OK)
        return st;
    *fits = cdi_sampler_check_state(s->object, &state, err);
    s->scratch = malloc(sizeof state);
    if (*fits == CDDP_OK && s->scratch == NULL)
        *fits = cdi_fail(err, CDDP_E_NOMEM, "no memory for a sampler's position");
    if (s->scratch != NULL)
        memcpy(s->scratch, &state, sizeof state);
    return CDDP_OK;
}

static cddp_status sampler_restore(struct cdi_state *s, cddp_comm *comm, struct cdi_error *err)
{
    (void)comm, (void)err;
    return cddp_sampler_set_state(s->object, s->scratch); /* the state was checked */
}

static const struct cdi_item_ops sampler = {.check = sampler_check,
                                            .begin_save = sampler_begin_save,
                                            .begin_load = sampler_begin_load,
                                            .compare = sampler_compare,
                                            .restore = sampler_restore};

const struct cdi_item_ops *cdi_item_ops(const struct cdi_state *s)
{
    return s->kind == CDDP_ITEM_SAMPLER ? &sampler : *(const struct cdi_item_ops *const *)s->object;
}
