/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/top.h"

#include "common/clock.h"
#include "launcher/process/guard.h"
#include "watch/curses.h"
#include "watch/query.h"
#include "watch/screen.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define ASK_MS 1000    /* from one question to the next */
#define ANSWER_MS 3000 /* for an answer */
#define TICK_MS 200    /* between two looks for a new answer */
#define TROUBLE_MAX 200

/* A thread asks, so that keys work while nobody answers. */
struct asker {
    const char *endpoint;
    const struct cdi_secret *secret;
    struct query *query; /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Under the lock. */
    bool ending;
    json_t *reply; /* the newest, until it is taken */
    int64_t reply_ms;
    char trouble[TROUBLE_MAX]; /* "": none */
    uint64_t n_changes;        /* of the two above */
};

/* ------------------------------------------------------------------------------------------------------ asker ---- */

static void note_answer(struct asker *a, json_t *reply, const char *trouble)
{
    (void)pthread_mutex_lock(&a->lock);
    if (reply != NULL) {
        json_decref(a->reply);
        a->reply = reply;
        a->reply_ms = cdi_now_ms();
    }
    (void)snprintf(a->trouble, sizeof a->trouble, "%s", trouble);
    a->n_changes++;
    (void)pthread_mutex_unlock(&a->lock);
}

static void ask_once(struct asker *a)
{
    struct cdi_error err = {.status = CDDP_OK};
    json_t *reply = NULL;
    cddp_status st = CDDP_OK;

    if (a->query == NULL)
        st = query_open(&a->query, a->endpoint, a->secret, ANSWER_MS, &err);
    if (st == CDDP_OK)
        st = query_ask(a->query, NULL, ANSWER_MS, &reply, &err);
    if (st == CDDP_OK) {
        note_answer(a, reply, "");
        return;
    }
    query_close(a->query);
    a->query = NULL;
    note_answer(a, NULL,
                st == CDDP_E_DENIED      ? "the auth token is wrong or missing (--auth_token_file)"
                : st == CDDP_E_NOT_FOUND ? "the host name is not known, trying again"
                                         : "connection lost, trying again");
}

/* Waits until the next question is due. Returns false if the view ends. */
static bool wait_to_ask(struct asker *a)
{
    struct timespec until;
    bool ending;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ASK_MS / 1000;
    (void)pthread_mutex_lock(&a->lock);
    while (!a->ending && pthread_cond_timedwait(&a->wake, &a->lock, &until) == 0)
        ;
    ending = a->ending;
    (void)pthread_mutex_unlock(&a->lock);
    return !ending;
}

static void *asker_run(void *arg)
{
    struct asker *a = arg;

    do
        ask_once(a);
    while (wait_to_ask(a));
    query_close(a->query);
    return NULL;
}

static cddp_status asker_start(struct asker *a, struct cdi_error *err)
{
    int rc;

    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_cond_init(&a->wake, NULL);
    rc = pthread_create(&a->thread, NULL, asker_run, a);
    return rc == 0 ? CDDP_OK : cdi_fail_errno(err, rc, "--top: cannot start a thread");
}

static void asker_end(struct asker *a)
{
    (void)pthread_mutex_lock(&a->lock);
    a->ending = true;
    (void)pthread_cond_signal(&a->wake);
    (void)pthread_mutex_unlock(&a->lock);
    (void)pthread_join(a->thread, NULL);
    (void)pthread_mutex_destroy(&a->lock);
    (void)pthread_cond_destroy(&a->wake);
    json_decref(a->reply);
}

/* ------------------------------------------------------------------------------------------------------- view ---- */

struct top {
    struct curses curses;
    struct asker asker;
    struct screen *screen;
    json_t *reply, *previous;
    int64_t reply_ms, between_ms;
    char trouble[TROUBLE_MAX];
    uint64_t n_changes; /* seen */
    unsigned scroll;
};

/* Takes what the asker has. Returns whether something is new. */
static bool take_answer(struct top *t)
{
    struct asker *a = &t->asker;
    bool changed;

    (void)pthread_mutex_lock(&a->lock);
    changed = a->n_changes != t->n_changes;
    t->n_changes = a->n_changes;
    memcpy(t->trouble, a->trouble, sizeof t->trouble);
    if (a->reply != NULL) {
        json_decref(t->previous);
        t->previous = t->reply;
        t->reply = a->reply;
        t->between_ms = a->reply_ms - t->reply_ms;
        t->reply_ms = a->reply_ms;
        a->reply = NULL;
    }
    (void)pthread_mutex_unlock(&a->lock);
    return changed;
}

