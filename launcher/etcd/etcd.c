/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/etcd/etcd.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/time_limits.h"
#include "launcher/etcd/etcd_json.h"
#include "launcher/etcd/http_post.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REQUEST_MS \
    2000 /* for an answer; less for a renewal of a short lease, so that another member is asked in time */
#define TOMB_MIN_MS 60000 /* how long the key "over" stays at least */

struct etcd {
    uv_loop_t *loop;
    uv_timer_t timer;
    struct http_post *http;
    const struct endpoint_etcd *opt;
    struct etcd_facts facts;
    struct elect elect;
    struct etcd_events on;
    void *arg;
    enum elect_ask ask; /* under way */
    unsigned member;    /* the present one */
    bool ended, logging_in;
    unsigned n_logins;        /* for the request under way */
    int64_t answers_until_ms; /* as reported */
    char password[256], token[ETCD_TOKEN_MAX];
};

static void etcd_handle(struct etcd *e, const struct elect_event *ev);
static void etcd_ask(struct etcd *e);

static void etcd_on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void etcd_close(struct etcd *e)
{
    if (e->ended)
        return;
    e->ended = true;
    http_post_close(e->http);
    uv_close((uv_handle_t *)&e->timer, etcd_on_closed);
}

/* ------------------------------------------------------------------------------------------------- requests ---- */

static void etcd_answer(struct etcd *e, const struct elect_answer *a)
{
    e->ask = ELECT_ASK_NONE;
    etcd_handle(e, &(struct elect_event){.kind = ELECT_EV_ANSWER, .answer = a});
}

static void etcd_fail(struct etcd *e, bool fatal, const char *text)
{
    etcd_answer(e, &(struct elect_answer){.failed = true, .fatal = fatal, .text = text});
}

/* Is it another member's turn? One that answers is kept, unless it reports an error. */
static void next_member(struct etcd *e)
{
    e->member = (e->member + 1) % e->opt->n_members;
}

static void on_answer(void *arg, const struct http_post_answer *got)
{
    const char *bytes = (const char *)got->bytes;
    struct etcd *e = arg;
    struct elect_answer a;
    char text[400], where[400];

    if (got->local_ip[0] != '\0')
        (void)snprintf(e->facts.addr, sizeof e->facts.addr, "%s", got->local_ip);
    if (got->status == 0) {
        (void)snprintf(where, sizeof where, "%.120s: %.250s", e->opt->members[e->member], got->text);
        next_member(e);
        etcd_fail(e, got->fatal, where);
        return;
    }
    if (e->logging_in) {
        e->logging_in = false;
        if (etcd_read_token(got->status, bytes, got->n, e->token, &a, text)) {
            etcd_ask(e);
            return;
        }
        next_member(e);
        etcd_answer(e, &a);
        return;
    }
    if (e->opt->user[0] != '\0' && e->n_logins < 2 && etcd_wants_token(got->status, bytes, got->n)) {
        e->token[0] = '\0';
        etcd_ask(e);
        return;
    }
    etcd_read_answer(e->ask, got->status, bytes, got->n, &a, text);
    if (a.failed && !a.lease_gone)
        next_member(e);
    etcd_answer(e, &a);
}

static int64_t request_ms(const struct etcd *e)
{
    int64_t ms = e->elect.ttl_ms / 4;

    return e->elect.state == ELECT_HOSTING && ms < REQUEST_MS ? ms : REQUEST_MS;
}

/* Sends the request that is due; before the first one, the request for a token. */
static void etcd_ask(struct etcd *e)
{
    const char *path = NULL;
    char url[400];
    struct cdi_buf body;
    bool sent = false;

    cdi_buf_init(&body, 0);
    e->logging_in = e->opt->user[0] != '\0' && e->token[0] == '\0';
    if (e->logging_in) {
        e->n_logins++;
        path = etcd_login_request(e->opt->user, e->password, &body) ? ETCD_LOGIN_PATH : NULL;
    } else {
        path = etcd_request(e->ask, &e->elect, &e->facts, &body);
    }
    if (path != NULL) {
        (void)snprintf(url, sizeof url, "%s://%s%s", e->opt->https ? "https" : "http", e->opt->members[e->member],
                       path);
        sent = http_post_send(e->http, url, e->token, &body, request_ms(e), on_answer, e);
    }
    cdi_buf_release(&body);
    if (!sent)
        etcd_fail(e, false, "out of memory for a request");
}

/* -------------------------------------------------------------------------------------------------- actions ---- */

static void etcd_listen(struct etcd *e)
{
    int64_t lease_ms = ELECT_AGENT_LEASE_MS(e->elect.ttl_ms);

    if (!e->on.listen(e->arg, lease_ms, e->facts.addr, &e->facts.port))
        e->facts.port = 0;
}

static void etcd_carry_out(struct etcd *e, const struct elect_action *action, const char *text)
{
    switch (action->what) {
    case ELECT_DO_ASK:
        e->ask = action->ask;
        e->n_logins = 0;
        if (e->ask == ELECT_ASK_CAMPAIGN && e->facts.port == 0)
            etcd_fail(e, false, "no server"); /* the agent knows why, and ends */
        else
            etcd_ask(e);
        return;
    case ELECT_DO_LISTEN:
        etcd_listen(e);
        return;
    case ELECT_DO_UNLISTEN:
        e->on.unlisten(e->arg);
        return;
    case ELECT_DO_HOST:
        e->on.host(e->arg, e->facts.addr, e->facts.port);
        return;
    case ELECT_DO_UNHOST:
        e->on.unhost(e->arg, text);
        return;
    case ELECT_DO_JOIN:
        e->on.join(e->arg, e->elect.host.addr, e->elect.host.port);
        return;
    case ELECT_DO_WAITING:
        e->on.waiting(e->arg, text);
        return;
    case ELECT_DO_FAIL:
        e->on.failed(e->arg, text);
        return;
    case ELECT_DO_OVER:
        e->on.over(e->arg, e->elect.done);
        return;
    case ELECT_DO_ENDED:
        etcd_close(e);
        return;
    }
}

