/* SPDX-License-Identifier: Apache-2.0 */
/* Makes parts of a communicator: cddp_comm_split by all of its ranks, cddp_comm_create_group by the members alone. */
#include "common/cleanup.h"
#include "common/crc64.h"
#include "common/float_state.h"
#include "common/rank_ranges.h"
#include "worker/backend/who.h"
#include "worker/base/sized.h"
#include "worker/comm/finalize.h"
#include "worker/comm/keys.h"
#include "worker/comm/placement.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What each rank passes to a split. */
struct choice {
    int32_t color, key;
    int32_t on_cpu; /* the part uses the CPU backend, whatever comm uses */
    int32_t node;   /* of this rank, for that part */
};
#define CHOICE_WORDS 4

/* Returns the rank in its part of `rank`: the number of ranks of its color that have a smaller key, or the same key and
 * a lower rank. */
static int rank_in_part(const struct choice *all, int n, int rank)
{
    int before = 0;

    for (int r = 0; r < n; r++)
        before += all[r].color == all[rank].color &&
                  (all[r].key < all[rank].key || (r < rank && all[r].key == all[rank].key));
    return before;
}

/* Sets the part's ranks, in its order, as ranks of the job, and in `members` as ranks of `from`. */
static void find_part(struct cddp_comm *part, const struct cdi_world *from, const struct choice *all, int *members)
{
    struct cdi_world *w = &part->world;

    w->rank = rank_in_part(all, from->size, from->rank);
    w->size = 0;
    for (int r = 0; r < from->size; r++)
        if (all[r].color == all[from->rank].color) {
            int at = rank_in_part(all, from->size, r);

            part->ranks[at] = cdi_rank_of_job(from, r);
            members[at] = r;
            w->size++;
        }
}

/* Returns a rank of the same color as `rank` that wants another backend; -1: there is none. */
static int find_other_backend(const struct choice *all, int n, int rank)
{
    for (int r = 0; r < n; r++)
        if (all[r].color == all[rank].color && all[r].on_cpu != all[rank].on_cpu)
            return r;
    return -1;
}

/* Returns whether any part has the backend of comm: then all ranks split that backend. */
static bool any_splits_backend(const struct choice *all, int n)
{
    for (int r = 0; r < n; r++)
        if (all[r].color >= 0 && !all[r].on_cpu && find_other_backend(all, n, r) < 0)
            return true;
    return false;
}

/* Writes the name of a part, and its ranks of the job: "'tp' (ranks 0, 2-5)", or "(ranks 0, 2, 4 and 61 more)". */
static void name_part(const struct cddp_comm *part, char who[CDI_FLIGHT_WHO])
{
    const struct cdi_world *w = &part->world;
    bool named = w->name[0] != '\0';
    size_t used = (size_t)snprintf(who, CDI_FLIGHT_WHO, "%s%s%s(ranks ", named ? "'" : "", w->name, named ? "' " : "");
    struct cdi_rank_ranges ranges;

    cdi_rank_ranges_begin(&ranges, who + used, CDI_FLIGHT_WHO - 1 - used, UINT_MAX);
    for (int i = 0; i < w->size; i++)
        cdi_rank_ranges_add(&ranges, (uint32_t)w->ranks[i]);
    used += cdi_rank_ranges_end(&ranges);
    (void)snprintf(who + used, CDI_FLIGHT_WHO - used, ")");
}

/* Shows a new part on the worker's page. */
static void show_part(const struct cddp_comm *part)
{
    char who[CDI_FLIGHT_WHO];

    name_part(part, who);
    cdi_flight_mirror(part->record, part->whole->world.flight, who);
}

/* Connects a part of `of` by itself, as a job with its own keys. `nodes`: those of its ranks, in its order. */
static cddp_status split_connect(struct cddp_comm *part, const cddp_comm *of, const int *nodes, struct cdi_error *err)
{
    struct cdi_world *w = &part->world;
    const struct cdi_world *whole = &part->whole->world;
    cddp_status st;

    cdi_node_layout_set_runs(w, nodes);
    (void)snprintf(w->prefix, sizeof w->prefix, "%.*s%016" PRIx64 "/", (int)(sizeof w->prefix - 20), whole->prefix,
                   part->id);
    w->flight = whole->flight; /* for what the agent reports */
    w->record = part->record;
    w->shares_store = true;
    if (w->store != NULL)
        cdi_comm_set_keys(w);
    if (part->ops == of->ops && part->ops->group != NULL)
        st = part->ops->group(of->backend, w, &part->backend, err);
    else
        st = part->ops->create(&part->backend, w, err);
    w->flight = NULL;
    w->watch.fn = NULL;
    return st;
}

