/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/crash.h"

#include "launcher/process/signame.h"
#include "launcher/process/stack.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRAMES 200      /* read; the report shows those that fit */
#define TIMEOUT_MS 1500 /* of a reading, names included: less than the worker waits */
#define STACK_MAX 65536
#define LATE "cddprun did not read it in time"

struct crash_read {
    uv_work_t work;
    pthread_mutex_t lock;          /* of page */
    struct cdi_flight_crash *page; /* NULL: dropped */
    struct cdi_flight_crash note;
    void (*ended)(void *arg);
    void *arg;
    bool is_over, is_dropped;
    char text[CRASH_TEXT]; /* the stack, or why there is none */
    bool has_stack;
};

/* -------------------------------------------------------------------------------------------------- the pipe ---- */

static void crash_on_call(uv_poll_t *p, int status, int events)
{
    struct crash_watch *w = p->data;
    char bytes[256];

    (void)status, (void)events;
    (void)!read(w->ends[0], bytes, sizeof bytes); /* one read: a worker that writes for ever must not keep the loop */
    w->called(w->arg);
}

cddp_status crash_watch_start(struct crash_watch *w, uv_loop_t *loop, struct cdi_error *err)
{
    int rc;

    if (pipe2(w->ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return cdi_fail_errno(err, errno, "pipe");
    rc = uv_poll_init(loop, &w->poll, w->ends[0]);
    if (rc != 0) {
        (void)close(w->ends[0]);
        (void)close(w->ends[1]);
        return cdi_fail_errno(err, -rc, "pipe");
    }
    w->poll.data = w;
    w->open = true;
    rc = uv_poll_start(&w->poll, UV_READABLE, crash_on_call);
    return rc == 0 ? CDDP_OK : cdi_fail_errno(err, -rc, "pipe");
}

void crash_watch_close(struct crash_watch *w)
{
    if (!w->open)
        return;
    w->open = false;
    uv_close((uv_handle_t *)&w->poll, NULL);
    (void)close(w->ends[0]);
    (void)close(w->ends[1]);
}

/* ----------------------------------------------------------------------------------------------- the reading ---- */

/* Only now, with the report's text complete: nobody must learn of the worker's death before this agent can report it.
 */
static void let_go(struct crash_read *r)
{
    (void)pthread_mutex_lock(&r->lock);
    if (r->page != NULL)
        cdi_crash_tell_read(r->page);
    (void)pthread_mutex_unlock(&r->lock);
}

static void read_stack(uv_work_t *work)
{
    const struct stack_limits limits = {.threads = 1, .frames = FRAMES, .timeout_ms = TIMEOUT_MS};
    struct crash_read *r = work->data;
    struct stack_registers regs = {.n = r->note.n_registers, .pc = r->note.pc};
    struct cdi_error why;
    struct cdi_buf out;

    _Static_assert(sizeof regs.value == sizeof r->note.registers, "the same registers");
    memcpy(regs.value, r->note.registers, sizeof regs.value);
    cdi_buf_init(&out, STACK_MAX);
    r->has_stack = stack_read_waiting(r->note.pid, r->note.tid, &regs, &limits, &out, &why) == CDDP_OK;
    if (r->has_stack)
        (void)snprintf(r->text, sizeof r->text, "%.*s", (int)out.len, (const char *)cdi_buf_data(&out));
    else
        (void)snprintf(r->text, sizeof r->text, "%s", why.status == CDDP_E_NOT_FOUND ? LATE : why.msg);
    cdi_buf_release(&out);
    let_go(r);
}

static void crash_free(struct crash_read *r)
{
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

static void on_read(uv_work_t *work, int status)
{
    struct crash_read *r = work->data;

    (void)status;
    r->is_over = true;
    if (r->is_dropped)
        crash_free(r);
    else
        r->ended(r->arg);
}

struct crash_read *crash_read_start(uv_loop_t *loop, struct cdi_flight_crash *page, void (*ended)(void *arg), void *arg)
{
    struct crash_read *r = calloc(1, sizeof *r);

    if (r != NULL) {
        r->page = page;
        r->ended = ended;
        r->arg = arg;
        r->work.data = r;
        (void)pthread_mutex_init(&r->lock, NULL);
        (void)cdi_crash_look(page, &r->note);
        if (uv_queue_work(loop, &r->work, read_stack, on_read) == 0)
            return r;
        crash_free(r);
    }
    cdi_crash_tell_read(page);
    return NULL;
}

bool crash_read_is_over(const struct crash_read *r)
{
    return r->is_over;
}

void crash_read_drop(struct crash_read *r)
{
    if (r == NULL)
        return;
    if (r->is_over) {
        crash_free(r);
        return;
    }
    (void)pthread_mutex_lock(&r->lock);
    r->page = NULL;
    (void)pthread_mutex_unlock(&r->lock);
    r->is_dropped = true;
}

/* -------------------------------------------------------------------------------------------------- the text ---- */

static bool is_crash(int signal)
{
    return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGABRT;
}

/* "thread 'NAME':" becomes "its stack (thread 'NAME'):". */
static void stack_lines(const char *text, char *buf, size_t cap)
{
    const size_t head = strcspn(text, "\n");

    (void)snprintf(buf, cap, "its stack (%.*s):%s", head > 0 ? (int)head - 1 : 0, text, text + head);
}

bool crash_text(const struct cdi_flight_crash *page, const struct crash_read *r, int signal, bool early, char *buf,
                size_t cap)
{
    struct cdi_flight_crash note;
    const enum cdi_crash_state state = cdi_crash_look(page, &note);
    const uint32_t armed = atomic_load(&note.armed);
    char name[32];

    if (r == NULL && !is_crash(signal))
        return false;
    if (early && atomic_load(&page->reader_pid) != 0)
        return snprintf(buf, cap, "no stack: the worker crashed before its cddp_init()") > 0;
    if ((armed & CDI_CRASH_LOOKED) == 0)
        return false;
    signame(signal, name, sizeof name);
    if (r != NULL && r->has_stack)
        stack_lines(r->text, buf, cap);
    else if (r != NULL)
        (void)snprintf(buf, cap, "no stack: %s", r->text);
    else if (state == CDI_CRASH_TRACED)
        (void)snprintf(buf, cap, "no stack: a debugger had the process");
    else if (state == CDI_CRASH_UNREACHED)
        (void)snprintf(buf, cap,
                       "no stack: the worker could not reach cddprun through /proc, or has no descriptor left");
    else if (state == CDI_CRASH_WAITS)
        (void)snprintf(buf, cap, "no stack: " LATE);
    else if ((armed & CDI_CRASH_LEFT) != 0)
        (void)snprintf(buf, cap, "no stack: the worker crashed after libcddp was unloaded");
    else if ((armed & CDI_CRASH_BIT(signal)) == 0)
        (void)snprintf(buf, cap, "no stack: the program handles %s itself", name);
    else
        (void)snprintf(buf, cap,
                       "no stack: the program handles or blocks %s since cddp_init, or its thread's stack was full",
                       name);
    return true;
}
