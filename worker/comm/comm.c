/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator: from the environment's variables through the store to a backend that connects all ranks, and parts
 * of it. collective.c has what is done with one.
 */
#include "worker/comm/comm.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/crc64.h"
#include "common/env.h"
#include "common/rank_list.h"
#include "worker/backend/loader.h"
#include "worker/base/host_id.h"
#include "worker/base/owner.h"
#include "worker/base/sized.h"
#include "worker/comm/create_group.h"
#include "worker/comm/error_file.h"
#include "worker/comm/launch_env.h"
#include "worker/comm/memory.h"
#include "worker/comm/placement.h"
#include "worker/comm/unique_id.h"
#include "worker/store/client.h"
#include "worker/store/host.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define JOIN_TIMEOUT_S 300
#define TIMEOUT_S 600
#define LOOK_MS 1000    /* between two looks whether who has not joined has exited */
#define GOODBYE_MS 2000 /* for the store's host to take note of it */
#define KEY_BYTES 320
#define JOIN_KEY_BYTES 160
#define GIVEN_UP "given up by" /* in place of the backends' sum: the rank follows */
#define BROKEN_GOODBYE_MS 2000 /* for the others to leave a store whose job has failed */

struct cddp_comm {
    struct cdi_owner owner;
    struct cdi_owner user; /* the same, until it is over; then nobody, so that every call is refused at no cost */
    struct cdi_world world;
    struct cdi_node_layout place; /* as users see it; world has it as the backend needs it */
    enum cdi_store_by by;         /* who hosts the store */
    struct cdi_store_host *host;  /* where this rank does */
    unsigned claim;               /* of its rank there, among this process's; 0: none yet */
    bool has_page;                /* it writes the agent's page */
    bool given;                   /* rank, size and store come from the program, and not from the environment */
    const struct cdi_backend_ops *ops;
    struct cdi_backend *backend;
    struct cdi_on_finalize on_finalize;
    struct cdi_memory memory;
    _Atomic int n_aborting; /* threads in cddp_abort */
    /* Of a part, also of a part's part: what cddp_init made, which has all but world, ops, backend and on_finalize. */
    struct cddp_comm *whole;
    int *ranks;                /* of a part: world.ranks */
    struct cdi_flight *record; /* of a part that this file has made: world.record */
    uint64_t id;               /* the same on all its ranks, and another one in each communicator of the job */
    uint32_t n_splits;
    struct cdi_group_calls groups;
    struct cddp_comm *parts; /* of the whole: those that were not finalized; of a part: `next` is the next one */
    struct cddp_comm *next;
    int n_children; /* reducers and, of the whole, parts, which use its memory */
    bool over;      /* this rank has left it: by cddp_finalize, or with its whole */
    bool finalized; /* and the program does not know it any more */
    struct cdi_grave *graves;
    struct cdi_error result; /* of leaving it */
};

/* Covers n_children, parts, next, graves and finalized of all communicators, and which claims are held. */
static pthread_mutex_t family = PTHREAD_MUTEX_INITIALIZER;
static bool page_is_taken; /* the agent's, by a communicator of that process; with `family` */
static pid_t page_taken_by;

/* ------------------------------------------------------------------------------------------- the environment ---- */

static cddp_status read_timeouts(struct cdi_world *w, const cddp_init_options *opt, struct cdi_error *err)
{
    int64_t join_s, wait_s;
    cddp_status st = cdi_env_int_or("CDDP_JOIN_TIMEOUT", 1, INT_MAX / 1000, JOIN_TIMEOUT_S, &join_s, err);

    if (st == CDDP_OK)
        st = cdi_env_int_or("CDDP_TIMEOUT", 1, INT_MAX / 1000, TIMEOUT_S, &wait_s, err);
    if (st != CDDP_OK)
        return st;
    if (opt->join_timeout_ms < 0 || opt->timeout_ms < 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options: a timeout is negative");
    w->join_timeout_ms = opt->join_timeout_ms > 0 ? opt->join_timeout_ms : join_s * 1000;
    w->timeout_ms = opt->timeout_ms > 0 ? opt->timeout_ms : wait_s * 1000;
    return CDDP_OK;
}

/*
 * A GPU if there is one, else the CPU, unless the program or its user says otherwise; MPI is only taken by name. Looks
 * at this machine; no communication.
 */
static cddp_status choose_backend(const struct cdi_backend_ops **ops, const cddp_init_options *opt,
                                  struct cdi_error *err)
{
    const char *said = opt->backend != NULL ? opt->backend : cdi_env_str("CDDP_BACKEND");
    const char *who = opt->backend != NULL ? "cddp_init_options.backend" : "CDDP_BACKEND";
    bool is_there, any = said == NULL || strcmp(said, "auto") == 0;
    const char *name = any ? "nccl" : said;
    cddp_status st;

    *ops = &cdi_cpu_backend;
    if (strcmp(name, "cpu") == 0)
        return CDDP_OK;
    if (strcmp(name, "nccl") != 0 && strcmp(name, "mpi") != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "there is no backend '%.64s' in this libcddp (%s): use \"auto\", \"cpu\", \"nccl\" or \"mpi\"",
                        name, who);
    st = cdi_module_open(name, ops, &is_there, err);
    if (st != CDDP_OK && any && (!is_there || st == CDDP_E_NOT_FOUND)) {
        *ops = &cdi_cpu_backend;
        return CDDP_OK;
    }
    return st == CDDP_OK || any ? st : cdi_error_wrap(err, "%s is \"%s\"", who, name);
}

/* "cuda:3" is device 3. */
static cddp_status read_device(struct cdi_world *w, const cddp_init_options *opt, struct cdi_error *err)
{
    int64_t n = -1;

    if (opt->device != NULL &&
        (strncmp(opt->device, "cuda:", 5) != 0 || !cdi_parse_int(opt->device + 5, 0, INT_MAX, &n)))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options.device is '%.64s' and not \"cuda:N\"", opt->device);
    w->device = (int)n;
    return CDDP_OK;
}

/*
 * Where a store outlives a restart, the life before must not be taken for this one; and where it outlives a
 * communicator whose ranks all finalize and join again, not the join before. What the program has described itself may
 * use the store of a launcher's job, or share one with others of its kind: these go by their names.
 */
static void set_prefix(struct cdi_world *w, bool given, int joins_before)
{
    char job[24] = "";

    if (given)
        (void)snprintf(job, sizeof job, "x%016" PRIx64 "/", cdi_crc64(0, w->name, strlen(w->name)));
    if (joins_before == 0)
        (void)snprintf(w->prefix, sizeof w->prefix, "cddp/%s%d/", job, w->restart_count);
    else
        (void)snprintf(w->prefix, sizeof w->prefix, "cddp/%s%d.%d/", job, w->restart_count, joins_before);
}