static void etcd_on_timer(uv_timer_t *t)
{
    etcd_handle(t->data, &(struct elect_event){.kind = ELECT_EV_TICK});
}

static void etcd_set_timer(struct etcd *e)
{
    int64_t at = elect_next_ms(&e->elect), now = cdi_now_ms();

    if (e->ended)
        return;
    (void)uv_timer_stop(&e->timer);
    if (at == CDI_NEVER_MS)
        return;
    uv_update_time(e->loop);
    (void)uv_timer_start(&e->timer, etcd_on_timer, at > now ? (uint64_t)(at - now) : 0, 0);
}

/* An action may lead to the next event, so only the last one sets the timer for good. */
static void etcd_handle(struct etcd *e, const struct elect_event *ev)
{
    struct elect_actions todo;
    int64_t until;

    if (e->ended)
        return;
    elect_handle(&e->elect, ev, cdi_now_ms(), &todo);
    until = elect_answers_until_ms(&e->elect);
    if (until != e->answers_until_ms && !e->elect.ending)
        e->on.answers_until(e->arg, until, elect_alone_until_ms(&e->elect));
    e->answers_until_ms = until;
    for (unsigned i = 0; i < todo.n && !e->ended; i++)
        etcd_carry_out(e, &todo.v[i], todo.text);
    etcd_set_timer(e);
}

/* --------------------------------------------------------------------------------------------------- public ---- */

static void all_members(const struct endpoint_etcd *m, char *text, size_t cap)
{
    size_t n = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < m->n_members && n < cap; i++)
        n += (size_t)snprintf(text + n, cap - n, "%s%s", i > 0 ? "," : "", m->members[i]);
}

/* The first line of the file, which only its owner may read. Blocks for as long as the file system does. */
static cddp_status read_password(struct etcd *e, const char *path, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO has no writer yet */
    ssize_t n = fd < 0 ? -1 : read(fd, e->password, sizeof e->password);
    struct stat s;

    if (n < 0 || fstat(fd, &s) != 0)
        return cdi_fail_errno(err, errno, "cannot read the password file '%.255s' (--rdzv_conf=password_file)", path);
    if (!S_ISREG(s.st_mode))
        return cdi_fail(err, CDDP_E_INVALID, "the password file '%.255s' is not a regular file", path);
    if ((s.st_mode & 077) != 0)
        return cdi_fail(err, CDDP_E_DENIED, "the password file '%.255s' is open to others; run chmod 600", path);
    e->password[(size_t)n < sizeof e->password ? (size_t)n : sizeof e->password - 1] = '\0';
    if ((size_t)n == sizeof e->password && strpbrk(e->password, "\r\n") == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "the first line of the password file '%.255s' has more than %zu bytes",
                        path, sizeof e->password - 1);
    e->password[strcspn(e->password, "\r\n")] = '\0';
    return e->password[0] != '\0'
               ? CDDP_OK
               : cdi_fail(err, CDDP_E_INVALID, "the first line of the password file '%.255s' is empty", path);
}

cddp_status etcd_start(struct etcd **out, uv_loop_t *loop, const struct endpoint *m, const char *run_id,
                       const struct etcd_events *on, void *arg, struct cdi_error *err)
{
    const struct http_post_options http = {
        .cacert = m->etcd.cacert, .cert = m->etcd.cert, .key = m->etcd.key, .answer_max = ETCD_ANSWER_MAX};
    struct etcd *e = calloc(1, sizeof *e);
    char name[200];
    cddp_status st;

    if (e == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for the client of etcd");
    e->loop = loop;
    e->opt = &m->etcd;
    e->on = *on;
    e->arg = arg;
    st = etcd_set_keys(&e->facts, m->etcd.prefix, run_id, err);
    if (st == CDDP_OK && m->etcd.user[0] != '\0')
        st = read_password(e, m->etcd.password_file, err);
    if (st == CDDP_OK)
        st = http_post_open(&e->http, loop, &http, err);
    if (st != CDDP_OK) {
        free(e);
        return st;
    }
    (void)uv_timer_init(loop, &e->timer);
    e->timer.data = e;
    e->facts.tomb_ms = m->join_timeout_ms > TOMB_MIN_MS ? m->join_timeout_ms : TOMB_MIN_MS;
    all_members(&m->etcd, name, sizeof name);
    elect_init(&e->elect, m->lease_ms > 0 ? m->lease_ms : 1000 * CDI_LIMIT_LEASE_S,
               cdi_deadline_ms(cdi_now_ms(), m->join_timeout_ms), name, e->facts.key_host);
    *out = e;
    etcd_handle(e, &(struct elect_event){.kind = ELECT_EV_START});
    return CDDP_OK;
}

void etcd_set_linked(struct etcd *e, bool linked)
{
    if (e != NULL)
        etcd_handle(e, &(struct elect_event){.kind = ELECT_EV_LINK, .linked = linked});
}

void etcd_note_round(struct etcd *e)
{
    if (e != NULL)
        etcd_handle(e, &(struct elect_event){.kind = ELECT_EV_ROUND});
}

void etcd_end(struct etcd *e, bool over, bool done, bool give_up)
{
    if (e == NULL)
        return;
    etcd_handle(e, &(struct elect_event){.kind = ELECT_EV_END, .over = over, .done = done, .give_up = give_up});
    if (e->elect.state == ELECT_ENDED)
        etcd_close(e); /* it had failed before */
}
