/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/view/hang_watch.h"

#include "common/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum hang_state {
    WATCH_CALM,   /* no agent has reported anything */
    WATCH_ASKED,  /* all agents are asked where their ranks are */
    WATCH_STACKS, /* and for the stacks of the ranks that are behind */
    WATCH_STANDS, /* the standstill is reported, and lasts */
};

#define HANG_YOUNGER_MS 1000 /* more than the reports of several agents differ by */

struct hang_watch {
    struct session *session;
    struct view *view;
    const struct hang_ops *ops;
    enum hang_state state;
    uint32_t round;
    uint32_t ask;        /* the id of the last ASK */
    size_t n_missing;    /* agents that have not answered it */
    int64_t asked_ms;    /* when it was sent */
    int64_t deadline_ms; /* ASKED, STACKS: when the answers that are there must do; STANDS: the next look */
    int64_t began_ms;    /* when the longest wait began */
    uint64_t mark;       /* of what was reported last; 0: nothing */
    unsigned n_messages;
    int64_t quiet_until_ms; /* CALM: no further question before */
    bool pending;           /* CALM: an agent has reported since */
    bool due;               /* the timeout has passed, and the stacks are asked for that message */
    bool timed_out;         /* that message is printed */
    bool stacks_are_late;   /* answers with stacks are still to come */
    bool ends_round, stop;  /* at the next tick */
    struct cdi_failure failure;
};

cddp_status hang_watch_create(struct hang_watch **out, struct session *s, struct view *v, const struct hang_ops *ops)
{
    struct hang_watch *w = calloc(1, sizeof *w);

    if (w == NULL)
        return CDDP_E_NOMEM;
    w->session = s;
    w->view = v;
    w->ops = ops;
    *out = w;
    return CDDP_OK;
}

void hang_watch_destroy(struct hang_watch *w)
{
    free(w);
}

/* -------------------------------------------------------------------------------------------------- printing ---- */

/* Prints on the agent that prints for the job, and in the log of a separate rendezvous server. */
static void publish(struct hang_watch *w, const char *text)
{
    (void)view_notice(w->view, text);
    cdi_log(CDI_LOG_INFO, "RDZV-HANG", "rendezvous: %.*s", (int)strcspn(text, "\n"), text);
}

static void publish_buf(struct hang_watch *w, struct cdi_buf *text)
{
    if (cdi_buf_append(text, "", 1) == CDDP_OK)
        publish(w, (const char *)cdi_buf_data(text));
}

static void publish_end(struct hang_watch *w, int64_t end_ms)
{
    char text[80];

    (void)snprintf(text, sizeof text, "progress again after %lld s", (long long)(end_ms - w->began_ms + 500) / 1000);
    publish(w, text);
}

/* The longest wait is younger than the one that was reported: that one has ended meanwhile. */
static void note_progress(struct hang_watch *w, int64_t began_ms)
{
    if (w->mark == 0 || began_ms < w->began_ms + HANG_YOUNGER_MS)
        return;
    publish_end(w, began_ms);
    w->mark = 0;
    w->n_messages = 0;
    w->timed_out = false;
}

/* ------------------------------------------------------------------------------------------------ the timeout ---- */

/* Copies a message without its stacks: they do not fit into a failure. */
static void fill_text(char *to, size_t cap, const char *text, size_t n)
{
    const char *stack = memmem(text, n, "'s stack:\n", 10);

    if (stack != NULL)
        n = (size_t)(stack - text);
    while (stack != NULL && n > 0 && text[n] != '\n')
        n--;
    n = n < cap ? n : cap - 1;
    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    memcpy(to, text, n);
    to[n] = '\0';
}

static void set_failure(struct hang_watch *w, const struct hang *h, const struct cdi_buf *text)
{
    const struct hang_rank *first = w->ops->first(h);
    struct cdi_failure *f = &w->failure;

    *f = (struct cdi_failure){.kind = CDI_END_HANG, .rank = -1, .local_rank = -1, .node_rank = -1};
    if (first != NULL) {
        f->rank = first->report->rank;
        f->local_rank = (int32_t)(first->report - first->node->ranks);
        f->node_rank = first->node->node_rank;
        f->pid = first->report->pid;
        (void)snprintf(f->host, sizeof f->host, "%s", first->node->host);
    }
    fill_text(f->text, sizeof f->text, (const char *)cdi_buf_data(text), text->len);
}

