/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two phases: the addresses of all frames are read first, while a thread is stopped, and turned into names afterwards,
 * when all go on. Both run in a separate thread: the kernel lets go of all that a thread traces when it ends, also of
 * threads that could not be stopped, and a caller need not wait for one that hangs in the kernel.
 */
#include "launcher/process/stack.h"

#include "launcher/process/proc_state.h"
#include "launcher/process/stack_text.h"
#include "launcher/process/tasks.h"

#ifdef CDI_LIBDW

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/thread.h"
#include "launcher/process/unwind.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define THREADS_MAX 1024
#define FRAMES_MAX 256
#define TEXT_MAX (4 << 20)         /* bytes of all stacks */
#define HOLD_NS INT64_C(300000000) /* for one thread to stop; the others follow */
#define ABANDONED_MAX 4            /* readings that hang in the kernel */
#define BLOCKED_PAUSE_NS 20000000
#define MS_NS INT64_C(1000000)

/* One call: shared by the caller and the thread that reads. The last one frees it. */
struct reading {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool is_over, is_abandoned;
    pid_t pid;
    struct stack_limits limits;
    int64_t deadline_ns;
    bool is_frozen; /* by its cgroup */
    pid_t tid;      /* of stack_read_waiting() */
    struct unwind unwind;
    struct stack_thread *threads;
    int n_threads, n_unread;
    uint64_t *addresses; /* of all threads: limits.frames for each */
    struct cdi_buf out;
    cddp_status status;
    struct cdi_error err;
};

static atomic_int n_abandoned;

/* --------------------------------------------------------------------------------------------------- threads ---- */

/* A thread that waits in the kernel: the system call and the kernel's function are all that can be had of it. */
static void take_wait(struct stack_thread *t, const char *why)
{
    struct proc_sample s;

    if (proc_sample_take(t->tid, &s) != 0)
        s.call[0] = s.wchan[0] = '\0';
    (void)snprintf(t->why_none, sizeof t->why_none, "%s%s%s%s%s%s", why, s.call[0] != '\0' ? ", in " : "", s.call,
                   s.wchan[0] != '\0' ? " (" : "", s.wchan, s.wchan[0] != '\0' ? ")" : "");
}

/* Is a thread in uninterruptible sleep, and not only for a moment, as it is while it waits for a disk? */
static bool is_blocked(const struct reading *r, struct stack_thread *t)
{
    const struct timespec pause = {.tv_nsec = BLOCKED_PAUSE_NS};

    if (t->state == 'D' && !r->is_frozen) {
        (void)nanosleep(&pause, NULL);
        (void)task_look(r->pid, t->tid, t->name, &t->state);
    }
    return t->state == 'D';
}

static void read_stopped(struct reading *r, struct stack_thread *t)
{
    int64_t until = cdi_now_ns() + HOLD_NS;
    int signal, rc;

    if (is_blocked(r, t)) {
        take_wait(t, "it cannot be stopped");
        return;
    }
    rc = t->state == 'Z' || t->state == 'X'
             ? ESRCH
             : task_hold(r->pid, t->tid, until < r->deadline_ns ? until : r->deadline_ns, &signal);
    if (rc == 0) {
        unwind_thread(&r->unwind, t);
        task_let_go(t->tid, signal);
        return;
    }
    if (rc == EPERM && (!task_look(r->pid, t->tid, t->name, &t->state) || t->state == 'Z' || t->state == 'X'))
        rc = ESRCH; /* the kernel's answer for an ending thread, too */
    if (rc == ETIMEDOUT)
        take_wait(t, "it waits in the kernel, or gets no processor, and could not be stopped");
    else
        (void)snprintf(t->why_none, sizeof t->why_none, "%s", rc == ESRCH ? "it has ended" : "it may not be traced");
    if (rc == EPERM && r->n_threads == 1)
        r->status = unwind_denied(r->pid, &r->err);
}

static cddp_status allocate(struct reading *r, size_t n)
{
    r->threads = calloc(n, sizeof *r->threads);
    r->addresses = calloc(n * (size_t)r->limits.frames, sizeof *r->addresses);
    if (r->threads == NULL || r->addresses == NULL)
        return cdi_fail(&r->err, CDDP_E_NOMEM, "out of memory (the stacks of process %d)", (int)r->pid);
    return CDDP_OK;
}

static struct stack_thread *add_thread(struct reading *r, pid_t tid)
{
    struct stack_thread *t = &r->threads[r->n_threads];

