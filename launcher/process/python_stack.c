/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/python_stack.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/visible.h"
#include "launcher/process/py_spy.h"
#include "launcher/process/python_symbols.h"
#include "launcher/process/tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_MS 2000
#define LAST_PAUSE_MS 128

struct live {
    pid_t pid;
    int64_t deadline_ms;
    int os_error; /* of a read that the kernel refused for good */
};

static bool live_read(void *arg, uint64_t at, void *to, size_t n)
{
    struct live *p = arg;
    struct iovec here = {.iov_base = to, .iov_len = n};
    struct iovec there = {.iov_base = (void *)(uintptr_t)at, .iov_len = n}; /* an address of the other process */

    if (cdi_now_ms() > p->deadline_ms) {
        p->os_error = ETIMEDOUT;
        return false;
    }
    if (process_vm_readv(p->pid, &here, 1, &there, 1, 0) == (ssize_t)n)
        return true;
    if (errno == EPERM || errno == ESRCH || errno == ENOSYS)
        p->os_error = errno;
    return false;
}

/* Explains a refused read; CDDP_OK if there was none. */
static cddp_status live_refused(const struct live *p, struct cdi_error *err)
{
    if (p->os_error == ETIMEDOUT)
        return cdi_fail(err, CDDP_E_TIMEOUT, "reading the Python stacks of process %ld took too long", (long)p->pid);
    if (p->os_error == ESRCH)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "process %ld is gone", (long)p->pid);
    if (p->os_error != 0)
        return cdi_fail(err, CDDP_E_DENIED,
                        "the memory of process %ld may not be read (%s): see ptrace_scope, or the container's "
                        "capability SYS_PTRACE",
                        (long)p->pid, strerror(p->os_error));
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------------------- layout ---- */

/* The version by the program's own words, or by the file's name. */
static uint32_t live_version(struct live *p, const struct python_image *image, const struct python_symbols *symbols,
                             const uint64_t offsets[PYTHON_DEBUG_OFFSETS])
{
    uint64_t version;

    if (memcmp(offsets, "xdebugpy", 8) == 0)
        return (uint32_t)offsets[1];
    if (symbols->version != 0 && live_read(p, symbols->version, &version, sizeof version) && version >> 24 == 3)
        return (uint32_t)version;
    return 3u << 24 | python_image_minor(image->path) << 16;
}