/* Who this is, and where the ranks meet: by the environment, or by the options. */
static cddp_status read_launch(struct cdi_launch *l, const cddp_init_options *opt, struct cdi_error *err)
{
    const struct cdi_given given = {.rank = opt->rank,
                                    .size = opt->world_size,
                                    .host = opt->host,
                                    .port = opt->port,
                                    .hosts = (opt->flags & CDDP_INIT_HOST_STORE) != 0,
                                    .by_id = opt->id != NULL};

    if ((opt->flags & ~(uint32_t)CDDP_INIT_HOST_STORE) != 0)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "cddp_init_options.flags %#x are unknown here", opt->flags);
    if (opt->world_size == 0 && opt->rank == 0 && opt->port == 0 && opt->flags == 0 && opt->host == NULL &&
        opt->id == NULL)
        return cdi_launch_read(l, cdi_env_str, err);
    return cdi_launch_take(l, cdi_env_str, &given, err);
}

/* Everything that the environment and the options (or NULL) say; no communication. */
static cddp_status read_world(struct cddp_comm *c, struct cdi_launch *l, cddp_init_options *opt,
                              const cddp_init_options *said, struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    cddp_status st = said == NULL ? CDDP_OK : cdi_sized_get(opt, sizeof *opt, said, "cddp_init_options", err);

    if (st == CDDP_OK)
        st = read_device(w, opt, err);
    if (st == CDDP_OK)
        st = read_timeouts(w, opt, err);
    if (st == CDDP_OK)
        st = read_launch(l, opt, err);
    if (st != CDDP_OK)
        return st;
    c->given = l->given;
    w->mpi_comm = opt->mpi_comm;
    st = choose_backend(&c->ops, opt, err);
    if (st != CDDP_OK)
        return st;
    if (opt->mpi_comm != NULL && strcmp(c->ops->name, "mpi") != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_init_options.mpi_comm is for the backend \"mpi\", and this is \"%s\"", c->ops->name);
    w->rank = l->rank;
    w->size = l->size;
    w->restart_count = l->restart_count;
    if (opt->name != NULL)
        (void)snprintf(w->name, sizeof w->name, "%s", opt->name);
    set_prefix(w, c->given, 0);
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------- keys for the backend ---- */

static cddp_status keys_set(void *arg, const char *name, const void *value, size_t len, struct cdi_error *err)
{
    const struct cdi_world *w = arg;
    char key[KEY_BYTES];

    (void)snprintf(key, sizeof key, "%s%s", w->prefix, name);
    return cdi_store_set(w->store, key, value, len, err);
}

static cddp_status keys_get(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                            struct cdi_error *err)
{
    const struct cdi_world *w = arg;
    char key[KEY_BYTES];

    (void)snprintf(key, sizeof key, "%s%s", w->prefix, name);
    return (w->shares_store ? cdi_store_get_aside : cdi_store_get)(w->store, key, buf, cap, len, timeout_ms, err);
}

static cddp_status keys_add(void *arg, const char *name, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    const struct cdi_world *w = arg;
    char key[KEY_BYTES];

    (void)snprintf(key, sizeof key, "%s%s", w->prefix, name);
    return cdi_store_add(w->store, key, delta, sum, err);
}

/* --------------------------------------------------------------------------------------------------- joining ---- */

static void join_key(const struct cdi_world *w, const char *name, int rank, char key[JOIN_KEY_BYTES])
{
    if (rank < 0)
        (void)snprintf(key, JOIN_KEY_BYTES, "%s%s", w->prefix, name);
    else
        (void)snprintf(key, JOIN_KEY_BYTES, "%s%s/%d", w->prefix, name, rank);
}

/* This process in the jobs that it joins. cddp_init is called by one thread at a time. */
static struct {
    pid_t pid;
    uint64_t nonce;       /* tells apart processes that share host and pid, as in two containers */
    unsigned claims;      /* of a rank, so far */
    atomic_bool has_left; /* a job, by cddp_finalize */
} self;

/* Those of this process's claims that it has not left by cddp_finalize; with `family`. */
static struct claim {
    struct claim *next;
    unsigned number;
} * held;

static void begin_process(void)
{
    if (self.pid == getpid())
        return;
    memset(&self, 0, sizeof self);
    self.pid = getpid();
    (void)getrandom(&self.nonce, sizeof self.nonce, 0);
    (void)pthread_mutex_lock(&family);
    while (held != NULL) { /* its parent's */
        struct claim *c = held;

        held = c->next;
        free(c);
    }
    (void)pthread_mutex_unlock(&family);
}

static bool is_held(unsigned number)
{
    bool found = false;

    (void)pthread_mutex_lock(&family);
    for (const struct claim *c = held; c != NULL; c = c->next)
        found = found || c->number == number;
    (void)pthread_mutex_unlock(&family);
    return found;
}

static void hold_claim(struct claim *c, unsigned number)
{
    (void)pthread_mutex_lock(&family);
    c->number = number;
    c->next = held;
    held = c;
    (void)pthread_mutex_unlock(&family);
}

/* The rank that it was for may be claimed again, under other keys. */
static void leave_claim(unsigned number)
{
    struct claim *gone = NULL;

    (void)pthread_mutex_lock(&family);
    for (struct claim **at = &held; *at != NULL && gone == NULL; at = *at != NULL ? &(*at)->next : at)
        if ((*at)->number == number) {
            gone = *at;
            *at = gone->next;
            break;
        }
    (void)pthread_mutex_unlock(&family);
    free(gone);
}

/* "host:pid:nonce.", and which of this process's claims it is. Returns the length without that. */
static size_t describe_self(char *buf, size_t cap)
{
    char host[128] = "?";
    int n;

    begin_process();
    (void)gethostname(host, sizeof host - 1);
    n = snprintf(buf, cap, "%s:%d:%016" PRIx64 ".", host, (int)self.pid, self.nonce);
    (void)snprintf(buf + n, cap - (size_t)n, "%u", ++self.claims);
    return (size_t)n;
}

/* "process 77 on node1" */
static void describe_other(char *text, size_t len, char *buf, size_t cap)
{
    char *nonce, *pid;

    text[len] = '\0';
    nonce = strrchr(text, ':');
    if (nonce != NULL)
        *nonce = '\0';
    pid = strrchr(text, ':');
    if (nonce == NULL || pid == NULL) {
        (void)snprintf(buf, cap, "another process");
        return;
    }
    *pid = '\0';
    (void)snprintf(buf, cap, "process %.16s on %.128s", pid + 1, text);
}

/*
 * Two processes with one rank would both believe that they are it: the first one has it. A claim of this process's own
 * that it has left is none: it joins once more, under other keys (*is_old stays false), or, where a rank hosts the
 * store, it has found the one that is about to end (*is_old becomes true).
 */
static cddp_status claim_rank(struct cddp_comm *c, bool *is_old, struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    char key[JOIN_KEY_BYTES], text[192], holder[256], me[192], other[192];
    const char *rank_is = c->given ? "rank " : "RANK=";
    size_t len = 0, own = describe_self(text, sizeof text);
    CDI_AUTOFREE struct claim *claim = calloc(1, sizeof *claim);
    cddp_status st = claim != NULL ? CDDP_OK : cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    bool mine = false, has_left = false;

    *is_old = false;
    for (int joins_before = 0; st == CDDP_OK; joins_before++) {
        set_prefix(w, c->given, joins_before);
        join_key(w, "rank", w->rank, key);
        st = cdi_store_compare_set(w->store, key, "", 0, text, strlen(text), holder, sizeof holder - 1, &len, err);
        if (st == CDDP_OK)
            holder[len] = '\0';
        mine = st == CDDP_OK && len > own && memcmp(holder, text, own) == 0;
        if (mine && strcmp(holder, text) == 0) {
            c->claim = self.claims;
            hold_claim(cdi_steal(&claim), c->claim);
            return CDDP_OK;
        }
        has_left = mine && !is_held((unsigned)strtoul(holder + own, NULL, 10));
        *is_old = has_left && c->by == CDI_STORE_BY_RANK_0;
        if (*is_old)
            return CDDP_OK;
        if (!has_left || c->by == CDI_STORE_BY_ID)
            break;
    }
    if (st != CDDP_OK && st != CDDP_E_LIMIT)
        return st;
    if (has_left)
        return cdi_fail(err, CDDP_E_EXISTS,
                        "this process has joined by this cddp_unique_id before, as rank %d: one is good for one "
                        "cddp_init of each rank",
                        w->rank);
    if (mine)
        return cdi_fail(err, CDDP_E_EXISTS,
                        "this process has joined the job before, as rank %d: it may join again once that communicator "
                        "was finalized; cddp_comm_split makes further ones%s",
                        w->rank, c->given ? ", and so does another cddp_init_options.name" : "");
    describe_other(holder, st == CDDP_OK ? len : 0, other, sizeof other);
    describe_other(text, strlen(text), me, sizeof me);
    return cdi_fail(err, CDDP_E_EXISTS,
                    "two processes have %s%d: %s joined before, and now %s; each process needs a rank of its own",
                    rank_is, w->rank, other, me);
}

/*
 * One counter holds how many ranks are there, and above that, in sum, how many each was told that there are: so that a
 * rank which was told another number finds out as it comes.
 */
#define JOINED_BITS 21

_Static_assert(CDI_RANKS_MAX < INT64_C(1) << JOINED_BITS, "all ranks fit");
_Static_assert(CDI_RANKS_MAX <= (INT64_MAX >> JOINED_BITS) / CDI_RANKS_MAX, "and all that they were told");

static int64_t joined_word(const struct cdi_world *w)
{
    return INT64_C(1) | (int64_t)w->size << JOINED_BITS;
}

static int64_t joined_ranks(int64_t word)
{
    return word & ((INT64_C(1) << JOINED_BITS) - 1);
}

static bool joined_alike(const struct cdi_world *w, int64_t word)
{
    return word >> JOINED_BITS == joined_ranks(word) * w->size;
}

static cddp_status name_missing(const struct cddp_comm *c, struct cdi_error *err)
{
    const struct cdi_world *w = &c->world;
    struct cdi_rank_list missing = {0};
    char key[JOIN_KEY_BYTES];
    int64_t joined = 0;
    int first = -1;
    cddp_status st;

    join_key(w, "joined", -1, key);
    st = cdi_store_add(w->store, key, 0, &joined, err);
    joined = joined_ranks(joined);
    for (int r = 0; r < w->size && st == CDDP_OK && missing.n < CDI_RANK_LIST_SHOWN; r++) {
        bool there;

        join_key(w, "rank", r, key);
        st = cdi_store_exists(w->store, key, &there, err);
        if (st == CDDP_OK && !there) {
            cdi_rank_list_add(&missing, r);
            first = first < 0 ? r : first;
        }
    }
    if (st != CDDP_OK)
        return st;
    if (first >= 0 && !c->given) /* the launcher knows its own ranks only */
        cdi_flight_miss(w->flight, first);
    return cdi_fail_by(err, first, CDDP_E_TIMEOUT, "%" PRId64 " of %d ranks did not join within %.4g s: %s%s",
                       w->size - joined, w->size, (double)w->join_timeout_ms / 1000, missing.text,
                       w->size - joined > missing.n ? ", and more" : "");
}

/* Who has exited without joining never will: the agent says that of this node's ranks. */
static cddp_status look_for_gone(const struct cdi_world *w, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    bool there = false;
    char key[JOIN_KEY_BYTES];
    int rank;

    for (uint32_t i = 0; st == CDDP_OK && (rank = cdi_flight_ended(w->flight, i)) >= 0; i++) {
        join_key(w, "rank", rank, key);
        st = cdi_store_exists(w->store, key, &there, err);
        if (st == CDDP_OK && !there) {
            cdi_flight_miss(w->flight, rank);
            st =
                cdi_fail_by(err, rank, CDDP_E_PEER, "rank %d " CDI_FLIGHT_ABSENT ", and so cannot join any more", rank);
        }
    }
    return st;
}

/* The last to come says that all are there. */
static cddp_status wait_for_all(const struct cddp_comm *c, const char *go_key, char *text, size_t cap, size_t *len,
                                int64_t deadline_ms, struct cdi_error *err)
{
    const struct cdi_world *w = &c->world;
    /* However many wait, the store has no more than about 1000 of such looks in a second. */
    int64_t look_ms = w->size > LOOK_MS ? w->size : LOOK_MS;

    for (;;) {
        int64_t left = deadline_ms - cdi_now_ms();
        bool last = c->given || left <= look_ms;
        cddp_status st = cdi_store_get(w->store, go_key, text, cap, len, last ? left > 0 ? left : 1 : look_ms, err);

        if (st == CDDP_E_TIMEOUT && last)
            return name_missing(c, err);
        if (st == CDDP_E_TIMEOUT)
            st = look_for_gone(w, err);
        else
            return st;
        if (st != CDDP_OK)
            return st;
    }
}

/*
 * Which backends the ranks have, in one number, so that it is learnt with the word that all are there: as many as are
 * on a GPU, and one more than there are ranks for each that is over MPI. All must have the same.
 */
static int64_t weight(const struct cddp_comm *c)
{
    return c->ops == &cdi_cpu_backend ? 0 : c->ops->on_device ? 1 : (int64_t)c->world.size + 1;
}

/* Ranks that are not on the CPU say so, before they say that they are there. */
static cddp_status tell_backend(const struct cddp_comm *c, struct cdi_error *err)
{
    char key[JOIN_KEY_BYTES];
    cddp_status st;

    if (c->ops == &cdi_cpu_backend)
        return CDDP_OK;
    join_key(&c->world, "device", c->world.rank, key);
    st = cdi_store_set(c->world.store, key, c->ops->name, strlen(c->ops->name), err);
    join_key(&c->world, "devices", -1, key);
    return st == CDDP_OK ? cdi_store_add(c->world.store, key, weight(c), NULL, err) : st;
}

/* Has this rank said that it has the backend of that name? */
static cddp_status has_backend(const struct cdi_world *w, int rank, const char *name, bool *has, struct cdi_error *err)
{
    char key[JOIN_KEY_BYTES], text[16];
    size_t len = 0;
    cddp_status st;

    join_key(w, "device", rank, key);
    st = cdi_store_exists(w->store, key, has, err);
    if (st == CDDP_OK && *has)
        st = cdi_store_get(w->store, key, text, sizeof text, &len, w->join_timeout_ms, err);
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
    return cdi_fail(err, CDDP_E_MISMATCH, "%" PRId64 " of %d ranks work %s, but not rank %s%s: %s", n, w->size,
                    n_mpi > 0 ? "over MPI" : "on a GPU", without.text, w->size - n > without.n ? ", and more" : "",
                    n_mpi > 0 ? "set CDDP_BACKEND=mpi for all ranks, or for none"
                              : "give every rank one, or train on the CPU with CDDP_BACKEND=cpu");
}

/* Everybody is there: one counter, and one key that all wait for, which says who has which backend; one key per rank.
 */
static cddp_status gather_ranks(const struct cddp_comm *c, int64_t deadline_ms, struct cdi_error *err)
{
    const struct cdi_world *w = &c->world;
    char joined_key[JOIN_KEY_BYTES], go_key[JOIN_KEY_BYTES], devices_key[JOIN_KEY_BYTES], text[256] = "";
    int64_t joined = 0, devices = 0;
    size_t len = 0;
    cddp_status st;

    join_key(w, "joined", -1, joined_key);
    join_key(w, "go", -1, go_key);
    join_key(w, "devices", -1, devices_key);
    st = tell_backend(c, err);
    if (st == CDDP_OK)
        st = cdi_store_add(w->store, joined_key, joined_word(w), &joined, err);
    if (st == CDDP_OK && !joined_alike(w, joined)) {
        (void)snprintf(text, sizeof text,
                       "%s is %d on rank %d, and another number on a rank that came before: it must be the same on all",
                       c->given ? "world_size" : "WORLD_SIZE", w->size, w->rank);
        (void)cdi_store_set(w->store, go_key, text, strlen(text), NULL); /* who cannot be told waits on */
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

/* Every rank's host, gathered by rank 0 so that all read one table. */
static cddp_status exchange_hosts(const struct cdi_world *w, uint8_t *ids, int64_t deadline_ms, struct cdi_error *err)
{
    const size_t bytes = (size_t)w->size * CDI_HOST_ID;
    char key[JOIN_KEY_BYTES], all_key[JOIN_KEY_BYTES];
    int64_t left;
    size_t len = 0;
    cddp_status st = CDDP_OK;

    join_key(w, "hosts", -1, all_key);
    if (w->rank == 0) {
        for (int r = 0; r < w->size && st == CDDP_OK; r++) {
            join_key(w, "host", r, key);
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
               ? cdi_fail(err, CDDP_E_MISMATCH,
                          "ranks do not agree on WORLD_SIZE, or run different versions of libcddp")
               : st;
}

/* Who says it well enough: an agent (cddprun, torchrun). Else the ranks find out, all of them together. */
static bool is_placed(const struct cdi_launch *l)
{
    const struct cdi_node_layout *p = &l->place;

    return l->hosted && p->local_rank >= 0 && p->local_size > 0 && p->node_rank >= 0 && p->n_nodes > 0;
}

static int known(int said, int found)
{
    return said >= 0 ? said : found;
}

static cddp_status find_place(struct cddp_comm *c, const struct cdi_launch *l, int64_t deadline_ms,
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
    /* What was said wins where a user looks; where memory is shared, what is. */
    c->place.local_rank = known(l->place.local_rank, hosts.local_rank);
    c->place.local_size = known(l->place.local_size, hosts.local_size);
    c->place.node_rank = known(l->place.node_rank, hosts.node_rank);
    c->place.n_nodes = known(l->place.n_nodes, hosts.n_nodes);
    w->local_rank = runs.local_rank;
    w->local_size = runs.local_size;
    w->node_rank = runs.node_rank;
    w->n_nodes = runs.n_nodes;
    w->device_rank = c->place.local_rank;
    return CDDP_OK;
}

/* Say which host this is, before the others are told that all are there. */
static cddp_status tell_host(const struct cdi_world *w, struct cdi_error *err)
{
    uint8_t id[CDI_HOST_ID];
    char key[JOIN_KEY_BYTES];

    cdi_host_id(id);
    join_key(w, "host", w->rank, key);
    return cdi_store_set(w->store, key, id, sizeof id, err);
}

static cddp_status host_store(struct cddp_comm *c, const struct cdi_launch *l, struct cdi_error *err)
{
    struct cdi_store_host_options opt = {.host = l->host,
                                         .said_by = l->given ? "cddp_init_options.host" : NULL,
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

/* The store of the job, and this rank in it. *is_old: see claim_rank. id: of the store, or NULL. */
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
            err, &why,
            "%.700s; nobody but rank 0 would host it (%s), and rank 0 has not started, or not on that "
            "host",
            why.msg, l->given ? "CDDP_INIT_HOST_STORE" : "TORCHELASTIC_USE_AGENT_STORE is not \"True\"");
    }
    if (st != CDDP_OK)
        return st;
    cdi_store_watch(w->store, w->flight, c->by);
    cdi_store_set_timeout(w->store, w->join_timeout_ms);
    return claim_rank(c, is_old, err);
}

static bool is_over(cddp_status st)
{
    return st == CDDP_E_CLOSED || st == CDDP_E_PEER || st == CDDP_E_IO;
}

/*
 * A rank that joins again may still reach the store of the join before, which rank 0 is about to end: then it waits for
 * that, and goes to the next one.
 */
static cddp_status enter_next_store(struct cddp_comm *c, const struct cdi_launch *l,
                                    const struct cdi_store_endpoint *id, int64_t deadline_ms, struct cdi_error *err)
{
    bool again = atomic_load(&self.has_left) && self.pid == getpid() && c->by == CDI_STORE_BY_RANK_0 && c->host == NULL,
         is_old;
    int64_t left = c->world.join_timeout_ms;
    char key[JOIN_KEY_BYTES], none[8];
    cddp_status st;

    for (;;) {
        size_t len;

        st = enter_store(c, l, id, left > 0 ? left : 1, &is_old, err);
        left = deadline_ms - cdi_now_ms();
        if (!is_old && (!again || !is_over(st) || c->world.store == NULL || left <= 0))
            return st;
        join_key(&c->world, "never", -1, key);
        if (is_old)
            st = cdi_store_get(c->world.store, key, none, sizeof none, &len, left > 0 ? left : 1, err);
        if (cdi_flight_check(c->world.flight, NULL) != CDDP_OK) /* that is why */
            return cdi_flight_check(c->world.flight, err);
        if (is_old && !is_over(st))
            return st == CDDP_E_TIMEOUT ? cdi_fail_by(err, 0, CDDP_E_TIMEOUT,
                                                      "rank 0 did not finalize its communicator within %.4g s, and so "
                                                      "cannot host the next one's store",
                                                      (double)c->world.join_timeout_ms / 1000)
                                        : st;
        cddp_store_close(c->world.store);
        c->world.store = NULL;
        left = deadline_ms - cdi_now_ms();
    }
}

static cddp_status meet(struct cddp_comm *c, const struct cdi_launch *l, const struct cdi_store_endpoint *id,
                        struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), w->join_timeout_ms);
    cddp_status st = CDDP_OK;

    c->by = id != NULL ? CDI_STORE_BY_ID : l->hosted ? CDI_STORE_BY_OTHERS : CDI_STORE_BY_RANK_0;
    if (c->by == CDI_STORE_BY_RANK_0 && w->rank == 0)
        st = host_store(c, l, err);
    if (st == CDDP_OK)
        st = enter_next_store(c, l, id, deadline_ms, err);
    if (st == CDDP_OK && !is_placed(l))
        st = tell_host(w, err);
    if (st == CDDP_OK)
        st = gather_ranks(c, deadline_ms, err);
    if (st == CDDP_E_TIMEOUT && c->host != NULL && cdi_store_host_is_foreign(c->host) && err != NULL) {
        struct cdi_error why = *err;

        return cdi_fail_since(err, &why, "%.700s; %s='%.255s' is no address of this host, on which rank 0 runs",
                              why.msg, l->given ? "cddp_init_options.host" : "MASTER_ADDR", l->host);
    }
    return st == CDDP_OK ? find_place(c, l, deadline_ms, err) : st;
}

static cddp_status come_together(struct cddp_comm *c, const struct cdi_launch *l, const struct cdi_store_endpoint *id,
                                 struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (l->alone) {
        c->world.local_size = c->world.n_nodes = 1;
        c->place = l->place;
    } else if (st == CDDP_OK) {
        st = meet(c, l, id, err);
    }
    if (st == CDDP_OK && (c->world.local_size == c->world.size) != (c->world.n_nodes == 1))
        return cdi_fail(
            err, CDDP_E_INVALID,
            "%d of %d ranks are on this node (LOCAL_WORLD_SIZE), which does not go with a number of %d nodes "
            "(GROUP_WORLD_SIZE)",
            c->world.local_size, c->world.size, c->world.n_nodes);
    if (st == CDDP_OK && c->world.store != NULL)
        c->world.keys = (struct cdi_oob_store){.set = keys_set, .get = keys_get, .add = keys_add, .arg = &c->world};
    return st != CDDP_OK ? st : c->ops->create(&c->backend, &c->world, err);
}

/* This rank's program gives up: the others need not wait for it. Who is not there yet will find it. */
static void tell_given_up(const struct cddp_comm *c)
{
    const struct cdi_world *w = &c->world;
    char key[JOIN_KEY_BYTES], text[128];

    if (w->store == NULL || c->claim == 0)
        return;
    (void)snprintf(text, sizeof text, GIVEN_UP " %d", w->rank);
    join_key(w, "go", -1, key);
    cdi_store_set_timeout(w->store, GOODBYE_MS);
    (void)cdi_store_set(w->store, key, text, strlen(text), NULL);
}

/* The agent's page shows what one communicator does: the first one. Another one hears from it, and has its own record.
 */
static cddp_status take_page(struct cddp_comm *c, struct cdi_error *err)
{
    bool taken;
    cddp_status st = CDDP_OK;

    (void)pthread_mutex_lock(&family);
    taken = page_is_taken && page_taken_by == getpid();
    c->has_page = !taken;
    page_is_taken = true;
    page_taken_by = getpid();
    (void)pthread_mutex_unlock(&family);
    if (taken)
        st = cdi_flight_attach(&c->record, NULL, err);
    c->world.record = c->record;
    return st;
}

static void give_page(struct cddp_comm *c)
{
    (void)pthread_mutex_lock(&family);
    if (c->has_page)
        page_is_taken = false;
    c->has_page = false;
    (void)pthread_mutex_unlock(&family);
}

static cddp_status join(struct cddp_comm *c, const struct cdi_launch *l, const cddp_init_options *opt,
                        struct cdi_error *err)
{
    struct cdi_flight_question asked = {.fn = opt->interrupted, .arg = opt->arg, .what = "cddp_init"};
    struct cdi_store_endpoint id;
    cddp_status st = opt->id != NULL ? cdi_unique_id_read(&id, opt->id, err) : CDDP_OK;

    if (st == CDDP_OK)
        st = cdi_flight_attach(&c->world.flight, cdi_env_str(CDI_FLIGHT_ENV), err);
    if (st == CDDP_OK)
        st = take_page(c, err);
    if (st != CDDP_OK)
        return st;
    c->host = opt->id != NULL ? cdi_unique_id_take(opt->id) : NULL;
    if (opt->interrupted != NULL)
        cdi_flight_ask(c->world.flight, &asked);
    st = come_together(c, l, opt->id != NULL ? &id : NULL, err);
    if (opt->id != NULL)
        cdi_secret_release(&id.secret);
    cdi_flight_ask(c->world.flight, NULL);
    if (st != CDDP_OK && asked.answer != 0) {
        if (err != NULL)
            err->blamed = c->world.rank + 1;
        tell_given_up(c);
    }
    return st;
}

/*
 * The first thing that an abort does is to end the waits of other threads, and a thread whose wait has ended comes
 * here: the backend stays until the abort is through with it. It blocks on nothing but locks, so it needs microseconds.
 */
static void let_aborts_end(const struct cddp_comm *c)
{
    const struct timespec moment = {.tv_nsec = 100000};

    while (atomic_load(&c->n_aborting) > 0)
        (void)nanosleep(&moment, NULL);
}

static void close_store(struct cddp_comm *c)
{
    if (c->whole == NULL)
        cddp_store_close(c->world.store);
    cdi_store_host_stop(c->host);
    c->world.store = NULL;
    c->host = NULL;
    c->world.keys = (struct cdi_oob_store){.set = NULL};
}

static void comm_free(struct cddp_comm *c)
{
    struct cddp_comm *whole = c->whole;

    if (c->backend != NULL)
        cdi_memory_release(&c->memory, c->ops, c->backend);
    c->ops->destroy(c->backend);
    close_store(c);
    give_page(c);
    if (whole == NULL)
        cdi_flight_release(c->world.flight);
    cdi_flight_release(c->record);
    cdi_group_calls_release(&c->groups);
    free(c->ranks);
    free(c);
    if (whole != NULL)
        cdi_comm_let_go(whole);
}

void cdi_comm_hold(cddp_comm *comm)
{
    (void)pthread_mutex_lock(&family);
    comm->n_children++;
    (void)pthread_mutex_unlock(&family);
}

void cdi_comm_let_go(cddp_comm *comm)
{
    bool last;

    (void)pthread_mutex_lock(&family);
    last = --comm->n_children == 0 && comm->finalized;
    (void)pthread_mutex_unlock(&family);
    if (last)
        comm_free(comm);
}

bool cdi_comm_is_over(const cddp_comm *comm)
{
    return comm->over;
}

void cdi_comm_bury(cddp_comm *comm, struct cdi_grave *grave)
{
    if (comm->over) {
        grave->free_it(grave->it);
        return;
    }
    (void)pthread_mutex_lock(&family);
    grave->next = comm->graves;
    comm->graves = grave;
    (void)pthread_mutex_unlock(&family);
}

/* Nothing is under way any more. */
static void open_graves(struct cddp_comm *c)
{
    while (c->graves != NULL) {
        struct cdi_grave *grave = c->graves;

        c->graves = grave->next;
        grave->free_it(grave->it);
    }
}

static void add_part(struct cddp_comm *part)
{
    (void)pthread_mutex_lock(&family);
    part->next = part->whole->parts;
    part->whole->parts = part;
    part->whole->n_children++;
    (void)pthread_mutex_unlock(&family);
}

/* The program knows c no more. */
static void part_from(struct cddp_comm *c)
{
    bool last;

    (void)pthread_mutex_lock(&family);
    if (c->whole != NULL)
        for (struct cddp_comm **at = &c->whole->parts; *at != NULL; at = &(*at)->next)
            if (*at == c) {
                *at = c->next;
                break;
            }
    c->finalized = true;
    last = c->n_children == 0;
    (void)pthread_mutex_unlock(&family);
    if (last)
        comm_free(c);
}

/* --------------------------------------------------------------------------------------------------- leaving ---- */

/* A backend that is gone has no say. */
static bool is_aborted(const struct cddp_comm *c)
{
    return c->backend != NULL && !c->ops->keeps_store && c->ops->is_aborted != NULL && c->ops->is_aborted(c->backend);
}

/*
 * The store goes with rank 0: it waits until the others have said goodbye, or are gone. After an error they may never
 * say it, but then they leave soon; so after an abort, which may come while this rank waits here.
 */
static void see_off(const struct cddp_comm *c, bool broken)
{
    const struct cdi_world *w = &c->world;
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), broken ? BROKEN_GOODBYE_MS : w->timeout_ms);
    char key[JOIN_KEY_BYTES];
    int64_t gone = 0, pause_us = 200;

    join_key(w, "goodbye", -1, key);
    while (cdi_now_ms() < deadline_ms && cdi_store_host_clients(c->host) > 1) {
        struct timespec ts = {.tv_nsec = pause_us * 1000};

        if (!broken && is_aborted(c)) {
            broken = true;
            deadline_ms = cdi_deadline_ms(cdi_now_ms(), BROKEN_GOODBYE_MS);
        }
        if (cdi_store_add(w->store, key, 0, &gone, NULL) != CDDP_OK || gone >= w->size - 1)
            return;
        (void)nanosleep(&ts, NULL);
        pause_us = pause_us * 2 > 20000 ? 20000 : pause_us * 2;
    }
}

