/* SPDX-License-Identifier: Apache-2.0 */
/* The join protocol over the store. */
#include "worker/comm/join.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/float_state.h"
#include "common/rank_list.h"
#include "common/time_limits.h"
#include "worker/base/host_id.h"
#include "worker/comm/claim.h"
#include "worker/comm/crash.h"
#include "worker/comm/error_file.h"
#include "worker/comm/keys.h"
#include "worker/comm/placement.h"
#include "worker/comm/unique_id.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK_MS 1000          /* between two checks whether a missing rank has exited */
#define GIVEN_UP "given up by" /* begins the go key's value if a rank has given up joining; the rank follows */

/*
 * One counter holds the number of ranks that have joined and, in its higher bits, the sum of their world sizes. So a
 * rank that has another world size detects it when it joins.
 */
#define JOINED_BITS 21

_Static_assert(CDI_RANKS_MAX < INT64_C(1) << JOINED_BITS, "all ranks fit");
_Static_assert(CDI_RANKS_MAX <= (INT64_MAX >> JOINED_BITS) / CDI_RANKS_MAX, "and so does the sum of their world sizes");

static int64_t joined_delta(const struct cdi_world *w)
{
    return INT64_C(1) | (int64_t)w->size << JOINED_BITS;
}

static int64_t joined_ranks(int64_t sum)
{
    return sum & ((INT64_C(1) << JOINED_BITS) - 1);
}

static bool joined_alike(const struct cdi_world *w, int64_t sum)
{
    return sum >> JOINED_BITS == joined_ranks(sum) * w->size;
}

static cddp_status join_fail_missing(const struct cddp_comm *c, struct cdi_error *err)
{
    const struct cdi_world *w = &c->world;
    struct cdi_rank_list missing = {0};
    char key[CDI_COMM_KEY_BYTES];
    int64_t joined = 0;
    int first = -1;
    cddp_status st;

    cdi_comm_key(w, "joined", -1, key);
    st = cdi_store_add(w->store, key, 0, &joined, err);
    joined = joined_ranks(joined);
    for (int r = 0; r < w->size && st == CDDP_OK && missing.n < CDI_RANK_LIST_SHOWN; r++) {
        bool there;

        cdi_comm_key(w, "rank", r, key);
        st = cdi_store_exists(w->store, key, &there, err);
        if (st == CDDP_OK && !there) {
            cdi_rank_list_add(&missing, r);
            first = first < 0 ? r : first;
        }
    }
    if (st != CDDP_OK)
        return st;
    if (first >= 0 && !c->given) /* the launcher knows only its own ranks */
        cdi_flight_miss(w->flight, first);
    return cdi_fail_by(err, first, CDDP_E_TIMEOUT, "%" PRId64 " of %d ranks did not join within %.4g s: %s%s",
                       w->size - joined, w->size, (double)w->init_timeout_ms / 1000, missing.text,
                       w->size - joined > missing.n ? ", and more" : "");
}

/* Fails if a rank of this node has exited without joining, as the agent reports on the flight page. */
static cddp_status check_for_exited(const struct cdi_world *w, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    bool there = false;
    char key[CDI_COMM_KEY_BYTES];
    int rank;

    for (uint32_t i = 0; st == CDDP_OK && (rank = cdi_flight_ended(w->flight, i)) >= 0; i++) {
        cdi_comm_key(w, "rank", rank, key);
        st = cdi_store_exists(w->store, key, &there, err);
        if (st == CDDP_OK && !there) {
            cdi_flight_miss(w->flight, rank);
            st = cdi_fail_by(err, rank, CDDP_E_PEER, "rank %d " CDI_FLIGHT_ABSENT " and did not join", rank);
        }
    }
    return st;
}

/* Waits for the last rank to set go_key. */
static cddp_status wait_for_all(const struct cddp_comm *c, const char *go_key, char *text, size_t cap, size_t *len,
                                int64_t deadline_ms, struct cdi_error *err)
{
    const struct cdi_world *w = &c->world;
    /* With any number of waiting ranks the store answers about 1000 of these checks in a second. */
    int64_t check_ms = w->size > CHECK_MS ? w->size : CHECK_MS;

    for (;;) {
        int64_t left = deadline_ms - cdi_now_ms();
        bool last = c->given || left <= check_ms;
        cddp_status st = cdi_store_get(w->store, go_key, text, cap, len, last ? left > 0 ? left : 1 : check_ms, err);

        if (st == CDDP_E_TIMEOUT && last)
            return join_fail_missing(c, err);
        if (st == CDDP_E_TIMEOUT)
            st = check_for_exited(w, err);
        else
            return st;
        if (st != CDDP_OK)
            return st;
    }
}