/* Prints what follows, and prepares it. */
static void time_out(struct hang_watch *w, const struct hang *h, const struct session_hang *opt, struct cdi_buf *text)
{
    bool restart = opt->on_hang == CDI_ON_HANG_RESTART, stop = opt->on_hang == CDI_ON_HANG_STOP;

    w->timed_out = true;
    w->due = false;
    if (restart || stop) {
        set_failure(w, h, text);
        w->ends_round = true;
        w->stop = stop;
    }
    (void)cdi_buf_printf(text, "\n    %lld s (--hang_timeout) have passed: %s", (long long)opt->timeout_ms / 1000,
                         stop      ? "the job is stopped (--on_hang=stop)"
                         : restart ? "this round is over (--on_hang=restart)"
                                   : "the job continues (--on_hang=report)");
}

/* ------------------------------------------------------------------------------------------------------ steps ---- */

/* While agents answer, there is time for more of them. */
static void wait_for_answers(struct hang_watch *w, int64_t now_ms)
{
    int64_t next_ms = now_ms + (w->state == WATCH_ASKED ? HANG_ANSWER_MS : HANG_STACKS_MS);

    w->deadline_ms = next_ms < w->asked_ms + HANG_ALL_MS ? next_ms : w->asked_ms + HANG_ALL_MS;
}

static void ask_all(struct hang_watch *w, enum hang_state state, const int32_t *stacks_of, size_t n, int64_t now_ms)
{
    w->state = state;
    w->ask = view_ask(w->view, stacks_of, n, false);
    w->n_missing = view_unanswered(w->view, w->ask);
    w->asked_ms = now_ms;
    wait_for_answers(w, now_ms);
}

/* The next look is at the timeout, if that comes first. */
static void stand(struct hang_watch *w, const struct session_hang *opt, int64_t now_ms)
{
    int64_t timeout_ms = w->began_ms + opt->timeout_ms;

    w->state = WATCH_STANDS;
    w->deadline_ms = now_ms + HANG_AGAIN_MS;
    if (opt->timeout_ms > 0 && !w->timed_out && timeout_ms < w->deadline_ms)
        w->deadline_ms = timeout_ms > now_ms ? timeout_ms : now_ms + 1;
}

int64_t hang_watch_long_wait_ms(const struct session_hang *opt)
{
    if (opt->warning_ms == 0 || (opt->timeout_ms > 0 && opt->timeout_ms < opt->warning_ms))
        return opt->timeout_ms;
    return opt->warning_ms;
}

static void be_calm(struct hang_watch *w, int64_t now_ms)
{
    if (w->mark != 0)
        publish_end(w, now_ms);
    *w = (struct hang_watch){.session = w->session,
                             .view = w->view,
                             .ops = w->ops,
                             .round = w->round,
                             .quiet_until_ms = now_ms + HANG_QUIET_MS};
}

static cddp_status judge(struct hang_watch *w, const struct session_hang *opt, int64_t now_ms, struct hang *h)
{
    size_t n;
    const struct view_node *nodes = view_nodes(w->view, &n);

    return w->ops->judge(nodes, n, round_world_size(session_round(w->session)), now_ms, hang_watch_long_wait_ms(opt),
                         h);
}

/* All have answered where their ranks are, or the time for it is over. */
static void on_answers(struct hang_watch *w, const struct session_hang *opt, int64_t now_ms)
{
    int32_t late[HANG_STACKS_MAX];
    struct hang h;

    if (judge(w, opt, now_ms, &h) != CDDP_OK)
        return;
    if (h.kind == HANG_NONE) {
        be_calm(w, now_ms);
        hang_release(&h);
        return;
    }
    note_progress(w, now_ms - h.waited_ms);
    w->began_ms = now_ms - h.waited_ms;
    w->due = opt->timeout_ms > 0 && h.waited_ms >= opt->timeout_ms - HANG_SLACK_MS && !w->timed_out;
    if (w->due || (opt->warning_ms > 0 && h.mark != w->mark && w->n_messages < HANG_MESSAGES_MAX))
        ask_all(w, WATCH_STACKS, late, hang_late(&h, late), now_ms);
    else
        stand(w, opt, now_ms);
    hang_release(&h);
}

static bool lacks_stacks(const struct hang *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->ranks[i].late && h->ranks[i].report->stack == NULL)
            return true;
    return false;
}