/* If it cannot be said, the connection's end says it. */
static void say_goodbye(const struct cddp_comm *c, bool broken)
{
    char key[JOIN_KEY_BYTES];

    if (c->world.store == NULL || c->by == CDI_STORE_BY_OTHERS)
        return;
    cdi_store_set_timeout(c->world.store, GOODBYE_MS);
    if (c->host != NULL) {
        see_off(c, broken);
        return;
    }
    join_key(&c->world, "goodbye", -1, key);
    (void)cdi_store_add(c->world.store, key, 1, NULL, NULL);
}

cddp_status cddp_init(cddp_comm **comm, const cddp_init_options *opt)
{
    cddp_init_options known = {.size = sizeof known};
    struct cdi_launch l;
    struct cdi_error err;
    struct cddp_comm *c;
    cddp_status st;

    cdi_error_file_arm();
    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "out is NULL"), &err);
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_NOMEM, "out of memory"), &err);
    c->ops = &cdi_cpu_backend;
    st = read_world(c, &l, &known, opt, &err);
    if (st == CDDP_OK) {
        c->owner = c->user = cdi_owner_here(c->world.rank);
        st = join(c, &l, &known, &err);
    }
    if (st != CDDP_OK) {
        say_goodbye(c, true); /* so that the others come to a sentence of their own, about the same cause */
        comm_free(c);
        return cdi_last_error_return(st, &err);
    }
    *comm = c;
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------- the process it is of ---- */