static uint64_t id_of_part(const struct cddp_comm *comm, uint32_t number, int color)
{
    const int64_t of[] = {(int64_t)number, color};

    return cdi_crc64(comm->id, of, sizeof of);
}

/*
 * Initializes part as a copy of comm, without the members that are comm's alone, and with room for n ranks. Before the
 * first exchange: later the others would wait for a rank without memory.
 */
static cddp_status begin_part(struct cddp_comm *part, const cddp_comm *comm, size_t n, struct cdi_error *err)
{
    *part = (struct cddp_comm){.whole = comm->whole != NULL ? comm->whole : (cddp_comm *)(uintptr_t)comm,
                               .owner = comm->owner,
                               .user = comm->user,
                               .world = comm->world,
                               .place = comm->place,
                               .ops = comm->ops};
    part->world.keys = (struct cdi_oob){.set = NULL};
    part->world.flight = NULL; /* its records have one writer, which is the whole */
    part->world.ranks = part->ranks = calloc(n, sizeof *part->ranks);
    if (part->ranks == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    return cdi_flight_attach(&part->record, NULL, err);
}

/* members: room for the ranks of comm. */
static cddp_status split_all(struct cddp_comm *part, cddp_comm *comm, const struct choice *all, int *members,
                             struct cdi_split *how, struct cdi_error *err)
{
    int rank = comm->world.rank, size = comm->world.size, other = find_other_backend(all, size, rank);
    bool on_cpu = all[rank].on_cpu != 0, divides = comm->ops->split != NULL,
         takes_part = divides && all[rank].color >= 0 && !on_cpu && other < 0;
    cddp_status st = CDDP_OK;

    part->id = id_of_part(comm, comm->n_splits++, all[rank].color);
    find_part(part, &comm->world, all, members);
    cdi_split_adopt(&part->world, how);
    if (comm->world.keys.set != NULL) {
        cdi_comm_set_keys(&part->world); /* comm's would be freed with it */
        how->keys = part->world.keys;
    }
    how->color = takes_part ? how->color : -1;
    how->ranks = part->ranks;
    how->n = part->world.size;
    how->record = part->record;
    if (divides && any_splits_backend(all, size))
        st = comm->ops->split(comm->backend, how, &part->backend, err);
    if (st == CDDP_OK && all[rank].color >= 0 && other >= 0)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "cddp_comm_split: of color %d, %s wants the backend \"cpu\", but %s that of comm: choose one",
                        (int)all[rank].color, cdi_who(comm->world.ranks, on_cpu ? rank : other).text,
                        cdi_who(comm->world.ranks, on_cpu ? other : rank).text);
    if (st != CDDP_OK || all[rank].color < 0 || takes_part)
        return st;
    if (on_cpu)
        part->ops = &cdi_cpu_backend;
    for (int i = 0; i < part->world.size; i++) /* from ranks of comm to their nodes */
        members[i] = all[members[i]].node;
    return split_connect(part, comm, members, err);
}

/* ----------------------------------------------------------------------------- ending the wait for members ---- */

struct watched {
    const struct cddp_comm *whole;
    bool was_aborted; /* before the call: survivors may make a part */
};

static bool is_abort(const struct cddp_comm *c, struct cdi_error *err)
{
    return c->ops->peek(c->backend, err) == CDDP_E_ABORTED;
}

static cddp_status watch_whole(void *arg, const int *of_job, int n, struct cdi_error *err)
{
    const struct watched *w = arg;
    const struct cddp_comm *c = w->whole;
    struct cdi_error why;
    cddp_status st = c->ops->check_ranks != NULL ? c->ops->check_ranks(c->backend, of_job, n, err) : CDDP_OK;

    if (st != CDDP_OK || w->was_aborted || !is_abort(c, &why))
        return st;
    return cdi_fail_since(err, &why, "%s", why.msg);
}

