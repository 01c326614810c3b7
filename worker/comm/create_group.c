/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/create_group.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/crc64.h"
#include "common/rank_list.h"
#include "worker/backend/who.h"
#include "worker/store/client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FUNCTION "cddp_comm_create_group"
#define KEY_BYTES 192
#define FIRST_NAP_US 100
#define LAST_NAP_US 20000
#define CHECK_MS 200 /* between two checks of missing members and their lists */
#define NEWS_MS 2000 /* an abort that another member knows of reaches this rank within this time */
#define ENTRY_BYTES 24
#define ALL_ARE_HERE "all "
#define TEXT_BYTES (CDI_ERROR_TEXT + 64)

struct cdi_group_call {
    struct cdi_group_call *next;
    uint64_t list;
    uint32_t next_one; /* all calls of that list before this one have ended */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all struct cdi_group_calls */

void cdi_group_calls_release(struct cdi_group_calls *calls)
{
    while (calls->first != NULL) {
        struct cdi_group_call *c = calls->first;

        calls->first = c->next;
        free(c);
    }
}

static uint32_t first_to_try(const struct cdi_group_calls *calls, uint64_t list)
{
    uint32_t n = 0;

    (void)pthread_mutex_lock(&lock);
    for (const struct cdi_group_call *c = calls->first; c != NULL; c = c->next)
        n = c->list == list ? c->next_one : n;
    (void)pthread_mutex_unlock(&lock);
    return n;
}

/* Notes that the nth call has ended. Returns false without memory for it; the next call then searches longer. */
static bool note_call(struct cdi_group_calls *calls, uint64_t list, uint32_t nth)
{
    struct cdi_group_call *c;

    (void)pthread_mutex_lock(&lock);
    for (c = calls->first; c != NULL && c->list != list;)
        c = c->next;
    if (c == NULL) {
        c = calloc(1, sizeof *c);
        if (c != NULL) {
            c->list = list;
            c->next = calls->first;
            calls->first = c;
        }
    }
    if (c != NULL)
        c->next_one = nth + 1;
    (void)pthread_mutex_unlock(&lock);
    return c != NULL;
}

/* ------------------------------------------------------------------------------------------------- one call ---- */

struct gathering {
    const struct cdi_group *g;
    uint64_t list; /* stands for the communicator, the tag and the members */
    uint32_t nth;  /* of the calls for that list */
    int64_t deadline_ms;
};

/* The list with which a rank is waiting, as a value; the members' ranks of the job follow. */
struct waits {
    uint64_t list;
    uint32_t nth, n;
};

static void group_key(const struct gathering *m, const char *name, char key[KEY_BYTES])
{
    (void)snprintf(key, KEY_BYTES, "%sg%016" PRIx64 ".%u/%s", m->g->prefix, m->list, m->nth, name);
}

static void group_here_key(const struct gathering *m, int i, char key[KEY_BYTES])
{
    (void)snprintf(key, KEY_BYTES, "%sg%016" PRIx64 ".%u/here/%d", m->g->prefix, m->list, m->nth, i);
}

/* Sets *ended to whether the nth call for a list has ended. */
static cddp_status has_ended(const struct cdi_group *g, uint64_t list, uint32_t nth, bool *ended, struct cdi_error *err)
{
    const struct gathering m = {.g = g, .list = list, .nth = nth};
    char key[KEY_BYTES];

    group_key(&m, "end", key);
    return cdi_store_exists(g->store, key, ended, err);
}

static void group_waits_key(const struct gathering *m, int of_job, char key[KEY_BYTES])
{
    (void)snprintf(key, KEY_BYTES, "%sw%016" PRIx64 ".%d/%d", m->g->prefix, m->g->comm, m->g->tag, of_job);
}

/* Publishes the list with which this rank waits, for members with other lists. */
static cddp_status publish_waits(const struct gathering *m, struct cdi_error *err)
{
    const struct cdi_group *g = m->g;
    size_t bytes = sizeof(struct waits) + (size_t)g->n * sizeof(int32_t);
    CDI_AUTOFREE uint8_t *value = calloc(1, bytes);
    const struct waits head = {.list = m->list, .nth = m->nth, .n = (uint32_t)g->n};
    char key[KEY_BYTES];

    if (value == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    memcpy(value, &head, sizeof head);
    for (int i = 0; i < g->n; i++) {
        int32_t rank = g->of_job[i];

        memcpy(value + sizeof head + (size_t)i * sizeof rank, &rank, sizeof rank);
    }
    group_waits_key(m, g->of_job[g->self], key);
    return cdi_store_set(g->store, key, value, bytes, err);
}

static cddp_status unpublish_waits(const struct gathering *m, struct cdi_error *err)
{
    char key[KEY_BYTES];

    group_waits_key(m, m->g->of_job[m->g->self], key);
    return cdi_store_delete(m->g->store, key, err);
}

/*
 * Reads the list with which a member waits, as publish_waits has set it, into *value (malloc). A value shorter than its
 * head: the member does not wait. The key may be deleted at any time, so a get could wait for ever; a compare-and-set
 * with a value that it never has does not.
 */
static cddp_status read_waits(const struct gathering *m, int of_job, uint8_t **value, size_t *len,
                              struct cdi_error *err)
{
    size_t cap = sizeof(struct waits) + ((size_t)m->g->n + CDI_RANK_LIST_SHOWN) * sizeof(int32_t);
    cddp_status st = CDDP_E_LIMIT;
    char key[KEY_BYTES];

    group_waits_key(m, of_job, key);
    for (; st == CDDP_E_LIMIT; cap = *len) { /* it may be longer than this rank's, and may grow */
        free(*value);
        *value = malloc(cap);
        if (*value == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
        st = cdi_store_compare_set(m->g->store, key, "?", 1, "?", 1, *value, cap, len, err);
    }
    return st;
}

static void print_list(const int *of_job, int n, char *buf, size_t cap)
{
    size_t used = 0;

    buf[0] = '\0';
    for (int i = 0; i < n && i <= 8 && used + 16 < cap; i++)
        used += (size_t)snprintf(buf + used, cap - used, i < 8 ? "%s%d" : " ...", i > 0 ? " " : "", of_job[i]);
}

static cddp_status get_text(const struct gathering *m, const char *key, char *text, size_t cap, struct cdi_error *err)
{
    size_t len = 0;
    cddp_status st = cdi_store_get(m->g->store, key, text, cap - 1, &len, m->g->timeout_ms, err);

    if (st == CDDP_OK)
        text[len] = '\0';
    return st;
}

static void print_failure(const struct cdi_error *why, char *text, size_t cap)
{
    (void)snprintf(text, cap, "%d %d %.1000s", (int)why->status, why->blamed, why->msg);
}

/* Ends the call with `text`. If it has ended already, sets text to what it ended with. */
static cddp_status end_gathering(const struct gathering *m, char *text, size_t cap, struct cdi_error *err)
{
    CDI_AUTOFREE char *held = malloc(cap);
    char key[KEY_BYTES];
    size_t len = 0;
    cddp_status st;

    if (held == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    group_key(m, "end", key);
    st = cdi_store_compare_set(m->g->store, key, "", 0, text, strlen(text), held, cap - 1, &len, err);
    if (st == CDDP_OK) {
        memcpy(text, held, len);
        text[len] = '\0';
    }
    return st;
}

static bool is_among(int of_job, const int32_t *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == of_job)
            return true;
    return false;
}

/*
 * Fails if member i waits for this rank with another list and the same tag: the two would wait for each other for ever.
 * It does not if i's call has ended and i has not noticed yet; an end stays until all members have noticed it.
 */
static cddp_status compare_lists(const struct gathering *m, int i, struct cdi_error *err)
{
    const struct cdi_group *g = m->g;
    CDI_AUTOFREE uint8_t *value = NULL, *again = NULL;
    char mine[96], theirs[96], text[TEXT_BYTES];
    size_t len = 0, len_again = 0;
    struct gathering other;
    struct cdi_error why;
    CDI_AUTOFREE int32_t *list = NULL;
    struct waits w;
    bool ended;
    cddp_status st = read_waits(m, g->of_job[i], &value, &len, err);

    if (st != CDDP_OK || len < sizeof w)
        return st;
    memcpy(&w, value, sizeof w);
    if (w.list == m->list || len != sizeof w + w.n * sizeof(int32_t))
        return CDDP_OK;
    list = malloc(len);
    if (list == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    memcpy(list, value + sizeof w, w.n * sizeof(int32_t));
    if (!is_among(g->of_job[g->self], list, w.n))
        return CDDP_OK;
    st = has_ended(g, w.list, w.nth, &ended, err);
    if (st == CDDP_OK && !ended)
        st = read_waits(m, g->of_job[i], &again, &len_again, err);
    if (st != CDDP_OK || ended || len_again != len || memcmp(again, value, len) != 0)
        return st;
    other = (struct gathering){.g = g, .list = w.list, .nth = w.nth};
    print_list(g->of_job, g->n, mine, sizeof mine);
    print_list(list, (int)w.n, theirs, sizeof theirs);
    (void)cdi_fail_by(&why, g->of_job[i], CDDP_E_MISMATCH,
                      FUNCTION
                      " (tag %d): rank %d passes the ranks %s, but rank %d passes %s (as ranks of the world): pass "
                      "the same list on all members",
                      g->tag, g->of_job[g->self], mine, g->of_job[i], theirs);
    print_failure(&why, text, sizeof text);
    (void)end_gathering(&other, text, sizeof text, NULL); /* ends their call; the caller ends ours */
    if (err != NULL)
        *err = why;
    return why.status;
}

/* Finds the missing members, and fails if one of them waits with another list. */
static cddp_status find_missing(const struct gathering *m, struct cdi_rank_list *missing, int *first,
                                struct cdi_error *err)
{
    const struct cdi_group *g = m->g;
    cddp_status st = CDDP_OK;

    *missing = (struct cdi_rank_list){0};
    *first = -1;
    for (int i = 0; i < g->n && st == CDDP_OK && missing->n < CDI_RANK_LIST_SHOWN; i++) {
        char key[KEY_BYTES];
        bool there;

        group_here_key(m, i, key);
        st = cdi_store_exists(g->store, key, &there, err);
        if (st != CDDP_OK || there)
            continue;
        cdi_rank_list_add(missing, g->ranks[i]);
        *first = *first < 0 ? i : *first;
        st = compare_lists(m, i, err);
    }
    return st;
}

static cddp_status fail_timed_out(const struct gathering *m, struct cdi_error *err)
{
    struct cdi_rank_list missing;
    int first;
    cddp_status st = find_missing(m, &missing, &first, err);

    if (st != CDDP_OK)
        return st;
    return cdi_fail_by(err, first >= 0 ? m->g->of_job[first] : -1, CDDP_E_TIMEOUT,
                       FUNCTION " (tag %d): rank%s %s did not call it within %.4g s", m->g->tag,
                       missing.n == 1 ? "" : "s", missing.n > 0 ? missing.text : "?", (double)m->g->timeout_ms / 1000);
}

static cddp_status watch_members(const struct cdi_group *g, struct cdi_error *err)
{
    cddp_status st = g->watch.fn != NULL ? g->watch.fn(g->watch.arg, g->of_job, g->n, err) : CDDP_OK;

    if (st != CDDP_OK)
        (void)cdi_error_wrap(err, FUNCTION " (tag %d)", g->tag);
    return st;
}

/* Waits until the call has ended. Polls the store, since a wait in it would block its other users. */
static cddp_status group_await_end(const struct gathering *m, struct cdi_error *err)
{
    int64_t check_ms = cdi_now_ms() + CHECK_MS, nap_us = FIRST_NAP_US;
    struct cdi_rank_list missing;
    int first;

    for (;;) {
        const struct timespec nap = {.tv_nsec = nap_us * 1000};
        bool ended = false;
        cddp_status st = has_ended(m->g, m->list, m->nth, &ended, err);

        if (st != CDDP_OK || ended)
            return st;
        st = m->g->flight != NULL ? cdi_flight_check(m->g->flight, err) : CDDP_OK;
        if (st == CDDP_OK && cdi_now_ms() >= check_ms) {
            st = watch_members(m->g, err);
            if (st == CDDP_OK)
                st = find_missing(m, &missing, &first, err);
            check_ms = cdi_now_ms() + CHECK_MS;
        }
        if (st == CDDP_OK && cdi_now_ms() >= m->deadline_ms)
            st = fail_timed_out(m, err);
        if (st != CDDP_OK)
            return st;
        (void)nanosleep(&nap, NULL);
        nap_us = nap_us * 3 / 2 > LAST_NAP_US ? LAST_NAP_US : nap_us * 3 / 2;
    }
}

/* Reads the entries of all members, as the last one. */
static cddp_status collect_entries(const struct gathering *m, char *all, size_t cap, struct cdi_error *err)
{
    char key[KEY_BYTES], one[ENTRY_BYTES];
    size_t used = (size_t)snprintf(all, cap, ALL_ARE_HERE);
    cddp_status st = CDDP_OK;

    for (int i = 0; i < m->g->n && st == CDDP_OK; i++) {
        group_here_key(m, i, key);
        st = get_text(m, key, one, sizeof one, err);
        if (st == CDDP_OK)
            used += (size_t)snprintf(all + used, cap - used, "%s ", one);
    }
    return st;
}

/*
 * Another member may know of an abort before this rank's own connection brings it. Waits for it, so that
 * cddp_comm_error() agrees with the error that this call returns.
 */
static void await_abort(const struct cdi_group *g)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    int64_t until_ms = cdi_now_ms() + NEWS_MS;

    while (watch_members(g, NULL) == CDDP_OK && cdi_now_ms() < until_ms)
        (void)nanosleep(&nap, NULL);
}

/* Reads how the call has ended. */
static cddp_status read_end(const struct gathering *m, const char *all, int *nodes, struct cdi_error *err)
{
    const struct cdi_group *g = m->g;
    int first_on_cpu = 0, status = CDDP_E_ABORTED, blamed = 0, at = 0;

    if (strncmp(all, ALL_ARE_HERE, sizeof ALL_ARE_HERE - 1) != 0) {
        if (sscanf(all, "%d %d %n", &status, &blamed, &at) != 2 || status >= 0)
            status = CDDP_E_ABORTED;
        if (status == CDDP_E_ABORTED && blamed > 0 && g->watch.fn != NULL)
            await_abort(g);
        return cdi_fail_told(err, blamed, (cddp_status)status, all + at);
    }
    all += sizeof ALL_ARE_HERE - 1;

    for (int i = 0; i < g->n; i++) {
        int on_cpu, used = 0;

        if (sscanf(all, "%d %d %n", &nodes[i], &on_cpu, &used) != 2)
            return cdi_fail(err, CDDP_E_MISMATCH, "ranks run different versions of libcddp");
        all += used;
        if (i == 0)
            first_on_cpu = on_cpu;
        if (on_cpu != first_on_cpu)
            return cdi_fail(err, CDDP_E_MISMATCH,
                            FUNCTION " (tag %d): %s wants the backend \"cpu\", but %s that of comm: choose one", g->tag,
                            cdi_who_is(g->ranks[on_cpu ? i : 0], g->of_job[on_cpu ? i : 0], NULL).text,
                            cdi_who_is(g->ranks[on_cpu ? 0 : i], g->of_job[on_cpu ? 0 : i], NULL).text);
    }
    return CDDP_OK;
}

/* Finds the first call for this list that has not ended. */
static cddp_status find_gathering(struct gathering *m, struct cdi_error *err)
{
    bool ended = true;
    cddp_status st = CDDP_OK;

    m->nth = first_to_try(m->g->calls, m->list);
    while (st == CDDP_OK && ended) {
        st = has_ended(m->g, m->list, m->nth, &ended, err);
        m->nth += st == CDDP_OK && ended;
    }
    return st;
}

/* Counts this rank as there. The last member ends the call; the others wait for its end. */
static cddp_status enter_gathering(const struct gathering *m, char *text, size_t cap, struct cdi_error *err)
{
    const struct cdi_group *g = m->g;
    char key[KEY_BYTES], mine[ENTRY_BYTES];
    int64_t n_here = 0;
    cddp_status st = publish_waits(m, err);

    (void)snprintf(mine, sizeof mine, "%d %d", g->node, g->on_cpu);
    group_here_key(m, g->self, key);
    if (st == CDDP_OK)
        st = cdi_store_set(g->store, key, mine, strlen(mine), err);
    group_key(m, "n", key);
    if (st == CDDP_OK)
        st = cdi_store_add(g->store, key, 1, &n_here, err);
    if (st != CDDP_OK)
        return st;
    if (n_here == g->n) {
        st = collect_entries(m, text, cap, err);
        return st == CDDP_OK ? end_gathering(m, text, cap, err) : st;
    }
    st = group_await_end(m, err);
    group_key(m, "end", key);
    return st == CDDP_OK ? get_text(m, key, text, cap, err) : st;
}

/*
 * Notes that this member knows how the call has ended. After a good end the last member to do so deletes the keys,
 * which no member reads any more. The keys of a failed call stay, for members that call it later.
 */
static void leave_gathering(const struct gathering *m, const char *text)
{
    static const char *const names[] = {"n", "end", "left"};
    bool noted = note_call(m->g->calls, m->list, m->nth);
    char key[KEY_BYTES];
    int64_t n_left = 0;
    cddp_status st = unpublish_waits(m, NULL);

    if (st != CDDP_OK || !noted || strncmp(text, ALL_ARE_HERE, sizeof ALL_ARE_HERE - 1) != 0)
        return;
    group_key(m, "left", key);
    st = cdi_store_add(m->g->store, key, 1, &n_left, NULL);
    if (n_left != m->g->n)
        return;
    for (int i = 0; i < m->g->n && st == CDDP_OK; i++) {
        group_here_key(m, i, key);
        st = cdi_store_delete(m->g->store, key, NULL);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0] && st == CDDP_OK; i++) {
        group_key(m, names[i], key);
        st = cdi_store_delete(m->g->store, key, NULL);
    }
}

static cddp_status gather_members(struct gathering *m, int *nodes, struct cdi_error *err)
{
    const struct cdi_group *g = m->g;
    size_t cap = (size_t)g->n * ENTRY_BYTES + TEXT_BYTES;
    CDI_AUTOFREE char *text = NULL;
    cddp_status st = find_gathering(m, err);

    if (st != CDDP_OK)
        return st;
    text = calloc(1, cap);
    if (text == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a communicator");
    st = enter_gathering(m, text, cap, err);
    if (st != CDDP_OK) { /* the others read the reason, unless the call has just ended otherwise */
        print_failure(err, text, cap);
        if (end_gathering(m, text, cap, NULL) != CDDP_OK)
            return st;
    }
    leave_gathering(m, text);
    return read_end(m, text, nodes, err);
}

cddp_status cdi_group_gather(const struct cdi_group *g, int *nodes, uint64_t *id, struct cdi_error *err)
{
    struct gathering m = {.g = g, .deadline_ms = cdi_deadline_ms(cdi_now_ms(), g->timeout_ms)};
    const int32_t head[] = {g->tag, g->n};
    struct cdi_error why = {.status = CDDP_OK};
    uint64_t of[2];
    cddp_status st = CDDP_OK;

    m.list = cdi_crc64(cdi_crc64(g->comm, head, sizeof head), g->of_job, (size_t)g->n * sizeof *g->of_job);
    if (g->n > 1) {
        st = gather_members(&m, nodes, &why);
    } else {
        nodes[0] = g->node;
        m.nth = first_to_try(g->calls, m.list);
        (void)note_call(g->calls, m.list, m.nth);
    }
    of[0] = m.list;
    of[1] = m.nth;
    *id = cdi_crc64(g->comm, of, sizeof of);
    if (st != CDDP_OK && err != NULL)
        *err = why;
    return st;
}