cddp_status cdi_comm_own(const char *function, const cddp_comm *comm, struct cdi_error *err)
{
    if (comm == NULL || cdi_owner_is_here(&comm->user))
        return CDDP_OK;
    if (comm->over && cdi_owner_is_surely_here(&comm->owner))
        return cdi_fail(err, CDDP_E_STATE, "%s: the communicator is over, since cddp_finalize was called for %s",
                        function, comm->finalized ? "it" : "the one of which it is a part");
    return cdi_owner_refuse(&comm->owner, function, "communicator", err);
}

bool cdi_comm_is_others(const char *function, const cddp_comm *comm)
{
    struct cdi_error err;

    if (cdi_owner_is_surely_here(&comm->owner))
        return false;
    (void)cdi_last_error_return(cdi_owner_refuse(&comm->owner, function, "communicator", &err), &err);
    return true;
}

cddp_status cddp_comm_error(cddp_comm *comm, cddp_error_info *info)
{
    struct cdi_error err = {.status = CDDP_OK};
    cddp_status st = cdi_comm_own("cddp_comm_error", comm, &err);

    if (comm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_comm_error: comm must not be NULL");
    else if (st == CDDP_OK && comm->ops->peek != NULL)
        st = comm->ops->peek(comm->backend, &err);
    else if (st == CDDP_OK)
        st = comm->ops->health(comm->backend, &err);
    err.status = st;
    cdi_error_info_fill(info, &err);
    return cdi_last_error_return(st, &err);
}

/* This rank leaves c: its peers are told, and nothing but memory remains of it. */
static void leave(struct cddp_comm *c)
{
    struct cdi_error unsaved;
    cddp_status st, saved = CDDP_OK;

    let_aborts_end(c);
    if (c->on_finalize.fn != NULL)
        saved = c->on_finalize.fn(c->on_finalize.arg, &unsaved);
    c->on_finalize = (struct cdi_on_finalize){.fn = NULL};
    st = c->ops->health(c->backend, &c->result);
    if (c->ops->keeps_store)
        c->ops->leave(c->backend);
    if (c->whole == NULL)
        say_goodbye(c, st != CDDP_OK);
    if (c->whole == NULL && c->claim != 0 && self.pid == getpid()) {
        atomic_store(&self.has_left, true);
        leave_claim(c->claim);
    }
    let_aborts_end(c); /* one of this rank's own may be why it waits no longer */
    c->over = true;
    c->user.life = UINT64_MAX;
    if (!c->ops->keeps_store)
        c->ops->leave(c->backend);
    open_graves(c);
    close_store(c);
    give_page(c);
    if (st == CDDP_OK && saved != CDDP_OK)
        c->result = unsaved;
    c->result.status = st != CDDP_OK ? st : saved;
}

cddp_status cddp_finalize(cddp_comm *comm)
{
    struct cdi_error err;

    if (comm == NULL)
        return CDDP_OK;
    if (cdi_comm_is_others("cddp_finalize", comm))
        return CDDP_E_STATE;
    if (comm->finalized)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_STATE, "cddp_finalize was called before"), &err);
    for (struct cddp_comm *part = comm->parts; part != NULL; part = part->next)
        if (!part->over)
            leave(part);
    if (!comm->over)
        leave(comm);
    err = comm->result;
    part_from(comm);
    return cdi_last_error_return(err.status, &err);
}