/* Reads the options of a part to be made. */
static cddp_status read_split(struct cdi_split *how, bool *on_cpu, cddp_split_options *known, const cddp_comm *comm,
                              const cddp_split_options *opt, const char *function, struct cdi_error *err)
{
    const char *backend = NULL;

    *known = (cddp_split_options){.size = sizeof *known};
    if (opt != NULL) {
        cddp_status st = cdi_sized_get(known, sizeof *known, opt, "cddp_split_options", err);

        if (st != CDDP_OK)
            return st;
        if (known->flags != 0)
            return cdi_fail(err, CDDP_E_UNSUPPORTED, "%s: cddp_split_options.flags has unknown bits (%#x)", function,
                            known->flags);
        if (known->timeout_ms < 0)
            return cdi_fail(err, CDDP_E_INVALID, "%s: the timeout is negative", function);
        st = cdi_comm_check_name("cddp_split_options.name", known->name, err);
        if (st != CDDP_OK)
            return st;
        backend = known->backend;
    }
    how->timeout_ms = known->timeout_ms;
    how->name = known->name;
    *on_cpu = backend != NULL && strcmp(backend, comm->ops->name) != 0;
    if (*on_cpu && strcmp(backend, cdi_cpu_backend.name) != 0)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "%s: a part of a communicator with backend \"%s\" can use that backend or \"cpu\", but not '%.64s'",
            function, comm->ops->name, backend);
    return CDDP_OK;
}

/* Frees a part that could not be made; NULL is allowed. Peers that have made it see that this rank has left. */
static void discard_part(struct cddp_comm *part)
{
    if (part == NULL)
        return;
    if (part->backend != NULL)
        part->ops->destroy(part->backend);
    cdi_flight_release(part->record);
    free(part->ranks);
}

cddp_status cddp_comm_split(cddp_comm **to, cddp_comm *comm, int color, int key, const cddp_split_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_split how = {.color = color, .key = key};
    struct watched whole = {.whole = comm};
    CDI_AUTOFREE struct choice *all = NULL;
    CDI_AUTOFREE int *members = NULL;
    CDI_AUTOFREE struct cddp_comm *part = NULL;
    cddp_split_options known;
    struct choice mine;
    struct cdi_error err;
    bool on_cpu;
    cddp_status st;

    if (cdi_comm_own("cddp_comm_split", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    if (to == NULL || comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_comm_split: out and comm must not be NULL"),
                                     &err);
    st = read_split(&how, &on_cpu, &known, comm, opt, "cddp_comm_split", &err);
    if (st != CDDP_OK)
        return cdi_last_error_return(st, &err);
    part = calloc(1, sizeof *part);
    st = part != NULL ? begin_part(part, comm, (size_t)comm->world.size, &err)
                      : cdi_fail(&err, CDDP_E_NOMEM, "out of memory for a communicator");
    if (st == CDDP_OK) {
        all = calloc((size_t)comm->world.size, sizeof *all);
        members = calloc((size_t)comm->world.size, sizeof *members);
        if (all == NULL || members == NULL)
            st = cdi_fail(&err, CDDP_E_NOMEM, "out of memory for a communicator");
    }
    if (st != CDDP_OK) {
        discard_part(part);
        return cdi_last_error_return(st, &err);
    }
    mine = (struct choice){.color = color,
                           .key = key,
                           .on_cpu = on_cpu,
                           .node = (comm->whole != NULL ? comm->whole : comm)->world.node_rank};
    how.watch = (struct cdi_watch){.fn = watch_whole, .arg = &whole};
    (void)cdi_api_enter(CDI_API_COMM_SPLIT);
    st = cdi_comm_all_gather(comm, &mine, all, CHOICE_WORDS, CDDP_INT32, &err);
    (void)cdi_api_enter(CDI_API_ITSELF);
    if (st == CDDP_OK)
        st = split_all(part, comm, all, members, &how, &err);
    part->world.watch.fn = NULL;
    if (st == CDDP_OK && color >= 0) {
        show_part(part);
        cdi_comm_add_part(part);
    }
    if (st == CDDP_OK)
        *to = color < 0 ? NULL : part;
    if (st == CDDP_OK && color >= 0)
        part = NULL; /* the program owns it now */
    discard_part(part);
    return cdi_last_error_return(st, &err);
}

/* ------------------------------------------------------------------------------- parts made by their members alone
 * ---- */

/* Checks that the ranks are ranks of comm, each once, and include this one, whose place is *me. */
static cddp_status check_members(const cddp_comm *comm, const int *ranks, size_t n, int *me, struct cdi_error *err)
{
    const struct cdi_world *w = &comm->world;
    CDI_AUTOFREE bool *seen = NULL;

    if (n == 0 || n > (size_t)w->size)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_comm_create_group: n is %zu, but a group has 1 to %d members", n,
                        w->size);
    seen = calloc((unsigned)w->size, sizeof *seen);
    if (seen == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    *me = -1;
    for (size_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= w->size)
            return cdi_fail(err, CDDP_E_INVALID, "cddp_comm_create_group: ranks[%zu] = %d is not from 0 to %d", i,
                            ranks[i], w->size - 1);
        if (seen[ranks[i]])
            return cdi_fail(err, CDDP_E_INVALID, "cddp_comm_create_group: rank %d is in the list twice", ranks[i]);
        seen[ranks[i]] = true;
        if (ranks[i] == w->rank)
            *me = (int)i;
    }
    if (*me < 0)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_comm_create_group: this process is rank %d, which is not in the list: call it on members only",
            w->rank);
    return CDDP_OK;
}