    *t = (struct stack_thread){.tid = tid, .pc = r->addresses + (size_t)r->n_threads * (size_t)r->limits.frames};
    if (!task_look(r->pid, tid, t->name, &t->state))
        return NULL; /* it has ended meanwhile */
    r->n_threads++;
    return t;
}

static cddp_status read_threads(struct reading *r)
{
    CDI_AUTOFREE pid_t *task = calloc((size_t)r->limits.threads, sizeof *task);
    cddp_status st = allocate(r, (size_t)r->limits.threads);
    int n, shown;

    if (st != CDDP_OK || task == NULL)
        return cdi_fail(&r->err, CDDP_E_NOMEM, "out of memory (the threads of process %d)", (int)r->pid);
    n = tasks_list(r->pid, task, r->limits.threads);
    if (n <= 0)
        return cdi_fail(&r->err, CDDP_E_NOT_FOUND, "process %d is gone", (int)r->pid);
    shown = n < r->limits.threads ? n : r->limits.threads;
    r->n_unread = n - shown;
    for (int i = 0; r->status == CDDP_OK && i < shown; i++) {
        struct stack_thread *t;

        if (cdi_now_ns() >= r->deadline_ns) {
            r->n_unread += shown - i;
            break;
        }
        t = add_thread(r, task[i]);
        if (t == NULL)
            continue;
        read_stopped(r, t);
        if (r->is_frozen && (t->state == 'S' || t->state == 'D'))
            t->state = STACK_FROZEN;
    }
    return r->status;
}