/* ------------------------------------------------------------------------------------------------- questions ---- */

int cddp_rank(const cddp_comm *comm)
{
    return comm == NULL ? -1 : comm->world.rank;
}

int cddp_world_size(const cddp_comm *comm)
{
    return comm == NULL ? 0 : comm->world.size;
}

int cddp_world_rank(const cddp_comm *comm, int rank)
{
    return comm == NULL || rank < 0 || rank >= comm->world.size ? -1 : cdi_rank_of_job(&comm->world, rank);
}

int cddp_local_rank(const cddp_comm *comm)
{
    return comm == NULL ? -1 : comm->place.local_rank;
}

int cddp_local_world_size(const cddp_comm *comm)
{
    return comm == NULL ? 0 : comm->place.local_size;
}

int cddp_node_rank(const cddp_comm *comm)
{
    return comm == NULL ? -1 : comm->place.node_rank;
}

const char *cddp_backend_name(const cddp_comm *comm)
{
    return comm == NULL ? "" : comm->ops->name;
}

int cddp_restart_count(const cddp_comm *comm)
{
    return comm == NULL ? 0 : comm->world.restart_count;
}

int cddp_stop_requested(const cddp_comm *comm)
{
    if (comm == NULL)
        return 0;
    return cdi_flight_stop_wanted(comm->whole != NULL ? comm->whole->world.flight : comm->world.flight);
}