static cddp_status create_group(struct cddp_comm *part, cddp_comm *comm, const int *ranks, int n, int me, int tag,
                                bool on_cpu, struct cdi_split *how, struct cdi_error *err)
{
    CDI_AUTOFREE int *nodes = NULL;
    struct cdi_world *w = &part->world;
    struct watched whole = {.whole = comm};
    struct cdi_group g;
    cddp_status st;

    whole.was_aborted = is_abort(comm, &(struct cdi_error){.status = CDDP_OK});
    how->watch = (struct cdi_watch){.fn = watch_whole, .arg = &whole};
    st = begin_part(part, comm, (size_t)n, err);
    if (st != CDDP_OK)
        return st;
    nodes = calloc((size_t)n, sizeof *nodes);
    if (nodes == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    for (int i = 0; i < n; i++)
        part->ranks[i] = cdi_rank_of_job(&comm->world, ranks[i]);
    w->rank = me;
    w->size = n;
    cdi_split_adopt(w, how);
    g = (struct cdi_group){.store = part->whole->world.store,
                           .flight = part->whole->world.flight,
                           .watch = how->watch,
                           .prefix = part->whole->world.prefix,
                           .calls = &comm->groups,
                           .comm = comm->id,
                           .ranks = ranks,
                           .of_job = part->ranks,
                           .n = n,
                           .self = me,
                           .tag = tag,
                           .node = part->whole->world.node_rank,
                           .on_cpu = on_cpu,
                           .timeout_ms = comm->world.init_timeout_ms};
    st = cdi_group_gather(&g, nodes, &part->id, err);
    if (st != CDDP_OK)
        return st;
    if (on_cpu)
        part->ops = &cdi_cpu_backend;
    return split_connect(part, comm, nodes, err);
}

cddp_status cddp_comm_create_group(cddp_comm **to, cddp_comm *comm, const int *ranks, size_t n, int tag,
                                   const cddp_split_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_split how = {.color = 0};
    CDI_AUTOFREE struct cddp_comm *part = NULL;
    cddp_split_options known;
    struct cdi_error err;
    bool on_cpu;
    int me = -1;
    cddp_status st;

    if (cdi_comm_own("cddp_comm_create_group", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    if (to == NULL || comm == NULL || ranks == NULL)
        return cdi_last_error_return(
            cdi_fail(&err, CDDP_E_INVALID, "cddp_comm_create_group: out, comm and ranks must not be NULL"), &err);
    st = read_split(&how, &on_cpu, &known, comm, opt, "cddp_comm_create_group", &err);
    if (st == CDDP_OK)
        st = check_members(comm, ranks, n, &me, &err);
    if (st != CDDP_OK)
        return cdi_last_error_return(st, &err);
    part = calloc(1, sizeof *part);
    if (part == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_NOMEM, "out of memory for a communicator"), &err);
    st = create_group(part, comm, ranks, (int)n, me, tag, on_cpu, &how, &err);
    if (st == CDDP_OK) {
        show_part(part);
        cdi_comm_add_part(part);
        *to = cdi_steal(&part);
    }
    discard_part(part);
    return cdi_last_error_return(st, &err);
}
