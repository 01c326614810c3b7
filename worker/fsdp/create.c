/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and destruction of a sharded model. */
#include "worker/reducer/create.h"
#include "common/cleanup.h"
#include "common/crc64.h"
#include "common/float_state.h"
#include "worker/backend/who.h"
#include "worker/base/sized.h"
#include "worker/comm/agree.h"
#include "worker/fsdp/fsdp.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/overlap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define LIVE_UNITS 3
#define LIVE_GRADIENTS 2

/* The program's arguments in this library's structs. */
struct input {
    cddp_fsdp_options opt;
    cddp_fsdp_unit *units;
    size_t n_units;
    cddp_param *params; /* of all units */
    size_t *unit;       /* by parameter */
    size_t n_params;
    size_t n_trained; /* units that have gradients */
};

static void release_input(struct input *in)
{
    free(in->units);
    free(in->params);
    free(in->unit);
}

static cddp_status check_unit(const cddp_fsdp_unit *unit, size_t u, struct cdi_error *err)
{
    if (unit->name == NULL || *unit->name == '\0')
        return cdi_fail(err, CDDP_E_INVALID, "unit %zu has no name: messages and checks need one", u);
    if (unit->params == NULL || unit->n_params == 0)
        return cdi_fail(err, CDDP_E_INVALID, "unit %zu '%.200s' has no parameters", u, unit->name);
    if ((unit->flags & ~(uint64_t)CDDP_FSDP_KEEP) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_fsdp_unit.flags of unit %zu '%.200s' has unknown bits (%#llx)", u,
                        unit->name, (unsigned long long)unit->flags);
    return CDDP_OK;
}

static bool is_frozen(const cddp_param *p)
{
    return (p->flags & CDDP_PARAM_FROZEN) != 0;
}

static cddp_status check_param(const cddp_param *p, struct cdi_error *err)
{
    const char *name = p->name != NULL ? p->name : "";

    if (p->grad != NULL)
        return cdi_fail(err, CDDP_E_INVALID, "parameter '%.200s' has a `grad`: its gradient is at cddp_fsdp_grad",
                        name);
    return CDDP_OK;
}

/* Lists the parameters of all units. */
static cddp_status list_params(struct input *in, struct cdi_error *err)
{
    size_t n = 0;

    for (size_t u = 0; u < in->n_units; u++) {
        if (check_unit(&in->units[u], u, err) != CDDP_OK)
            return err->status;
        if (__builtin_add_overflow(n, in->units[u].n_params, &n))
            return cdi_fail(err, CDDP_E_NOMEM, "the units have too many parameters");
    }
    in->params = calloc(n + 1, sizeof *in->params);
    in->unit = calloc(n + 1, sizeof *in->unit);
    if (in->params == NULL || in->unit == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters", n);
    for (size_t u = 0; u < in->n_units; u++) {
        cddp_param *list =
            cdi_sized_get_list(sizeof *list, in->units[u].params, in->units[u].n_params, "cddp_param", err);
        cddp_status st = CDDP_OK;
        bool trained = false;

        if (list == NULL)
            return cdi_error_wrap(err, "unit %zu '%.200s'", u, in->units[u].name);
        for (size_t i = 0; i < in->units[u].n_params && st == CDDP_OK; i++) {
            st = check_param(&list[i], err);
            trained |= !is_frozen(&list[i]);
            in->unit[in->n_params] = u;
            in->params[in->n_params++] = list[i];
        }
        free(list);
        in->n_trained += trained;
        if (st != CDDP_OK)
            return cdi_error_wrap(err, "unit %zu '%.200s'", u, in->units[u].name);
    }
    return CDDP_OK;
}

/* Refuses parameters that share memory: each would have its own shares, and become another copy. */
static cddp_status refuse_shared(const struct input *in, struct cdi_error *err)
{
    CDI_AUTOFREE cddp_param *list = calloc(in->n_params + 1, sizeof *list);
    CDI_AUTOFREE size_t *number = calloc(in->n_params + 1, sizeof *number);
    struct cdi_ddp_tied tied = {0};
    size_t n = 0;
    cddp_status st;

    if (list == NULL || number == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory to compare %zu parameters", in->n_params);
    for (size_t i = 0; i < in->n_params; i++)
        if (in->params[i].data != NULL) {
            number[n] = i;
            list[n++] = in->params[i];
        }
    st = cdi_overlap_find(&tied, list, n, NULL, 0, err);
    for (size_t k = 0; st == CDDP_OK && tied.first != NULL && k < n; k++) {
        size_t a = number[tied.first[k]], b = number[k];

        if (a != b)
            st = cdi_fail(err, CDDP_E_INVALID,
                          "unit '%.100s', parameter '%.100s' and unit '%.100s', parameter '%.100s' have the same data, "
                          "and would become two copies: pass it in one unit, which is gathered for both uses",
                          in->units[in->unit[a]].name, in->params[a].name, in->units[in->unit[b]].name,
                          in->params[b].name);
    }
    cdi_overlap_release(&tied);
    return st;
}

/* Also with an error in->opt.replicas is there, where they can be known: their ranks expect this one. */
static cddp_status read_input(struct input *in, const cddp_fsdp_unit *units, size_t n, const cddp_fsdp_options *opt,
                              struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    *in = (struct input){.opt = {.size = sizeof in->opt}, .n_units = n};
    if (opt != NULL)
        st = cdi_sized_get(&in->opt, sizeof in->opt, opt, "cddp_fsdp_options", err);
    if (st == CDDP_E_UNSUPPORTED && opt != NULL) /* they are to hear of it */
        in->opt.replicas = opt->replicas;
    if (st != CDDP_OK)
        return st;
    if (units == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_fsdp_create: units must not be NULL");
    if (n == 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_fsdp_create: n_units is 0: a sharded model needs at least one unit");
    in->opt.stage = in->opt.stage == 0 ? 3 : in->opt.stage;
    if (in->opt.stage != 2 && in->opt.stage != 3)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_fsdp_options.stage is %d: use 2 or 3 (cddp_optim_create alone is stage 1)",
                        in->opt.stage);
    if (in->opt.flags != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_fsdp_options.flags has unknown bits (%#x)", in->opt.flags);
    if (in->opt.max_live_units == 0)
        in->opt.max_live_units = LIVE_UNITS;
    if (in->opt.max_live_gradients == 0)
        in->opt.max_live_gradients = LIVE_GRADIENTS;
    if (in->opt.max_live_units > n)
        in->opt.max_live_units = n;
    in->units = cdi_sized_get_list(sizeof *units, units, n, "cddp_fsdp_unit", err);
    if (in->units == NULL || list_params(in, err) != CDDP_OK)
        return err->status;
    if (in->opt.max_live_gradients > in->n_trained)
        in->opt.max_live_gradients = in->n_trained;
    return refuse_shared(in, err);
}

/* What the ranks compare of a unit, in this order. */
enum { UNIT_NAME, UNIT_FLAGS, UNIT_N_PARAMS, UNIT_PARAM_FLAGS, N_OF_UNIT };

/* Of unit u, whose parameters begin at `first`. */
static void list_unit(const struct input *in, size_t u, size_t first, uint64_t of[N_OF_UNIT])
{
    const cddp_fsdp_unit *unit = &in->units[u];

    of[UNIT_NAME] = cdi_crc64(0, unit->name, strlen(unit->name) + 1);
    of[UNIT_FLAGS] = unit->flags;
    of[UNIT_N_PARAMS] = unit->n_params;
    of[UNIT_PARAM_FLAGS] = 0;
    for (size_t i = 0; i < unit->n_params; i++)
        of[UNIT_PARAM_FLAGS] = cdi_crc64(of[UNIT_PARAM_FLAGS], &in->params[first + i].flags, sizeof in->params->flags);
}

/* Names, in a collective, the first of the n parameters of unit u whose flags on rank r are not those of rank 0. */
static cddp_status name_param(cddp_comm *comm, const struct input *in, int r, size_t u, size_t n, struct cdi_error *err)
{
    const int rank = cddp_rank(comm), roots[2] = {0, r};
    const char *name = NULL;
    CDI_AUTOFREE uint32_t *flags = calloc(n + 1, 2 * sizeof *flags);
    size_t first = 0, i = 0;

    if (flags == NULL)
        return cdi_comm_give_up(comm, "create its sharded model", err);
    for (size_t k = 0; k < u; k++)
        first += in->units[k].n_params;
    for (size_t k = 0; k < 2; k++) {
        for (size_t j = 0; j < n && rank == roots[k]; j++)
            flags[k * n + j] = in->params[first + j].flags;
        if (cdi_comm_broadcast(comm, flags + k * n, n * sizeof *flags, CDDP_UINT8, roots[k], err) != CDDP_OK)
            return err->status;
    }
    while (i + 1 < n && flags[i] == flags[n + i])
        i++;
    if (i < in->units[u].n_params) /* a third rank may have fewer */
        name = in->params[first + i].name;
    return cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(comm), r), CDDP_E_MISMATCH,
                       "cddp_param.flags of unit %zu '%.200s', parameter %zu '%.200s', is %u on rank 0 but %u on %s "
                       "(CDDP_PARAM_FROZEN is 1)",
                       u, in->units[u].name, i, name != NULL ? name : "", flags[i], flags[n + i],
                       cdi_comm_who(comm, r).text);
}

/* Names the first unit in which rank r, as all know, differs from rank 0, and in what. */
static cddp_status name_unit(cddp_comm *comm, const struct input *in, int r, struct cdi_error *err)
{
    CDI_AUTOFREE uint64_t *mine = calloc(in->n_units, N_OF_UNIT * sizeof *mine);
    CDI_AUTOFREE void *cards = NULL;
    const size_t n = in->n_units * N_OF_UNIT;
    const struct cdi_who who = cdi_comm_who(comm, r);
    const uint64_t *all, *other;
    const char *name;
    cddp_status st = CDDP_OK;
    size_t k = 0, u;
    int blamed = cdi_rank_of_job(cdi_comm_world(comm), r);

    if (mine == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "no memory to compare %zu units", in->n_units);
    for (size_t i = 0, first = 0; mine != NULL && i < in->n_units; first += in->units[i++].n_params)
        list_unit(in, i, first, mine + i * N_OF_UNIT);
    st = cdi_comm_agree(comm, "create its sharded model", mine, n * sizeof *mine, &cards, st == CDDP_OK ? NULL : err,
                        err);
    if (st != CDDP_OK)
        return st;
    all = cards;
    other = all + (size_t)r * n;
    while (k + 1 < n && all[k] == other[k])
        k++;
    u = k / N_OF_UNIT;
    name = in->units[u].name;
    switch (k % N_OF_UNIT) {
    case UNIT_NAME:
        return cdi_fail_by(err, blamed, CDDP_E_MISMATCH,
                           "unit %zu has another name on %s than on rank 0 (here: '%.200s')", u, who.text, name);
    case UNIT_PARAM_FLAGS:
        return name_param(comm, in, r, u, (size_t)all[u * N_OF_UNIT + UNIT_N_PARAMS], err);
    default:
        return cdi_fail_by(err, blamed, CDDP_E_MISMATCH,
                           "cddp_fsdp_unit.%s of unit %zu '%.200s' is %llu on rank 0 but %llu on %s",
                           k % N_OF_UNIT == UNIT_FLAGS ? "flags" : "n_params", u, name, (unsigned long long)all[k],
                           (unsigned long long)other[k], who.text);
    }
}

/* The first one is the number of units, which the comparison of the units needs. */
#define N_OPTIONS 6
#define OPTION_UNITS 2

/* What the ranks compare beside the parameters. */
static void list_options(const struct input *in, uint64_t option[N_OPTIONS])
{
    option[0] = in->n_units;
    option[1] = (uint64_t)in->opt.stage;
    option[OPTION_UNITS] = 0;
    for (size_t u = 0, first = 0; u < in->n_units; first += in->units[u++].n_params) {
        uint64_t of[N_OF_UNIT];

        list_unit(in, u, first, of);
        option[OPTION_UNITS] = cdi_crc64(option[OPTION_UNITS], of, sizeof of);
    }
    option[3] = in->opt.max_live_units;
    option[4] = in->opt.max_live_gradients;
    option[5] = in->opt.replicas != NULL ? (uint64_t)cdi_comm_world(in->opt.replicas)->size : 0;
}

/* Everything that replicas must have alike; within a group the reducer compares parameters, too. */
static uint64_t hash_model(const struct input *in)
{
    uint64_t option[N_OPTIONS], hash;

    list_options(in, option);
    hash = cdi_crc64(0, option, sizeof option);
    for (size_t i = 0; i < in->n_params; i++) {
        const uint64_t of[] = {in->params[i].count, (uint64_t)in->params[i].dtype, (uint64_t)in->params[i].grad_dtype};
        const char *name = in->params[i].name != NULL ? in->params[i].name : "";

        hash = cdi_crc64(hash, name, strlen(name) + 1);
        hash = cdi_crc64(hash, of, sizeof of);
    }
    return hash;
}

/* Checks what this rank can check alone. With an error the communicator is not used. */
static cddp_status check_replicas(const cddp_comm *comm, struct input *in, struct cdi_error *err)
{
    cddp_comm *replicas = in->opt.replicas;
    cddp_status st = cdi_comm_own("cddp_fsdp_options.replicas", replicas, err);

    if (st == CDDP_OK && replicas != NULL && cdi_comm_ops(replicas) != cdi_comm_ops(comm))
        st = cdi_fail(err, CDDP_E_INVALID, "cddp_fsdp_options.replicas has backend %s, but comm has %s",
                      cdi_comm_ops(replicas)->name, cdi_comm_ops(comm)->name);
    if (st != CDDP_OK)
        in->opt.replicas = NULL;
    return st;
}

/* Compares the ranks. A rank that has failed takes part, so that the others do not wait for it. */
static cddp_status agree(cddp_comm *comm, const struct input *in, cddp_status alone, struct cdi_error *err)
{
    static const char *const names[N_OPTIONS] = {"n_units",
                                                 "cddp_fsdp_options.stage",
                                                 NULL,
                                                 "cddp_fsdp_options.max_live_units",
                                                 "cddp_fsdp_options.max_live_gradients",
                                                 "the number of replicas"};
    const struct cdi_world *w = cdi_comm_world(comm);
    uint64_t mine[N_OPTIONS] = {0};
    const uint64_t *all;
    void *cards;
    cddp_status st;

    if (alone == CDDP_OK) {
        list_options(in, mine);
    }
    st =
        cdi_comm_agree(comm, "create its sharded model", mine, sizeof mine, &cards, alone == CDDP_OK ? NULL : err, err);
    all = cards;
    for (size_t k = 0; k < N_OPTIONS && st == CDDP_OK; k++)
        for (int r = 1; r < w->size && st == CDDP_OK; r++) {
            uint64_t other = all[(size_t)r * N_OPTIONS + k];

            if (all[k] == other)
                continue;
            st = k == OPTION_UNITS
                     ? name_unit(comm, in, r, err)
                     : cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH, "%s is %llu on rank 0 but %llu on %s",
                                   names[k], (unsigned long long)all[k], (unsigned long long)other,
                                   cdi_who(w->ranks, r).text);
        }
    free(cards);
    return alone != CDDP_OK ? alone : st;
}

static size_t round_up(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/*
 * Finds the buckets of each unit, and where they are in its slot. Those without gradients come last, so that a slot for
 * gradients ends before them.
 */
static void place_parts(cddp_fsdp *f, const struct input *in)
{
    const struct cdi_bucket_plan *plan = &f->ddp->plan;
    size_t n = 0, first = 0;

    for (size_t u = 0; u < f->n_units; u++) {
        struct cdi_fsdp_unit *unit = &f->unit[u];

        *unit = (struct cdi_fsdp_unit){.name = unit->name,
                                       .first = first,
                                       .n_params = in->units[u].n_params,
                                       .part = n,
                                       .own_grad_slot = CDI_POOL_NONE,
                                       .grad_slot = CDI_POOL_NONE};
        first += unit->n_params;
        for (size_t b = 0; b < plan->n; b++) {
            if (in->unit[cdi_bucket_grad(plan, b, 0)] != u)
                continue;
            f->parts[n++] = (struct cdi_fsdp_part){.bucket = b, .at = unit->bytes, .grad_at = unit->grad_bytes};
            unit->bytes += plan->b[b].held_room;
            unit->n_parts++;
            if (b >= plan->ahead)
                continue;
            unit->n_made++;
            unit->grad_bytes += plan->b[b].room;
        }
        unit->bytes = round_up(unit->bytes);
        unit->grad_bytes = round_up(unit->grad_bytes);
    }
}

static bool is_kept(const struct input *in, size_t u)
{
    return in->opt.stage == 2 || (in->units[u].flags & CDDP_FSDP_KEEP) != 0;
}

/*
 * Decides where the slots for gradients are, from `at` on. Returns their end. A unit with CDDP_FSDP_KEEP that is larger
 * than all others, such as an embedding, would make every slot of the pool as large: it has one alone, if that takes
 * fewer bytes.
 */
static size_t place_grad_slots(cddp_fsdp *f, const struct input *in, size_t at)
{
    size_t passing = 0, largest = 0, own = 0, n = f->n_grad_slots;

    for (size_t u = 0; u < f->n_units; u++) {
        size_t bytes = f->unit[u].grad_bytes;

        largest = bytes > largest ? bytes : largest;
        if ((in->units[u].flags & CDDP_FSDP_KEEP) == 0 && bytes > passing)
            passing = bytes;
    }
    for (size_t u = 0; u < f->n_units; u++)
        own += f->unit[u].grad_bytes > passing ? f->unit[u].grad_bytes : 0;
    if (own + n * passing >= n * largest)
        passing = largest;
    for (size_t s = 0; s < n; s++, at += passing)
        f->grad_slot[s].at = at;
    for (size_t u = 0; u < f->n_units; u++) {
        if (f->unit[u].grad_bytes <= passing)
            continue;
        f->unit[u].own_grad_slot = n + f->n_own_grad_slots++;
        f->grad_slot[f->unit[u].own_grad_slot].at = at;
        at += f->unit[u].grad_bytes;
    }
    return at;
}

/*
 * Decides where all slots are. Returns the bytes of the region. Nothing wraps: there are at most as many slots of each
 * kind as units, and all units together fit the address space many times, or the plan would have been refused.
 */
static size_t place_slots(cddp_fsdp *f, const struct input *in)
{
    size_t n = in->opt.max_live_units, at = 0, passing = 0; /* bytes of the largest unit that is not kept */

    for (size_t u = 0; u < f->n_units; u++)
        if (!is_kept(in, u) && f->unit[u].bytes > passing)
            passing = f->unit[u].bytes;
    for (size_t s = 0; s < n; s++) {
        f->slot_at[s] = at;
        at += passing;
    }
    for (size_t u = 0; u < f->n_units; u++) {
        if (!is_kept(in, u))
            continue;
        cdi_pool_keep(&f->pool, u, n);
        f->slot_at[n++] = at;
        at += f->unit[u].bytes;
    }
    f->shares_at = place_grad_slots(f, in, at);
    return f->shares_at + cdi_arena_made_bytes(f->ddp);
}

static cddp_status no_memory(size_t n_units, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu units", n_units);
}

static cddp_status allocate(cddp_fsdp *f, const struct input *in, struct cdi_error *err)
{
    size_t slots = in->opt.max_live_units + in->n_units, slots_of_grads = in->opt.max_live_gradients + in->n_units;

    /* One element more than needed: for 0, calloc may return NULL. */
    f->unit = calloc(in->n_units + 1, sizeof *f->unit);
    f->parts = calloc(f->ddp->plan.n + 1, sizeof *f->parts);
    f->slot_at = calloc(slots + 1, sizeof *f->slot_at);
    f->slot_ticket = calloc(slots + 1, sizeof *f->slot_ticket);
    f->grad_slot = calloc(slots_of_grads + 1, sizeof *f->grad_slot);
    if (f->unit == NULL || f->parts == NULL || f->slot_at == NULL || f->slot_ticket == NULL || f->grad_slot == NULL ||
        in->units == NULL || !cdi_pool_init(&f->pool, in->n_units, in->opt.max_live_units))
        return no_memory(in->n_units, err);
    f->item_ops = &cdi_fsdp_item_ops;
    f->n_units = in->n_units;
    f->n_grad_slots = in->opt.max_live_gradients;
    for (size_t u = 0; u < f->n_units; u++)
        if ((f->unit[u].name = strdup(in->units[u].name)) == NULL)
            return no_memory(in->n_units, err);
    for (size_t s = 0; s < slots_of_grads; s++)
        f->grad_slot[s].unit = CDI_POOL_NONE;
    return CDDP_OK;
}

static cddp_status call_fill(const struct input *in, size_t u, void *const *data)
{
    CDI_CALLERS_FLOAT_STATE;

    return in->opt.fill(in->opt.arg, u, data);
}

/* Copies the program's values of unit u to a slot, with zeros between them, or has it write them there. */
static cddp_status fill_slot(cddp_fsdp *f, const struct input *in, size_t u, size_t slot, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;
    const struct cdi_fsdp_unit *unit = &f->unit[u];
    char *begin = (char *)f->region->base + slot;
    cddp_status st = CDDP_OK;
    void **data;

    if (d->ops->on_device)
        st = d->ops->clear(d->b, begin, unit->bytes, err);
    else
        memset(begin, 0, unit->bytes);
    if (st == CDDP_OK && in->opt.fill != NULL && unit->n_params > 0) {
        data = calloc(unit->n_params, sizeof *data);
        if (data == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters", unit->n_params);
        for (size_t i = 0; i < unit->n_params; i++)
            data[i] = cdi_fsdp_param_at(f, slot, u, i);
        if (d->ops->on_device)
            st = d->ops->stream_wait(d->b, 0, d->stream, err);
        if (st == CDDP_OK) {
            st = call_fill(in, u, data);
            if (st > 0 || st < -INT16_MAX) /* no status is */
                st = CDDP_E_INVALID;
            if (st != CDDP_OK)
                (void)cdi_fail(err, st, "cddp_fsdp_options.fill failed for unit %zu '%.200s'", u, unit->name);
        }
        free(data);
        return st == CDDP_OK && d->ops->on_device ? d->ops->wait_stream(d->b, d->stream, false, err) : st;
    }
    if (st == CDDP_OK && d->ops->on_device)
        st = cdi_ddp_follow(d, d->stream, err);
    for (size_t i = 0; i < unit->n_params && st == CDDP_OK; i++) {
        const cddp_param *p = &in->params[unit->first + i];

        if (p->data != NULL)
            st = d->ops->copy(d->b, cdi_fsdp_param_at(f, slot, u, i), p->data, p->count * cddp_dtype_size(p->dtype),
                              err);
    }
    return st;
}

/* Gives this rank its share of rank 0's values of unit u. A rank whose fill failed still takes part. */
static cddp_status load_unit(cddp_fsdp *f, const struct input *in, size_t u, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;
    size_t kept = f->pool.unit[u].slot, slot = f->slot_at[kept == CDI_POOL_NONE ? 0 : kept];
    size_t rank = (size_t)cdi_comm_world(d->comm)->rank;
    struct cdi_error local = {.status = CDDP_OK};
    cddp_status st = fill_slot(f, in, u, slot, &local);

    st = cdi_comm_agree(d->comm, "make its parameters", NULL, 0, NULL, st == CDDP_OK ? NULL : &local, err);
    for (size_t k = f->unit[u].part; k < f->unit[u].part + f->unit[u].n_parts && st == CDDP_OK; k++) {
        const struct cdi_bucket *b = &d->plan.b[f->parts[k].bucket];
        size_t part = b->held_room / d->plan.parts;
        char *at = cdi_fsdp_part_at(f, slot, k);
        const struct cdi_slice own = {at + part * rank, part};

        if (d->plan.parts > 1)
            st = cdi_comm_broadcast(d->comm, at, b->held_room / cddp_dtype_size(b->held), b->held, 0, err);
        if (st == CDDP_OK)
            st = d->ops->pack(d->b, d->shares.params + cdi_arena_held_at(d, f->parts[k].bucket), &own, 1, err);
    }
    return st;
}

static void free_fsdp(cddp_fsdp *f)
{
    if (f == NULL)
        return;
    cdi_across_release(&f->across);
    if (f->region != NULL)
        f->ddp->ops->region_destroy(f->ddp->b, f->region);
    for (size_t u = 0; f->unit != NULL && u < f->n_units; u++)
        free(f->unit[u].name);
    free(f->unit);
    free(f->parts);
    free(f->slot_at);
    free(f->slot_ticket);
    free(f->grad_slot);
    cdi_pool_release(&f->pool);
    cddp_ddp_destroy(f->ddp);
    free(f);
}

/* Returns the unit of one of the reducer's parameters: cdi_ddp_shares.unit_of. */
static const char *unit_of(const void *model, size_t i, size_t *u)
{
    const cddp_fsdp *f = model;

    for (*u = 0; i >= f->unit[*u].first + f->unit[*u].n_params; ++*u)
        ;
    return f->unit[*u].name;
}

/* Gives the reducer and the flight page the names of the units. */
static void name_units(cddp_fsdp *f)
{
    struct cdi_flight *page = cdi_comm_world(f->ddp->comm)->flight;
    char name[CDI_FLIGHT_NAMES];

    f->ddp->shares.model = f;
    f->ddp->shares.unit_of = unit_of;
    for (size_t u = 0; page != NULL && u < f->n_units && u < CDI_FLIGHT_BUCKETS; u++) {
        (void)snprintf(name, sizeof name, "unit '%.100s'", f->unit[u].name);
        cdi_flight_set_names(page, (int)u, name);
    }
}

/* Makes everything, for input on which the ranks have agreed. */
static cddp_status make(cddp_fsdp *f, cddp_comm *comm, const struct input *in, struct cdi_error *err)
{
    const cddp_ddp_options reducer = {
        .size = sizeof reducer, .bucket_bytes = SIZE_MAX, .first_bucket_bytes = SIZE_MAX, .stream = in->opt.stream};
    cddp_status st = cdi_ddp_create(&f->ddp, comm, in->params, in->n_params, in->unit, &reducer, err);
    size_t bytes = 0;

    if (st == CDDP_OK)
        st = allocate(f, in, err);
    if (st == CDDP_OK) {
        place_parts(f, in);
        bytes = place_slots(f, in);
    }
    st = cdi_comm_agree(comm, "create its sharded model", NULL, 0, NULL, st == CDDP_OK ? NULL : err, err);
    if (st == CDDP_OK)
        name_units(f);
    if (st == CDDP_OK)
        st = f->ddp->ops->region_create(f->ddp->b, bytes, &f->region, err);
    if (st == CDDP_OK)
        f->ddp->shares.grads = (char *)f->region->base + f->shares_at;
    for (size_t u = 0; u < f->n_units && st == CDDP_OK; u++)
        st = load_unit(f, in, u, err);
    if (st == CDDP_OK && f->ddp->ops->on_device)
        st = f->ddp->ops->stream_wait(f->ddp->b, 0, f->ddp->stream, err);
    return st;
}

static cddp_status fsdp_create(cddp_fsdp **out, cddp_comm *comm, const cddp_fsdp_unit *units, size_t n,
                               const cddp_fsdp_options *opt, struct cdi_error *err)
{
    cddp_fsdp *f = calloc(1, sizeof *f);
    struct cdi_across none = {0};
    struct cdi_error ignored;
    struct input in;
    bool goes_on = false;
    cddp_status met, st = read_input(&in, units, n, opt, err);

    if (out == NULL && st == CDDP_OK)
        st = cdi_fail(err, CDDP_E_INVALID, "cddp_fsdp_create: out and comm must not be NULL");
    if (f == NULL && st == CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "no memory for a sharded model");
    if (check_replicas(comm, &in, st == CDDP_OK ? err : &ignored) != CDDP_OK && st == CDDP_OK)
        st = err->status;
    if (cdi_across_check(comm, in.opt.replicas, st == CDDP_OK ? err : &ignored) != CDDP_OK) {
        release_input(&in);
        free(f);
        return st == CDDP_OK ? err->status : st;
    }
    st = agree(comm, &in, st, err);
    met = in.opt.replicas == NULL
              ? CDDP_OK
              : cdi_across_meet(comm, in.opt.replicas, st == CDDP_OK ? hash_model(&in) : 0, st, &goes_on, err);
    if (st == CDDP_OK)
        st = met;
    if (st == CDDP_OK && f != NULL && in.params != NULL) /* as they are, if all is well */
        st = make(f, comm, &in, err);
    if (goes_on)
        st = cdi_across_share(f != NULL ? &f->across : &none, in.opt.replicas, f != NULL ? f->ddp : NULL, st, err);
    if (st != CDDP_OK && in.opt.replicas != NULL)
        cdi_ddp_end_both(comm, in.opt.replicas);
    release_input(&in);
    if (st == CDDP_OK)
        *out = f;
    else if (f != NULL && f->ddp == NULL)
        free(f);
    else
        free_fsdp(f);
    return st;
}

cddp_status cddp_fsdp_create(cddp_fsdp **out, cddp_comm *comm, const cddp_fsdp_unit *units, size_t n_units,
                             const cddp_fsdp_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_FSDP_CREATE);
    struct cdi_error err;
    cddp_status st = cdi_comm_own("cddp_fsdp_create", comm, &err);

    if (st == CDDP_OK && comm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_fsdp_create: out and comm must not be NULL");
    else if (st == CDDP_OK)
        st = fsdp_create(out, comm, units, n_units, opt, &err);
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

void cddp_fsdp_destroy(cddp_fsdp *f)
{
    CDI_DEFAULT_FLOAT_STATE;
    cddp_ddp *d;

    if (f == NULL || cdi_comm_is_others("cddp_fsdp_destroy", f->ddp->comm))
        return;
    d = f->ddp;
    (void)pthread_mutex_lock(&d->lock);
    if (!cdi_comm_is_over(d->comm) && d->joined < d->enqueued)
        (void)cdi_ddp_join_ticket(d, d->enqueued); /* operations in flight use the region */
    (void)pthread_mutex_unlock(&d->lock);
    free_fsdp(f);
}