/*
 * Returns this rank's part of a sum over all ranks, which counts the ranks of each backend: 0 for the CPU, 1 for a GPU,
 * and size + 1 for MPI. All ranks must use the same one.
 */
static int64_t backend_weight(const struct cddp_comm *c)
{
    return c->ops == &cdi_cpu_backend ? 0 : c->ops->on_device ? 1 : (int64_t)c->world.size + 1;
}

/* Publishes the backend unless it is the CPU. Called before this rank counts as joined. */
static cddp_status publish_backend(const struct cddp_comm *c, struct cdi_error *err)
{
    char key[CDI_COMM_KEY_BYTES];
    cddp_status st;

    if (c->ops == &cdi_cpu_backend)
        return CDDP_OK;
    cdi_comm_key(&c->world, "device", c->world.rank, key);
    st = cdi_store_set(c->world.store, key, c->ops->name, strlen(c->ops->name), err);
    cdi_comm_key(&c->world, "devices", -1, key);
    return st == CDDP_OK ? cdi_store_add(c->world.store, key, backend_weight(c), NULL, err) : st;
}

/* Sets *has to whether `rank` has published the backend of that name. */
static cddp_status has_backend(const struct cdi_world *w, int rank, const char *name, bool *has, struct cdi_error *err)
{
    char key[CDI_COMM_KEY_BYTES], text[16];
    size_t len = 0;
    cddp_status st;

    cdi_comm_key(w, "device", rank, key);
    st = cdi_store_exists(w->store, key, has, err);
    if (st == CDDP_OK && *has)
        st = cdi_store_get(w->store, key, text, sizeof text, &len, w->init_timeout_ms, err);
    *has = *has && len == strlen(name) && memcmp(text, name, len) == 0;
    return st;
}

static cddp_status compare_backends(const struct cdi_world *w, int64_t sum, struct cdi_error *err)
{
    int64_t n_gpu = sum % (w->size + 1), n_mpi = sum / (w->size + 1), n = n_mpi > 0 ? n_mpi : n_gpu;
    struct cdi_rank_list without = {0};
    cddp_status st = CDDP_OK;

    if (n == 0 || n == w->size)
        return CDDP_OK;
    for (int r = 0; r < w->size && st == CDDP_OK && without.n < CDI_RANK_LIST_SHOWN; r++) {
        bool has;

        st = has_backend(w, r, n_mpi > 0 ? "mpi" : "nccl", &has, err);
        if (st == CDDP_OK && !has)
            cdi_rank_list_add(&without, r);
    }
    if (st != CDDP_OK)
        return st;
    return cdi_fail(err, CDDP_E_MISMATCH, "%" PRId64 " of %d ranks use %s, but not rank %s%s: %s", n, w->size,
                    n_mpi > 0 ? "MPI" : "a GPU", without.text, w->size - n > without.n ? ", and more" : "",
                    n_mpi > 0 ? "set CDDP_BACKEND=mpi for all ranks or for none"
                              : "give every rank a GPU, or train on the CPU with CDDP_BACKEND=cpu");
}

/*
 * Waits until all ranks have joined, by one counter and one key. The last rank sets that key to the sum of the
 * backends' weights; the others wait for it.
 */
static cddp_status gather_ranks(const struct cddp_comm *c, int64_t deadline_ms, struct cdi_error *err)
{
    const struct cdi_world *w = &c->world;
    char joined_key[CDI_COMM_KEY_BYTES], go_key[CDI_COMM_KEY_BYTES], devices_key[CDI_COMM_KEY_BYTES], text[256] = "";
    int64_t joined = 0, devices = 0;
    size_t len = 0;
    cddp_status st;

    cdi_comm_key(w, "joined", -1, joined_key);
    cdi_comm_key(w, "go", -1, go_key);
    cdi_comm_key(w, "devices", -1, devices_key);
    st = publish_backend(c, err);
    if (st == CDDP_OK)
        st = cdi_store_add(w->store, joined_key, joined_delta(w), &joined, err);
    if (st == CDDP_OK && !joined_alike(w, joined)) {
        (void)snprintf(text, sizeof text,
                       "%s mismatch: %d on rank %d, but different on a rank that joined earlier: set the same on all",
                       c->given ? "world_size" : "WORLD_SIZE", w->size, w->rank);
        (void)cdi_store_set(w->store, go_key, text, strlen(text), NULL); /* if it fails, they wait for the timeout */
        return cdi_fail(err, CDDP_E_MISMATCH, "%s", text);
    }
    if (st == CDDP_OK && joined_ranks(joined) == w->size) {
        st = cdi_store_add(w->store, devices_key, 0, &devices, err);
        (void)snprintf(text, sizeof text, "%" PRId64, devices);
        if (st == CDDP_OK)
            st = cdi_store_set(w->store, go_key, text, strlen(text), err);
    } else if (st == CDDP_OK) {
        st = wait_for_all(c, go_key, text, sizeof text - 1, &len, deadline_ms, err);
        if (st == CDDP_OK && strncmp(text, GIVEN_UP, sizeof GIVEN_UP - 1) == 0) {
            int who = -1;

            (void)sscanf(text, GIVEN_UP " %d", &who);
            return cdi_fail_by(err, who, CDDP_E_ABORTED, "rank %d gave up joining: its program interrupted cddp_init",
                               who);
        }
        if (st == CDDP_OK && !cdi_parse_int(text, 0, (int64_t)w->size * (w->size + 1), &devices))
            st = cdi_fail(err, CDDP_E_MISMATCH, "%.*s", (int)len, text);
    }
    return st == CDDP_OK ? compare_backends(w, devices, err) : st;
}

