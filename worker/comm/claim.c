/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/claim.h"

#include "common/cleanup.h"
#include "common/env.h"
#include "worker/comm/keys.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool page_is_taken; /* the agent's, by a communicator of process page_taken_by; with `lock` */
static pid_t page_taken_by;

/* This process as the jobs that it joins know it. One thread at a time is in cddp_init. */
static struct {
    pid_t pid;
    uint64_t nonce;       /* tells apart processes with equal host name and pid, such as those of two containers */
    unsigned claims;      /* of a rank, so far */
    atomic_bool has_left; /* a job, by cddp_finalize */
} self;

/* The claims that this process has not released by cddp_finalize; with `lock`. */
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
    (void)pthread_mutex_lock(&lock);
    while (held != NULL) { /* the parent's */
        struct claim *c = held;

        held = c->next;
        free(c);
    }
    (void)pthread_mutex_unlock(&lock);
}

static bool is_held(unsigned number)
{
    bool found = false;

    (void)pthread_mutex_lock(&lock);
    for (const struct claim *c = held; c != NULL; c = c->next)
        found = found || c->number == number;
    (void)pthread_mutex_unlock(&lock);
    return found;
}

static void hold_claim(struct claim *c, unsigned number)
{
    (void)pthread_mutex_lock(&lock);
    c->number = number;
    c->next = held;
    held = c;
    (void)pthread_mutex_unlock(&lock);
}

static void drop_claim(unsigned number)
{
    struct claim *found = NULL;

    (void)pthread_mutex_lock(&lock);
    for (struct claim **at = &held; *at != NULL && found == NULL; at = *at != NULL ? &(*at)->next : at)
        if ((*at)->number == number) {
            found = *at;
            *at = found->next;
            break;
        }
    (void)pthread_mutex_unlock(&lock);
    free(found);
}

/* Writes "host:pid:nonce.N" for the Nth claim of this process. Returns the length without N. */
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

/* Writes "process 77 on node1" for such a text, which it takes apart. */
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
 * Of two processes with one rank the first one gets it. A claim that this process has released does not count: the
 * process joins once more, under other keys (*is_old stays false). Where a rank hosts the store, such a claim shows
 * that this is the store of the join before, which is about to end (*is_old becomes true).
 */
cddp_status cdi_claim_rank(struct cddp_comm *c, bool *is_old, struct cdi_error *err)
{
    struct cdi_world *w = &c->world;
    char key[CDI_COMM_KEY_BYTES], text[192], holder[256], me[192], other[192];
    const char *rank_is = c->given ? "rank " : "RANK=";
    size_t len = 0, own = describe_self(text, sizeof text);
    CDI_AUTOFREE struct claim *claim = calloc(1, sizeof *claim);
    cddp_status st = claim != NULL ? CDDP_OK : cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    bool mine = false, has_left = false;

    *is_old = false;
    for (int joins_before = 0; st == CDDP_OK; joins_before++) {
        cdi_comm_set_prefix(w, c->given, joins_before);
        cdi_comm_key(w, "rank", w->rank, key);
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
                        "this process has already joined with this cddp_unique_id, as rank %d: each rank can use it "
                        "for one cddp_init only",
                        w->rank);
    if (mine)
        return cdi_fail(err, CDDP_E_EXISTS,
                        "this process has already joined the job, as rank %d: finalize that communicator before "
                        "joining again, or make further ones by cddp_comm_split%s",
                        w->rank, c->given ? " or with another cddp_init_options.name" : "");
    describe_other(holder, st == CDDP_OK ? len : 0, other, sizeof other);
    describe_other(text, strlen(text), me, sizeof me);
    return cdi_fail(err, CDDP_E_EXISTS,
                    "two processes have %s%d: %s joined first, and now %s; give each process its own rank", rank_is,
                    w->rank, other, me);
}

void cdi_claim_release(const struct cddp_comm *c)
{
    if (c->claim == 0 || self.pid != getpid())
        return;
    atomic_store(&self.has_left, true);
    drop_claim(c->claim);
}

bool cdi_claim_has_left(void)
{
    return atomic_load(&self.has_left) && self.pid == getpid();
}

/* The agent's page shows the operations of the first communicator. Others read it, and record on a private page. */
cddp_status cdi_page_acquire(struct cddp_comm *c, struct cdi_error *err)
{
    bool taken;
    cddp_status st = CDDP_OK;

    (void)pthread_mutex_lock(&lock);
    taken = page_is_taken && page_taken_by == getpid();
    c->has_page = !taken;
    page_is_taken = true;
    page_taken_by = getpid();
    (void)pthread_mutex_unlock(&lock);
    if (taken)
        st = cdi_flight_attach(&c->record, NULL, err);
    else
        cdi_flight_renew(c->world.flight);
    c->world.record = c->record;
    return st;
}

void cdi_page_release(struct cddp_comm *c)
{
    (void)pthread_mutex_lock(&lock);
    if (c->has_page) {
        cdi_flight_tell_over(c->world.flight);
        page_is_taken = false;
    }
    c->has_page = false;
    (void)pthread_mutex_unlock(&lock);
}