static cddp_status paint(struct top *t)
{
    static const unsigned long looks[] = {
        [SCREEN_PLAIN] = 0, [SCREEN_TITLE] = CURSES_BOLD, [SCREEN_HEAD] = CURSES_REVERSE, [SCREEN_LATE] = CURSES_BOLD};
    const struct curses *c = &t->curses;
    struct curses_window *w = *c->stdscr;
    int columns = c->getmaxx(w), lines = c->getmaxy(w);
    struct screen_input in = {.endpoint = t->asker.endpoint,
                              .reply = t->reply,
                              .previous = t->previous,
                              .between_ms = t->between_ms,
                              .trouble = t->trouble,
                              .width = columns > 0 ? (unsigned)columns : 1,
                              .height = lines > 0 ? (unsigned)lines : 1,
                              .scroll = t->scroll};
    cddp_status st = screen_compose(&in, t->screen);

    if (st != CDDP_OK)
        return st;
    t->scroll = t->screen->scroll;
    (void)c->werase(w);
    for (unsigned i = 0; i < t->screen->n; i++) {
        const struct screen_line *l = &t->screen->lines[i];
        size_t len = strlen(l->text);

        (void)c->wmove(w, (int)i, 0);
        (void)c->wattrset(w, (int)looks[l->look]);
        (void)c->waddnstr(w, l->text, -1);
        while (l->look == SCREEN_HEAD && len++ < in.width)
            (void)c->waddnstr(w, " ", 1);
        (void)c->wattrset(w, 0);
    }
    (void)c->wrefresh(w);
    return CDDP_OK;
}

/* Handles the keys that wait. Returns false after q; sets *changed. */
static bool read_keys(struct top *t, bool *changed)
{
    unsigned page = t->screen->page > 1 ? t->screen->page - 1 : 1;
    int key;

    while ((key = t->curses.wgetch(*t->curses.stdscr)) != CURSES_NONE) {
        *changed = true;
        if (key == 'q' || key == 'Q')
            return false;
        if (key == CURSES_KEY_DOWN || key == 'j')
            t->scroll += 1;
        else if (key == CURSES_KEY_UP || key == 'k')
            t->scroll -= t->scroll > 0;
        else if (key == CURSES_KEY_NEXT_PAGE || key == ' ')
            t->scroll += page;
        else if (key == CURSES_KEY_PREVIOUS_PAGE)
            t->scroll -= t->scroll < page ? t->scroll : page;
        else if (key == CURSES_KEY_HOME || key == 'g')
            t->scroll = 0;
        else if (key == CURSES_KEY_END || key == 'G')
            t->scroll = t->screen->max_scroll;
        if (t->scroll > t->screen->max_scroll)
            t->scroll = t->screen->max_scroll;
    }
    return true;
}

/* Until q, a signal, or the end of the terminal. Returns the signal; 0: none. */
static cddp_status top_loop(struct top *t, int signals, int *signal)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    bool changed = true;
    cddp_status st;

    for (;;) {
        struct signalfd_siginfo info;

        changed |= take_answer(t);
        if (changed && (st = paint(t)) != CDDP_OK)
            return st;
        changed = false;
        if (poll(fds, 2, TICK_MS) < 0 && errno != EINTR)
            return CDDP_OK;
        if (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            *signal = (int)info.ssi_signo;
            return CDDP_OK;
        }
        if (!read_keys(t, &changed) || (fds[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
            return CDDP_OK;
    }
}

/* The signals that end the view are read from a descriptor: no handler, and the terminal is restored in one place. */
static int block_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    sigset_t set;

    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (!guard_is_ignored(ends[i]))
            (void)sigaddset(&set, ends[i]);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static cddp_status show(struct top *t, int signals, int *signal, struct cdi_error *err)
{
    const struct curses *c = &t->curses;
    cddp_status st = asker_start(&t->asker, err);

    if (st != CDDP_OK)
        return st;
    (void)setlocale(LC_CTYPE, "");
    if (c->newterm(NULL, stdout, stdin) == NULL) {
        st =
            cdi_fail(err, CDDP_E_INVALID, "--top: ncurses does not know this terminal (TERM); set TERM, such as xterm");
    } else {
        (void)c->cbreak();
        (void)c->noecho();
        (void)c->curs_set(0);
        (void)c->keypad(*c->stdscr, true);
        (void)c->nodelay(*c->stdscr, true);
        st = top_loop(t, signals, signal);
        (void)c->endwin();
        if (st != CDDP_OK)
            (void)cdi_fail(err, st, "--top: out of memory");
    }
    asker_end(&t->asker);
    return st;
}

cddp_status top_run(const char *endpoint, const struct cdi_secret *secret, int *signal, struct cdi_error *err)
{
    struct top *t;
    cddp_status st;
    int signals;

    *signal = 0;
    if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1)
        return cdi_fail(err, CDDP_E_INVALID,
                        "--top needs a terminal as stdin and stdout; for text on a pipe use --where");
    t = calloc(1, sizeof *t);
    if (t == NULL || (t->screen = calloc(1, sizeof *t->screen)) == NULL) {
        free(t);
        return cdi_fail(err, CDDP_E_NOMEM, "--top: out of memory");
    }
    t->asker.endpoint = endpoint;
    t->asker.secret = secret;
    st = curses_open(&t->curses, err);
    signals = st == CDDP_OK ? block_signals() : -1;
    if (st == CDDP_OK && signals < 0)
        st = cdi_fail_errno(err, errno, "--top: cannot wait for signals");
    if (st == CDDP_OK)
        st = show(t, signals, signal, err);
    if (signals >= 0)
        (void)close(signals);
    json_decref(t->reply);
    json_decref(t->previous);
    free(t->screen);
    free(t);
    return st;
}