/* Gets the host ids of all ranks. Rank 0 gathers them, and the others read one table. */
static cddp_status exchange_hosts(const struct cdi_world *w, uint8_t *ids, int64_t deadline_ms, struct cdi_error *err)
{
    const size_t bytes = (size_t)w->size * CDI_HOST_ID;
    char key[CDI_COMM_KEY_BYTES], all_key[CDI_COMM_KEY_BYTES];
    int64_t left;
    size_t len = 0;
    cddp_status st = CDDP_OK;

    cdi_comm_key(w, "hosts", -1, all_key);
    if (w->rank == 0) {
        for (int r = 0; r < w->size && st == CDDP_OK; r++) {
            cdi_comm_key(w, "host", r, key);
            left = deadline_ms - cdi_now_ms();
            st = cdi_store_get(w->store, key, ids + (size_t)r * CDI_HOST_ID, CDI_HOST_ID, &len, left > 0 ? left : 1,
                               err);
            if (st == CDDP_OK && len != CDI_HOST_ID)
                st = CDDP_E_LIMIT;
        }
        if (st == CDDP_OK)
            return cdi_store_set(w->store, all_key, ids, bytes, err);
    } else {
        left = deadline_ms - cdi_now_ms();
        st = cdi_store_get(w->store, all_key, ids, bytes, &len, left > 0 ? left : 1, err);
        if (st == CDDP_OK && len == bytes)
            return CDDP_OK;
    }
    return st == CDDP_OK || st == CDDP_E_LIMIT
               ? cdi_fail(err, CDDP_E_MISMATCH, "ranks have different WORLD_SIZE, or run different versions of libcddp")
               : st;
}

/* Returns whether an agent (cddprun, torchrun) has set the node layout. Otherwise all ranks find it out together. */
static bool is_placed(const struct cdi_launch *l)
{
    const struct cdi_node_layout *p = &l->place;

    return l->hosted && p->local_rank >= 0 && p->local_size > 0 && p->node_rank >= 0 && p->n_nodes > 0;
}

static int known_or(int given, int found)
{
    return given >= 0 ? given : found;
}