cddp_store *cddp_comm_store(cddp_comm *comm)
{
    return comm == NULL ? NULL : comm->world.store;
}

cddp_status cddp_get_device_info(cddp_comm *comm, cddp_device_info *info)
{
    cddp_device_info known = {.size = sizeof known};
    struct cdi_error err;

    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_get_device_info: comm is NULL"), &err);
    if (cdi_sized_check(info, "cddp_device_info", &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_INVALID, &err);
    if (cdi_comm_own("cddp_get_device_info", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    comm->ops->describe(comm->backend, &known);
    cdi_sized_put(info, &known, sizeof known);
    return CDDP_OK;
}

cddp_status cddp_copy(cddp_comm *comm, void *to, const void *from, size_t bytes)
{
    struct cdi_error err;
    cddp_status st = cdi_comm_own("cddp_copy", comm, &err);

    if (st != CDDP_OK)
        return cdi_last_error_return(st, &err);
    if (comm == NULL || (bytes > 0 && (to == NULL || from == NULL)))
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_copy: comm, to and from must not be NULL"),
                                     &err);
    if (!comm->ops->on_device) /* there copies are in one order with what was begun; here nothing orders them */
        st = comm->ops->stream_wait(comm->backend, 0, NULL, &err);
    return cdi_last_error_return(st == CDDP_OK ? comm->ops->copy(comm->backend, to, from, bytes, &err) : st, &err);
}

const struct cdi_world *cdi_comm_world(const cddp_comm *comm)
{
    return &comm->world;
}

const struct cdi_backend_ops *cdi_comm_ops(const cddp_comm *comm)
{
    return comm->ops;
}

struct cdi_backend *cdi_comm_backend(const cddp_comm *comm)
{
    return comm->backend;
}

struct cdi_memory *cdi_comm_memory(cddp_comm *comm)
{
    return &comm->memory;
}

struct cdi_on_finalize *cdi_comm_on_finalize(cddp_comm *comm)
{
    return &comm->on_finalize;
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

/* What each rank says to a split. */
struct choice {
    int32_t color, key;
    int32_t on_cpu; /* the part is to be the CPU's, whatever the whole is */
    int32_t node;   /* of this rank, for that part */
};
#define CHOICE_WORDS 4

/* Where `rank` comes among the n ranks: after those of its color with a smaller key, or the same and a lower rank. */
static int place_in_part(const struct choice *all, int n, int rank)
{
    int before = 0;

    for (int r = 0; r < n; r++)
        before += all[r].color == all[rank].color &&
                  (all[r].key < all[rank].key || (r < rank && all[r].key == all[rank].key));
    return before;
}

/* The part's ranks, in its order, as ranks of the job, and as ranks of `from` where `who` has room for them. */
static cddp_status find_part(struct cddp_comm *part, const struct cdi_world *from, const struct choice *all, int *who,
                             struct cdi_error *err)
{
    struct cdi_world *w = &part->world;

    w->rank = place_in_part(all, from->size, from->rank);
    w->size = 0;
    w->ranks = part->ranks = calloc((unsigned)from->size, sizeof *part->ranks);
    if (part->ranks == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    for (int r = 0; r < from->size; r++)
        if (all[r].color == all[from->rank].color) {
            int at = place_in_part(all, from->size, r);

            part->ranks[at] = cdi_rank_of_job(from, r);
            if (who != NULL)
                who[at] = r;
            w->size++;
        }
    return CDDP_OK;
}

/* A rank of this one's color that wants another backend; -1: there is none. */
static int other_backend(const struct choice *all, int n, int rank)
{
    for (int r = 0; r < n; r++)
        if (all[r].color == all[rank].color && all[r].on_cpu != all[rank].on_cpu)
            return r;
    return -1;
}

/* Does any part have the backend of the whole? Then all ranks split that. */
static bool splits_backend(const struct choice *all, int n)
{
    for (int r = 0; r < n; r++)
        if (all[r].color >= 0 && !all[r].on_cpu && other_backend(all, n, r) < 0)
            return true;
    return false;
}

/* Where the part's ranks are, by the nodes of all of them: its nodes are runs of neighbours that share one. */
static void place_part(struct cdi_world *w, const int *nodes)
{
    int first = 0, mine = -1;

    w->n_nodes = 0;
    for (int i = 0; i < w->size; i++) {
        if (i == 0 || nodes[i] != nodes[i - 1]) {
            first = i;
            w->n_nodes++;
        }
        if (i == w->rank) {
            w->node_rank = mine = w->n_nodes - 1;
            w->local_rank = i - first;
        }
        if (mine == w->n_nodes - 1)
            w->local_size = i - first + 1;
    }
}

/* Connect a part of `of` by itself, as if it were a job: its keys are its own. `nodes`: of its ranks, in its order. */
static cddp_status connect_part(struct cddp_comm *part, const cddp_comm *of, const int *nodes, struct cdi_error *err)
{
    struct cdi_world *w = &part->world;
    const struct cdi_world *whole = &part->whole->world;
    cddp_status st = cdi_flight_attach(&part->record, NULL, err);

    if (st != CDDP_OK)
        return st;
    place_part(w, nodes);
    (void)snprintf(w->prefix, sizeof w->prefix, "%.*s%016" PRIx64 "/", (int)(sizeof w->prefix - 20), whole->prefix,
                   part->id);
    w->flight = whole->flight; /* for what the agent says */
    w->record = part->record;
    w->shares_store = true;
    if (w->store != NULL)
        w->keys = (struct cdi_oob_store){.set = keys_set, .get = keys_get, .add = keys_add, .arg = w};
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

/* The part begins as a copy of comm, without what is comm's alone. */
static void begin_part(struct cddp_comm *part, const cddp_comm *comm)
{
    *part = (struct cddp_comm){.whole = comm->whole != NULL ? comm->whole : (cddp_comm *)(uintptr_t)comm,
                               .owner = comm->owner,
                               .user = comm->user,
                               .world = comm->world,
                               .place = comm->place,
                               .ops = comm->ops};
    part->world.keys = (struct cdi_oob_store){.set = NULL};
    part->world.flight = NULL; /* the page has one writer, which is the whole */
    part->world.record = NULL;
}

static cddp_status split(struct cddp_comm *part, cddp_comm *comm, const struct choice *all, struct cdi_split *how,
                         struct cdi_error *err)
{
    int rank = comm->world.rank, size = comm->world.size, other = other_backend(all, size, rank);
    bool on_cpu = all[rank].on_cpu != 0, takes_part = all[rank].color >= 0 && !on_cpu && other < 0;
    CDI_AUTOFREE int *who = calloc((size_t)size, sizeof *who);
    struct cdi_error why;
    cddp_status mine, st = CDDP_OK;

    begin_part(part, comm);
    part->id = id_of_part(comm, comm->n_splits++, all[rank].color);
    mine = find_part(part, &comm->world, all, who, &why); /* the others split also where this rank cannot */
    if (mine == CDDP_OK && who == NULL)
        mine = cdi_fail(&why, CDDP_E_NOMEM, "out of memory for a communicator");
    cdi_split_adopt(&part->world, how);
    how->color = takes_part ? how->color : -1;
    how->ranks = part->ranks;
    how->n = part->ranks != NULL ? part->world.size : 0;
    if (splits_backend(all, size))
        st = comm->ops->split(comm->backend, how, &part->backend, err);
    if (st == CDDP_OK && mine != CDDP_OK)
        return cdi_fail_since(err, &why, "%s", why.msg);
    if (st == CDDP_OK && all[rank].color >= 0 && other >= 0)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "cddp_comm_split: of color %d rank %d wants the backend \"cpu\", and rank %d that of the whole",
                        (int)all[rank].color, on_cpu ? rank : other, on_cpu ? other : rank);
    if (st != CDDP_OK || all[rank].color < 0 || takes_part)
        return st;
    part->ops = &cdi_cpu_backend;
    for (int i = 0; i < part->world.size; i++) /* by rank of comm, and now by rank of the part */
        who[i] = all[who[i]].node;
    return connect_part(part, comm, who, err);
}

/* ----------------------------------------------------------------------------- what ends the wait for members ---- */

struct watched {
    const struct cddp_comm *whole;
    bool was_aborted; /* before: survivors may make a part */
};

static bool is_abort(const struct cddp_comm *c, struct cdi_error *err)
{
    return c->ops->peek != NULL && c->ops->peek(c->backend, err) == CDDP_E_ABORTED;
}

static cddp_status watch_whole(void *arg, const int *of_job, int n, struct cdi_error *err)
{
    const struct watched *w = arg;
    const struct cddp_comm *c = w->whole;
    struct cdi_error why;
    cddp_status st = c->ops->lost != NULL ? c->ops->lost(c->backend, of_job, n, err) : CDDP_OK;

    if (st != CDDP_OK || w->was_aborted || !is_abort(c, &why))
        return st;
    return cdi_fail_since(err, &why, "%s", why.msg);
}

/* What the program says of a part to be made. */
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
            return cdi_fail(err, CDDP_E_UNSUPPORTED, "%s: flags %#x are unknown here", function, known->flags);
        if (known->timeout_ms < 0)
            return cdi_fail(err, CDDP_E_INVALID, "%s: the timeout is negative", function);
        backend = known->backend;
    }
    how->timeout_ms = known->timeout_ms;
    how->name = known->name;
    *on_cpu = backend != NULL && strcmp(backend, comm->ops->name) != 0;
    if (*on_cpu && strcmp(backend, cdi_cpu_backend.name) != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s: a part of a communicator of \"%s\" has that backend, or \"cpu\", but not '%.64s'",
                        function, comm->ops->name, backend);
    return CDDP_OK;
}

/* What a part that could not be made leaves behind. Peers that have made it hear that this rank has left. */
static void forget_part(struct cddp_comm *part)
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
    struct cdi_split how = {.color = color, .key = key};
    struct watched whole = {.whole = comm};
    CDI_AUTOFREE struct choice *all = NULL;
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
    all = calloc((size_t)comm->world.size, sizeof *all);
    part = calloc(1, sizeof *part);
    if (all == NULL || part == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_NOMEM, "out of memory for a communicator"), &err);
    mine = (struct choice){.color = color,
                           .key = key,
                           .on_cpu = on_cpu,
                           .node = (comm->whole != NULL ? comm->whole : comm)->world.node_rank};
    how.watch = (struct cdi_watch){.fn = watch_whole, .arg = &whole};
    (void)cdi_comm_ask(CDI_ASKED_COMM_SPLIT);
    st = cdi_comm_all_gather(comm, &mine, all, CHOICE_WORDS, CDDP_INT32, &err);
    (void)cdi_comm_ask(CDI_ASKED_ITSELF);
    if (st == CDDP_OK)
        st = split(part, comm, all, &how, &err);
    part->world.watch.fn = NULL;
    if (st == CDDP_OK && color >= 0)
        add_part(part);
    if (st == CDDP_OK)
        *to = color < 0 ? NULL : part;
    if (st == CDDP_OK && color >= 0)
        part = NULL; /* the program's from now on */
    forget_part(part);
    return cdi_last_error_return(st, &err);
}