static cddp_status live_layout(struct live *p, struct python_layout *l, uint64_t *runtime, struct cdi_error *err)
{
    uint64_t offsets[PYTHON_DEBUG_OFFSETS] = {0};
    struct python_symbols symbols;
    CDI_AUTOFREE struct python_image *image = malloc(sizeof *image);
    cddp_status st;

    if (image == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    if (!python_image_find(p->pid, image))
        return cdi_fail(err, CDDP_E_NOT_FOUND, "process %ld does not run Python", (long)p->pid);
    st = python_symbols_find(p->pid, image, &symbols, err);
    if (st != CDDP_OK)
        return st;
    *runtime = symbols.runtime;
    if (!live_read(p, symbols.runtime, offsets, sizeof offsets)) {
        st = live_refused(p, err);
        return st != CDDP_OK ? st
                             : cdi_fail(err, CDDP_E_PROTOCOL, "_PyRuntime of '%.300s' cannot be read", image->path);
    }
    return python_layout_of(l, live_version(p, image, &symbols, offsets), offsets, err);
}

/* --------------------------------------------------------------------------------------------------- threads ---- */

static void live_task_path(const struct live *p, uint64_t tid, const char *file, char *path, size_t cap)
{
    (void)snprintf(path, cap, "/proc/%ld/task/%" PRIu64 "/%s", (long)p->pid, tid, file);
}

/*
 * Python 3.9 and 3.10 know a thread by its pthread_t, which points to glibc's struct pthread, with the kernel's number
 * in it: `tid` in nptl/descr.h, after a header of 704 bytes on x86-64, and of 192 elsewhere, and a list of two
 * pointers.
 */
static void live_find_native(struct live *p, struct python_thread *t)
{
    static const uint32_t places[] = {720, 208};
    char path[96];
    uint32_t tid;

    for (size_t i = 0; i < sizeof places / sizeof places[0] && t->native_id == 0 && t->pthread != 0; i++) {
        if (!live_read(p, t->pthread + places[i], &tid, sizeof tid))
            continue;
        live_task_path(p, tid, "comm", path, sizeof path);
        if (tid != 0 && access(path, F_OK) == 0)
            t->native_id = tid;
    }
}

static void live_read_name(const struct live *p, uint64_t tid, char name[16])
{
    char path[96], raw[16];
    ssize_t n;

    live_task_path(p, tid, "comm", path, sizeof path);
    {
        CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

        n = fd < 0 ? 0 : read(fd, raw, sizeof raw);
    }
    while (n > 0 && raw[n - 1] == '\n')
        n--;
    (void)cdi_visible_line(name, 16, raw, n < 0 ? 0 : (size_t)n);
}

static int live_order(const void *a, const void *b)
{
    const struct python_thread *x = a, *y = b;

    return (x->native_id > y->native_id) - (x->native_id < y->native_id);
}

/* Numbers, names and sorts the threads; the main thread has the process' number. */
static void live_name_threads(struct live *p, struct python_stacks *s)
{
    char own[16];

    live_read_name(p, (uint64_t)p->pid, own);
    for (uint32_t i = 0; i < s->n; i++) {
        struct python_thread *t = &s->threads[i];

        live_find_native(p, t);
        if (t->native_id != 0)
            live_read_name(p, t->native_id, t->name);
        if (strcmp(t->name, own) == 0)
            t->name[0] = '\0';
    }
    qsort(s->threads, s->n, sizeof *s->threads, live_order);
    for (uint32_t i = 1; i < s->n; i++) {
        struct python_thread main_thread = s->threads[i];

        if (main_thread.native_id != (uint64_t)p->pid)
            continue;
        memmove(s->threads + 1, s->threads, i * sizeof *s->threads);
        s->threads[0] = main_thread;
    }
    if (s->n > 0)
        s->threads[0].is_main = s->threads[0].native_id == (uint64_t)p->pid;
}

bool python_stack_is_python(pid_t pid)
{
    CDI_AUTOFREE struct python_image *image = malloc(sizeof *image);

    return image != NULL && !tasks_are_stuck(pid) && python_image_find(pid, image);
}

cddp_status python_stack_collect(pid_t pid, const struct python_stack_limits *limits, struct python_stacks *out,
                                 struct cdi_error *err)
{
    static const struct python_stack_limits defaults = {0};
    struct live p = {.pid = pid};
    const struct python_memory memory = {.read = live_read, .arg = &p};
    struct python_layout layout;
    uint64_t runtime = 0;
    cddp_status st;

    *out = (struct python_stacks){0};
    if (limits == NULL)
        limits = &defaults;
    if (tasks_are_stuck(pid))
        return cdi_fail(err, CDDP_E_DENIED, "a thread of it is in D state, and its memory may be locked");
    p.deadline_ms = cdi_now_ms() + (limits->timeout_ms > 0 ? limits->timeout_ms : TIMEOUT_MS);
    st = live_layout(&p, &layout, &runtime, err);
    /* A thread that has lost its processor while it changed its frames stays so for some time. */
    for (int64_t pause_ms = 1; st == CDDP_OK; pause_ms *= 2) {
        const struct timespec pause = {.tv_nsec = pause_ms * 1000000};

        st = python_decode(&memory, &layout, runtime, limits, out, err);
        if ((st != CDDP_E_PROTOCOL && !out->torn) || p.os_error != 0 || pause_ms >= LAST_PAUSE_MS)
            break;
        python_stacks_release(out);
        (void)nanosleep(&pause, NULL);
        st = CDDP_OK;
    }
    if (st == CDDP_OK)
        live_name_threads(&p, out);
    else if (p.os_error != 0)
        st = live_refused(&p, err);
    return st;
}

/* ------------------------------------------------------------------------------------------------------ text ---- */

static bool is_same_frame(const struct python_frame *a, const struct python_frame *b)
{
    return a->line == b->line && strcmp(a->function, b->function) == 0 && strcmp(a->file, b->file) == 0;
}

static bool has_same_frames(const struct python_thread *a, const struct python_thread *b)
{
    if (a->n_frames != b->n_frames || a->cut != b->cut)
        return false;
    for (uint32_t i = 0; i < a->n_frames; i++)
        if (!is_same_frame(&a->frames[i], &b->frames[i]))
            return false;
    return true;
}

/* Is there an earlier thread with the same frames? Then this one stands in its line. */
static bool is_shown(const struct python_stacks *s, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (has_same_frames(&s->threads[k], &s->threads[i]))
            return true;
    return false;
}

static cddp_status put_thread_name(const struct python_thread *t, struct cdi_buf *out)
{
    cddp_status st =
        t->is_main ? cdi_buf_printf(out, "main thread") : cdi_buf_printf(out, "thread %" PRIu64, t->native_id);

    if (st == CDDP_OK && t->name[0] != '\0')
        st = cdi_buf_printf(out, " '%s'", t->name);
    if (st == CDDP_OK && t->has_gil)
        st = cdi_buf_printf(out, " with the GIL");
    return st;
}

static cddp_status put_threads(const struct python_stacks *s, uint32_t i, struct cdi_buf *out)
{
    cddp_status st = put_thread_name(&s->threads[i], out);

    for (uint32_t k = i + 1; st == CDDP_OK && k < s->n; k++) {
        if (!has_same_frames(&s->threads[i], &s->threads[k]))
            continue;
        st = cdi_buf_printf(out, ", ");
        if (st == CDDP_OK)
            st = put_thread_name(&s->threads[k], out);
    }
    return st == CDDP_OK ? cdi_buf_printf(out, ":\n") : st;
}

/* Writes a frame, once for all calls of a recursion at the same line. */
static cddp_status put_frame(const struct python_frame *f, uint32_t times, struct cdi_buf *out)
{
    cddp_status st = f->line > 0 ? cdi_buf_printf(out, "    %s (%s:%d)", f->function, f->file, f->line)
                                 : cdi_buf_printf(out, "    %s (%s)", f->function, f->file);

    if (st == CDDP_OK && times > 1)
        st = cdi_buf_printf(out, ", %u times", times);
    return st == CDDP_OK ? cdi_buf_printf(out, "\n") : st;
}

static cddp_status put_frames(const struct python_thread *t, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    for (uint32_t i = 0, end; st == CDDP_OK && i < t->n_frames; i = end) {
        for (end = i + 1; end < t->n_frames && is_same_frame(&t->frames[i], &t->frames[end]); end++)
            ;
        st = put_frame(&t->frames[i], end - i, out);
    }
    return st == CDDP_OK && t->cut ? cdi_buf_printf(out, "    ...\n") : st;
}

cddp_status python_stack_text(const struct python_stacks *s, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    for (uint32_t i = 0; st == CDDP_OK && i < s->n; i++) {
        const struct python_thread *t = &s->threads[i];

        if (t->n_frames == 0 || is_shown(s, i))
            continue;
        st = put_threads(s, i, out);
        if (st == CDDP_OK)
            st = put_frames(t, out);
    }
    if (st == CDDP_OK && s->cut)
        st = cdi_buf_printf(out, "... and more threads\n");
    return st;
}

cddp_status python_stack_read(pid_t pid, const struct python_stack_limits *limits, struct cdi_buf *out,
                              struct cdi_error *err)
{
    struct cdi_error own = {.status = CDDP_OK};
    struct python_stacks s;
    cddp_status st = python_stack_collect(pid, limits, &s, &own);

    if (st == CDDP_OK)
        st = python_stack_text(&s, out);
    python_stacks_release(&s);
    if (st != CDDP_E_UNSUPPORTED && st != CDDP_E_PROTOCOL)
        return st == CDDP_OK ? st : cdi_fail(err, st, "%s", own.msg[0] != '\0' ? own.msg : "the text is too long");
    if ((limits == NULL || !limits->no_py_spy) &&
        py_spy_dump(pid, limits == NULL || limits->timeout_ms == 0 ? TIMEOUT_MS : limits->timeout_ms, out) == CDDP_OK)
        return CDDP_OK;
    return cdi_fail(err, st, "%s", own.msg);
}