static cddp_status join_set_layout(struct cddp_comm *c, const struct cdi_launch *l, int64_t deadline_ms,
                                   struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    struct cdi_node_layout hosts = l->place, runs = l->place;

    if (!is_placed(l)) {
        CDI_AUTOFREE uint8_t *ids = calloc((size_t)w->size, CDI_HOST_ID);
        cddp_status st;

        if (ids == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
        st = exchange_hosts(w, ids, deadline_ms, err);
        if (st != CDDP_OK)
            return st;
        cdi_node_layout_of(ids, w->size, w->rank, &hosts, &runs);
    }
    /* Users see the layout that was given; memory is shared by the real one. */
    c->place.local_rank = known_or(l->place.local_rank, hosts.local_rank);
    c->place.local_size = known_or(l->place.local_size, hosts.local_size);
    c->place.node_rank = known_or(l->place.node_rank, hosts.node_rank);
    c->place.n_nodes = known_or(l->place.n_nodes, hosts.n_nodes);
    w->local_rank = runs.local_rank;
    w->local_size = runs.local_size;
    w->node_rank = runs.node_rank;
    w->n_nodes = runs.n_nodes;
    w->device_rank = c->place.local_rank;
    return CDDP_OK;
}

/* Publishes this rank's host id. Called before this rank counts as joined. */
static cddp_status publish_host(const struct cdi_world *w, struct cdi_error *err)
{
    uint8_t id[CDI_HOST_ID];
    char key[CDI_COMM_KEY_BYTES];

    cdi_host_id(id);
    cdi_comm_key(w, "host", w->rank, key);
    return cdi_store_set(w->store, key, id, sizeof id, err);
}

static cddp_status host_store(struct cddp_comm *c, const struct cdi_launch *l, struct cdi_error *err)
{
    struct cdi_store_host_options opt = {.host = l->host,
                                         .host_source = l->given ? "cddp_init_options.host" : NULL,
                                         .port = l->port,
                                         .run_id = l->given ? NULL : cdi_env_str("TORCHELASTIC_RUN_ID")};
    const char *path = cdi_env_str(CDI_SECRET_ENV);
    struct cdi_secret secret = {.key = {0}};
    cddp_status st = path != NULL ? cdi_secret_load(&secret, path, err) : CDDP_OK;

    if (st == CDDP_OK) {
        opt.secret = path != NULL ? &secret : NULL;
        st = cdi_store_host_start(&c->host, &opt, err);
    }
    cdi_secret_release(&secret);
    return st;
}

/*
 * Connects to the store and claims the rank. Sets *is_old if the store belongs to a join that this process has left.
 * id: the store's address, or NULL.
 */
static cddp_status enter_store(struct cddp_comm *c, const struct cdi_launch *l, const struct cdi_store_endpoint *id,
                               int64_t left_ms, bool *is_old, struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    const struct cdi_store_way way = {.host = c->host != NULL ? cdi_store_host_address(c->host) : l->host,
                                      .port = l->port,
                                      .flight = w->flight,
                                      .given = l->given,
                                      .id = id};
    cddp_status st = cdi_store_join(&w->store, &way, left_ms, err);

    *is_old = false;
    if ((st == CDDP_E_IO || st == CDDP_E_TIMEOUT) && c->by == CDI_STORE_BY_RANK_0 && w->rank != 0 && err != NULL) {
        struct cdi_error why = *err;

        return cdi_fail_since(
            err, &why, "%.700s; rank 0 hosts the store (%s): it has not started, or runs on another host", why.msg,
            l->given ? "CDDP_INIT_HOST_STORE" : "TORCHELASTIC_USE_AGENT_STORE is not \"True\"");
    }
    if (st != CDDP_OK)
        return st;
    cdi_store_watch(w->store, w->flight, c->by);
    cdi_store_set_timeout(w->store, w->init_timeout_ms);
    return cdi_claim_rank(c, is_old, err);
}

static bool join_is_store_over(cddp_status st)
{
    return st == CDDP_E_CLOSED || st == CDDP_E_PEER || st == CDDP_E_IO;
}

/*
 * Enters the store. A rank that joins again may still reach the store of the join before, which rank 0 is about to end:
 * it waits for that end, and tries again.
 */
static cddp_status enter_new_store(struct cddp_comm *c, const struct cdi_launch *l, const struct cdi_store_endpoint *id,
                                   int64_t deadline_ms, struct cdi_error *err)
{
    bool again = cdi_claim_has_left() && c->by == CDI_STORE_BY_RANK_0 && c->host == NULL, is_old;
    int64_t left = c->world.init_timeout_ms;
    char key[CDI_COMM_KEY_BYTES], none[8];
    cddp_status st;

    for (;;) {
        size_t len;

        st = enter_store(c, l, id, left > 0 ? left : 1, &is_old, err);
        left = deadline_ms - cdi_now_ms();
        if (!is_old && (!again || !join_is_store_over(st) || c->world.store == NULL || left <= 0))
            return st;
        cdi_comm_key(&c->world, "never", -1, key);
        if (is_old)
            st = cdi_store_get(c->world.store, key, none, sizeof none, &len, left > 0 ? left : 1, err);
        if (cdi_flight_check(c->world.flight, NULL) != CDDP_OK) /* the page's error explains this one */
            return cdi_flight_check(c->world.flight, err);
        if (is_old && !join_is_store_over(st))
            return st == CDDP_E_TIMEOUT
                       ? cdi_fail_by(err, 0, CDDP_E_TIMEOUT,
                                     "rank 0 did not finalize its communicator within %.4g s, which it "
                                     "must before it can host the next store",
                                     (double)c->world.init_timeout_ms / 1000)
                       : st;
        cddp_store_close(c->world.store);
        c->world.store = NULL;
        left = deadline_ms - cdi_now_ms();
    }
}

static cddp_status join_by_store(struct cddp_comm *c, const struct cdi_launch *l, const struct cdi_store_endpoint *id,
                                 struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), w->init_timeout_ms);
    cddp_status st = CDDP_OK;

    c->by = id != NULL ? CDI_STORE_BY_ID : l->hosted ? CDI_STORE_BY_OTHERS : CDI_STORE_BY_RANK_0;
    if (c->by == CDI_STORE_BY_RANK_0 && w->rank == 0)
        st = host_store(c, l, err);
    if (st == CDDP_OK)
        st = enter_new_store(c, l, id, deadline_ms, err);
    if (st == CDDP_OK && !is_placed(l))
        st = publish_host(w, err);
    if (st == CDDP_OK)
        st = gather_ranks(c, deadline_ms, err);
    if (st == CDDP_E_TIMEOUT && c->host != NULL && cdi_store_host_is_foreign(c->host) && err != NULL) {
        struct cdi_error why = *err;

        return cdi_fail_since(err, &why, "%.700s; %s='%.255s' is not an address of this host, where rank 0 runs",
                              why.msg, l->given ? "cddp_init_options.host" : "MASTER_ADDR", l->host);
    }
    return st == CDDP_OK ? join_set_layout(c, l, deadline_ms, err) : st;
}