/* The stacks are there, or the time for them is over: the message. */
static void on_stacks(struct hang_watch *w, const struct session_hang *opt, int64_t now_ms)
{
    struct cdi_buf text;
    struct hang h;

    if (judge(w, opt, now_ms, &h) != CDDP_OK)
        return;
    if (h.kind == HANG_NONE) {
        be_calm(w, now_ms);
        hang_release(&h);
        return;
    }
    cdi_buf_init(&text, HANG_TEXT);
    if (w->ops->text(&h, &text) == CDDP_OK) {
        if (w->due)
            time_out(w, &h, opt, &text);
        publish_buf(w, &text);
        w->mark = h.mark;
        w->n_messages++;
        w->stacks_are_late = w->n_missing > 0 && lacks_stacks(&h);
    }
    cdi_buf_release(&text);
    hang_release(&h);
    stand(w, opt, now_ms);
}

static void proceed(struct hang_watch *w, int64_t now_ms)
{
    struct session_hang opt = session_hang(w->session);

    switch (w->state) {
    case WATCH_CALM:
        return;
    case WATCH_ASKED:
        on_answers(w, &opt, now_ms);
        return;
    case WATCH_STACKS:
        on_stacks(w, &opt, now_ms);
        return;
    case WATCH_STANDS:
        ask_all(w, WATCH_ASKED, NULL, 0, now_ms);
        return;
    }
}

/* Stacks that took longer than the message could wait. */
static void print_late_stacks(struct hang_watch *w, int32_t node_rank, int64_t now_ms)
{
    struct session_hang opt = session_hang(w->session);
    struct cdi_buf text;
    struct hang h;

    if (judge(w, &opt, now_ms, &h) != CDDP_OK)
        return;
    for (size_t i = 0; i < h.n; i++)
        h.ranks[i].late = h.ranks[i].late && h.ranks[i].node->node_rank == node_rank;
    cdi_buf_init(&text, HANG_TEXT);
    if (h.mark == w->mark && cdi_buf_printf(&text, "more about the standstill:") == CDDP_OK &&
        w->ops->stacks(&h, HANG_ROWS - 1, &text) == CDDP_OK && memchr(cdi_buf_data(&text), '\n', text.len) != NULL) {
        publish_buf(w, &text);
        w->stacks_are_late = false;
    }
    cdi_buf_release(&text);
    hang_release(&h);
}

static bool round_is_on(struct hang_watch *w)
{
    const struct round *r = session_round(w->session);

    if (round_state(r) != ROUND_RUNNING || round_number(r) != w->round) {
        *w = (struct hang_watch){.session = w->session, .view = w->view, .ops = w->ops, .round = round_number(r)};
        return round_state(r) == ROUND_RUNNING;
    }
    return true;
}

bool hang_watch_is_calm(const struct hang_watch *w)
{
    return w->state == WATCH_CALM;
}

void hang_watch_on_report(struct hang_watch *w, int32_t node_rank, uint32_t asked, int64_t now_ms)
{
    struct session_hang opt = session_hang(w->session);

    if (!round_is_on(w) || hang_watch_long_wait_ms(&opt) == 0)
        return;
    if (asked == 0 && w->state == WATCH_CALM && now_ms < w->quiet_until_ms) {
        w->pending = true;
    } else if (asked == 0 && w->state == WATCH_CALM) {
        ask_all(w, WATCH_ASKED, NULL, 0, now_ms);
    } else if (asked == 0 && w->state == WATCH_STANDS && w->deadline_ms - now_ms > HANG_AGAIN_MS / 5) {
        w->deadline_ms = now_ms + HANG_AGAIN_MS / 5;
    } else if (asked == w->ask && (w->state == WATCH_ASKED || w->state == WATCH_STACKS)) {
        wait_for_answers(w, now_ms);
        if (w->n_missing > 0)
            w->n_missing--;
        if (w->n_missing == 0 && (w->n_missing = view_unanswered(w->view, w->ask)) == 0)
            proceed(w, now_ms);
    } else if (asked == w->ask && w->state == WATCH_STANDS && w->stacks_are_late) {
        print_late_stacks(w, node_rank, now_ms);
    }
}

void hang_watch_tick(struct hang_watch *w, int64_t now_ms, int64_t wall_ms)
{
    if (!round_is_on(w))
        return;
    if (w->state == WATCH_CALM) {
        if (w->pending && now_ms >= w->quiet_until_ms) {
            w->pending = false;
            ask_all(w, WATCH_ASKED, NULL, 0, now_ms);
        }
        return;
    }
    if (w->ends_round) {
        struct cdi_failure f = w->failure;
        bool stop = w->stop;

        f.time_ms = wall_ms;
        w->ends_round = false;
        session_end_hung(w->session, &f, stop, now_ms);
        return;
    }
    if (now_ms >= w->deadline_ms)
        proceed(w, now_ms);
}