static cddp_status read_waiting(struct reading *r)
{
    struct stack_thread *t;
    cddp_status st = allocate(r, 1);

    if (st != CDDP_OK)
        return st;
    t = add_thread(r, r->tid);
    if (t == NULL)
        return cdi_fail(&r->err, CDDP_E_NOT_FOUND, "process %d is gone", (int)r->pid);
    unwind_thread(&r->unwind, t);
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------------ the thread ---- */

static cddp_status collect(struct reading *r)
{
    struct proc_sample now = {.tracer = 0};
    cddp_status st;

    if (!r->unwind.is_waiting)
        (void)proc_sample_take(r->pid, &now);
    if (now.tracer != 0) /* asked first: the kernel would give no cause */
        return cdi_fail(&r->err, CDDP_E_DENIED, "process %d has a debugger (pid %d), so its stacks cannot be read",
                        (int)r->pid, (int)now.tracer);
    r->is_frozen = now.frozen;
    st = unwind_open(&r->unwind, &r->err);
    if (st == CDDP_OK)
        st = r->unwind.is_waiting ? read_waiting(r) : read_threads(r);
    return st;
}

static cddp_status write_text(struct reading *r)
{
    cddp_status st;

    if (!r->unwind.is_waiting)
        st = stack_text(r->threads, r->n_threads, r->n_unread, unwind_name, &r->unwind, &r->out);
    else if ((st = cdi_buf_printf(&r->out, "thread '%s':\n", r->threads[0].name)) == CDDP_OK)
        st = stack_text_frames(&r->threads[0], unwind_name, &r->unwind, &r->out);
    return st == CDDP_OK ? st : cdi_fail(&r->err, st, "no room for the stacks of process %d", (int)r->pid);
}

static void free_reading(struct reading *r)
{
    unwind_close(&r->unwind);
    cdi_buf_release(&r->out);
    (void)pthread_cond_destroy(&r->ended);
    (void)pthread_mutex_destroy(&r->lock);
    free(r->threads);
    free(r->addresses);
    free(r);
}

static void *reading_main(void *arg)
{
    struct reading *r = arg;
    bool abandoned;

    r->status = collect(r);
    if (r->status == CDDP_OK)
        r->status = write_text(r);
    (void)pthread_mutex_lock(&r->lock);
    r->is_over = true;
    abandoned = r->is_abandoned;
    (void)pthread_cond_signal(&r->ended);
    (void)pthread_mutex_unlock(&r->lock);
    if (abandoned) {
        free_reading(r);
        (void)atomic_fetch_sub(&n_abandoned, 1);
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- the calls ---- */

static int at_most(int value, int most)
{
    return value < 1 ? 1 : value > most ? most : value;
}

static struct reading *new_reading(pid_t pid, const struct stack_limits *limits)
{
    struct reading *r = calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    r->pid = pid;
    r->limits.threads = at_most(limits->threads, THREADS_MAX);
    r->limits.frames = at_most(limits->frames, FRAMES_MAX);
    r->limits.timeout_ms = limits->timeout_ms > 0 ? limits->timeout_ms : STACK_TIMEOUT_MS;
    r->deadline_ns = cdi_now_ns() + r->limits.timeout_ms * MS_NS;
    r->unwind.pid = pid;
    r->unwind.frames = r->limits.frames;
    r->unwind.deadline_ns = r->deadline_ns;
    cdi_buf_init(&r->out, TEXT_MAX);
    (void)pthread_mutex_init(&r->lock, NULL);
    cdi_cond_init_monotonic(&r->ended);
    return r;
}

/* Waits for the thread's end, and half as long again as the limit, which it keeps itself wherever it can. */
static bool wait_for_reading(struct reading *r)
{
    const int64_t until = r->deadline_ns + r->limits.timeout_ms * (MS_NS / 2);
    const struct timespec ts = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    bool over;

    (void)pthread_mutex_lock(&r->lock);
    while (!r->is_over && pthread_cond_timedwait(&r->ended, &r->lock, &ts) != ETIMEDOUT)
        ;
    over = r->is_over;
    r->is_abandoned = !over;
    (void)pthread_mutex_unlock(&r->lock);
    return over;
}

static cddp_status run_reading(struct reading *r, struct cdi_buf *out, struct cdi_error *err)
{
    const pid_t pid = r->pid;
    cddp_status st;
    pthread_t thread;
    int rc = cdi_thread_create(&thread, 0, reading_main, r);

    if (rc != 0) {
        free_reading(r);
        return cdi_fail_errno(err, rc, "cannot start a thread for the stacks of process %d", (int)pid);
    }
    if (!wait_for_reading(r)) {
        (void)atomic_fetch_add(&n_abandoned, 1);
        (void)pthread_detach(thread);
        return cdi_fail(err, CDDP_E_TIMEOUT, "the stacks of process %d could not be read in time", (int)pid);
    }
    (void)pthread_join(thread, NULL);
    st = r->status;
    if (st != CDDP_OK && err != NULL)
        *err = r->err;
    if (st == CDDP_OK && (st = cdi_buf_append(out, cdi_buf_data(&r->out), r->out.len)) != CDDP_OK)
        (void)cdi_fail(err, st, "no room for the stacks of process %d", (int)pid);
    free_reading(r);
    return st;
}

static cddp_status prepare(struct reading **out, pid_t pid, const struct stack_limits *limits, struct cdi_error *err)
{
    struct reading *r;
    cddp_status st;

    if (atomic_load(&n_abandoned) >= ABANDONED_MAX)
        return cdi_fail(err, CDDP_E_TIMEOUT, "earlier readings of stacks still hang");
    r = new_reading(pid, limits);
    if (r == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory (the stacks of process %d)", (int)pid);
    st = libdw_open(&r->unwind.dw, err);
    if (st != CDDP_OK) {
        free_reading(r);
        return st;
    }
    *out = r;
    return CDDP_OK;
}

cddp_status stack_read(pid_t pid, const struct stack_limits *limits, struct cdi_buf *out, struct cdi_error *err)
{
    struct reading *r = NULL;
    cddp_status st = prepare(&r, pid, limits, err);

    return st == CDDP_OK ? run_reading(r, out, err) : st;
}

cddp_status stack_read_waiting(pid_t pid, pid_t tid, const struct stack_registers *regs,
                               const struct stack_limits *limits, struct cdi_buf *out, struct cdi_error *err)
{
    struct reading *r = NULL;
    char name[TASK_NAME], state;
    cddp_status st;

    if (regs->n == 0)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "libcddp does not know this machine's registers");
    if (task_look(pid, pid, name, &state) && state == 'Z')
        pid = tid; /* the main thread has called pthread_exit(), and shows the process's memory no more */
    st = prepare(&r, pid, limits, err);
    if (st != CDDP_OK)
        return st;
    r->unwind.is_waiting = true;
    r->unwind.regs = *regs;
    r->tid = tid;
    return run_reading(r, out, err);
}

#else

cddp_status stack_read(pid_t pid, const struct stack_limits *limits, struct cdi_buf *out, struct cdi_error *err)
{
    (void)pid, (void)limits, (void)out;
    return cdi_fail(err, CDDP_E_UNSUPPORTED, "this cddprun was built without libdw");
}

cddp_status stack_read_waiting(pid_t pid, pid_t tid, const struct stack_registers *regs,
                               const struct stack_limits *limits, struct cdi_buf *out, struct cdi_error *err)
{
    (void)tid, (void)regs;
    return stack_read(pid, limits, out, err);
}

#endif