/* ---------------------------------------------------------------------------------- parts, by their members alone ----
 */

/* Ranks of comm, each once, this one among them; *me is which. */
static cddp_status check_members(const cddp_comm *comm, const int *ranks, size_t n, int *me, struct cdi_error *err)
{
    const struct cdi_world *w = &comm->world;
    CDI_AUTOFREE bool *seen = NULL;

    if (n == 0 || n > (size_t)w->size)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_comm_create_group: a group has 1 to %d members, and not %zu",
                        w->size, n);
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
            "cddp_comm_create_group: this process is rank %d, which is not in the list: only members call it", w->rank);
    return CDDP_OK;
}

static cddp_status create_group(struct cddp_comm *part, cddp_comm *comm, const int *ranks, int n, int me, int tag,
                                bool on_cpu, struct cdi_split *how, struct cdi_error *err)
{
    CDI_AUTOFREE int *nodes = calloc((size_t)n, sizeof *nodes);
    struct cdi_world *w = &part->world;
    struct watched whole = {.whole = comm};
    struct cdi_group g;
    cddp_status st;

    whole.was_aborted = is_abort(comm, &(struct cdi_error){.status = CDDP_OK});
    how->watch = (struct cdi_watch){.fn = watch_whole, .arg = &whole};
    begin_part(part, comm);
    w->ranks = part->ranks = calloc((size_t)n, sizeof *part->ranks);
    if (nodes == NULL || part->ranks == NULL)
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
                           .timeout_ms = comm->world.join_timeout_ms};
    st = cdi_group_meet(&g, nodes, &part->id, err);
    if (st != CDDP_OK)
        return st;
    if (on_cpu)
        part->ops = &cdi_cpu_backend;
    return connect_part(part, comm, nodes, err);
}

cddp_status cddp_comm_create_group(cddp_comm **to, cddp_comm *comm, const int *ranks, size_t n, int tag,
                                   const cddp_split_options *opt)
{
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
        add_part(part);
        *to = cdi_steal(&part);
    }
    forget_part(part);
    return cdi_last_error_return(st, &err);
}

void cddp_abort(cddp_comm *comm, const char *why)
{
    char text[400];

    if (comm == NULL || cdi_comm_is_others("cddp_abort", comm) || comm->over)
        return;
    (void)atomic_fetch_add(&comm->n_aborting, 1);
    (void)snprintf(text, sizeof text, "rank %d aborted the job%s%.300s", comm->world.rank, why != NULL ? ": " : "",
                   why != NULL ? why : "");
    comm->ops->abort(comm->backend, CDDP_E_ABORTED, text);
    (void)atomic_fetch_sub(&comm->n_aborting, 1); /* the last access: from here on comm may be gone */
}