static cddp_status connect_ranks(struct cddp_comm *c, const struct cdi_launch *l, const struct cdi_store_endpoint *id,
                                 struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (l->alone) {
        c->world.local_size = c->world.n_nodes = 1;
        c->place = l->place;
    } else {
        st = join_by_store(c, l, id, err);
    }
    if (st == CDDP_OK && (c->world.local_size == c->world.size) != (c->world.n_nodes == 1))
        return cdi_fail(err, CDDP_E_INVALID,
                        "%d of %d ranks are on this node (LOCAL_WORLD_SIZE), which is inconsistent with %d nodes "
                        "(GROUP_WORLD_SIZE)",
                        c->world.local_size, c->world.size, c->world.n_nodes);
    if (st == CDDP_OK && c->world.store != NULL)
        cdi_comm_set_keys(&c->world);
    return st != CDDP_OK ? st : c->ops->create(&c->backend, &c->world, err);
}

/* Tells the other ranks, also those that join later, that this rank's program has given up. */
static void publish_given_up(const struct cddp_comm *c)
{
    const struct cdi_world *w = &c->world;
    char key[CDI_COMM_KEY_BYTES], text[128];

    if (w->store == NULL || c->claim == 0)
        return;
    (void)snprintf(text, sizeof text, GIVEN_UP " %d", w->rank);
    cdi_comm_key(w, "go", -1, key);
    cdi_store_set_timeout(w->store, 1000 * CDI_LIMIT_GOODBYE_S);
    (void)cdi_store_set(w->store, key, text, strlen(text), NULL);
}

static int ask_program(void *arg)
{
    const cddp_init_options *opt = arg;
    CDI_CALLERS_FLOAT_STATE;

    return opt->interrupted(opt->arg);
}

cddp_status cdi_join(struct cddp_comm *c, const struct cdi_launch *l, const cddp_init_options *opt,
                     struct cdi_error *err)
{
    cddp_init_options program = *opt;
    struct cdi_flight_question asked = {.fn = ask_program, .arg = &program, .what = "cddp_init"};
    struct cdi_store_endpoint id;
    cddp_status st = opt->id != NULL ? cdi_unique_id_read(&id, opt->id, err) : CDDP_OK;

    if (st == CDDP_OK)
        st = cdi_flight_attach(&c->world.flight, cdi_env_str(CDI_FLIGHT_ENV), err);
    if (st == CDDP_OK)
        st = cdi_crash_arm(c->world.flight, err);
    if (st == CDDP_OK)
        cdi_error_page_arm(c->world.flight);
    if (st == CDDP_OK)
        st = cdi_page_acquire(c, err);
    if (st != CDDP_OK)
        return st;
    c->host = opt->id != NULL ? cdi_unique_id_take(opt->id) : NULL;
    if (opt->interrupted != NULL)
        cdi_flight_ask(c->world.flight, &asked);
    st = connect_ranks(c, l, opt->id != NULL ? &id : NULL, err);
    if (opt->id != NULL)
        cdi_secret_release(&id.secret);
    cdi_flight_ask(c->world.flight, NULL);
    if (st != CDDP_OK && asked.answer != 0) {
        if (err != NULL)
            err->blamed = c->world.rank + 1;
        publish_given_up(c);
    }
    return st;
}
