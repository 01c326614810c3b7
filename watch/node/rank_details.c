/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/node/rank_details.h"

#include "common/buf.h"
#include "common/clock.h"
#include "launcher/process/nvml.h"
#include "launcher/process/proc_state.h"
#include "launcher/process/procs.h"
#include "launcher/process/py_spy.h"
#include "launcher/process/small_file.h"
#include "launcher/process/stack.h"
#include "watch/node/gpu_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GENERATIONS_MAX 16         /* from a process up to its worker */
#define SAMPLES_APART_NS 150000000 /* two samples that are closer tell nothing about a share of time */
#define NS_PER_MS 1000000

struct rank_memory {
    int64_t process; /* the one that was looked up; 0: none */
    bool descends;   /* and it is a descendant of the worker */
    struct proc_sample sample;
    char *stack;
};

struct rank_details {
    size_t n;
    struct gpu_load *gpus;
    struct rank_memory ranks[];
};

cddp_status rank_details_create(struct rank_details **out, size_t n)
{
    struct rank_details *d = calloc(1, sizeof *d + n * sizeof d->ranks[0]);

    if (d == NULL || gpu_load_create(&d->gpus, n, NVML_LIBRARY) != CDDP_OK) {
        free(d);
        return CDDP_E_NOMEM;
    }
    d->n = n;
    *out = d;
    return CDDP_OK;
}

void rank_details_destroy(struct rank_details *d)
{
    if (d == NULL)
        return;
    for (size_t i = 0; i < d->n; i++)
        free(d->ranks[i].stack);
    gpu_load_destroy(d->gpus);
    free(d);
}

static bool is_descendant(pid_t pid, int64_t of)
{
    struct procs_stat stat;

    for (int i = 0; i < GENERATIONS_MAX && pid > 1 && procs_stat(pid, &stat); i++) {
        pid = stat.parent;
        if (pid == of)
            return true;
    }
    return false;
}

/* A number from another pid namespace may be that of any process here: then it is not used. */
static void note(struct rank_memory *m, const struct cdi_rank_report *r)
{
    if (r->process == m->process)
        return;
    m->process = r->process;
    m->descends = r->process != 0 && r->process != r->pid && is_descendant((pid_t)r->process, r->pid);
}

void rank_details_note(struct rank_details *d, const struct cdi_node_report *r)
{
    for (size_t i = 0; i < r->n_ranks && i < d->n; i++)
        note(&d->ranks[i], &r->ranks[i]);
}

static uint64_t resident_bytes(pid_t pid)
{
    char path[40], text[128];

    (void)snprintf(path, sizeof path, "/proc/%lld/statm", (long long)pid);
    if (!small_file_read(path, text, sizeof text))
        return 0;
    return strtoull(text + strcspn(text, " "), NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool is_halted(const struct proc_sample *s)
{
    return strchr("DTtZX", s->state) != NULL || s->frozen || s->memory_limit > 0;
}

static uint32_t cpu_permille(const struct proc_sample *before, const struct proc_sample *now)
{
    int64_t ns = now->at_ns - before->at_ns;

    if (ns <= 0 || before->cpu_ns < 0 || now->cpu_ns < before->cpu_ns)
        return 0;
    return (uint32_t)((now->cpu_ns - before->cpu_ns) * 1000 / ns);
}

/* The worker's own process runs, but the one that uses libcddp has ended. */
static void set_gone(const struct rank_memory *m, struct cdi_rank_report *r)
{
    r->place = CDI_PLACE_EXITED;
    r->halted = 1;
    (void)snprintf(r->doing, sizeof r->doing, "its process %lld is gone, while pid %lld still runs",
                   (long long)m->process, (long long)r->pid);
}

/* Returns the process to look at. */
static pid_t process_of(const struct rank_memory *m, const struct cdi_rank_report *r)
{
    return (pid_t)(m->descends ? m->process : r->pid);
}

static void look_at(struct rank_memory *m, struct cdi_rank_report *r)
{
    const struct proc_sample *before = &m->sample;
    struct proc_sample now;
    int error;

    if (r->place == CDI_PLACE_EXITED)
        return;
    error = proc_sample_take(process_of(m, r), &now);
    if (m->descends && (error != 0 || now.state == 'Z' || now.state == 'X' || now.state == '\0')) {
        set_gone(m, r);
        return;
    }
    if (error != 0)
        return;
    if (before->pid != now.pid || before->started != now.started || now.at_ns - before->at_ns < SAMPLES_APART_NS)
        before = NULL;
    proc_state_text(before, &now, r->doing, sizeof r->doing);
    r->halted = is_halted(&now);
    r->cpu_permille = before != NULL ? cpu_permille(before, &now) : 0;
    r->resident_bytes = resident_bytes(now.pid);
    if (before != NULL || m->sample.pid != now.pid || m->sample.started != now.started)
        m->sample = now;
}

static cddp_status read_python_stack(pid_t pid, int64_t left_ms, struct cdi_buf *out, struct cdi_error *err)
{
    const struct python_stack_limits limits = {.timeout_ms = (uint32_t)left_ms, .max_threads = 16, .max_frames = 24};
    struct python_stacks stacks;
    cddp_status st = py_spy_collect(pid, &limits, &stacks, err);

    if (st == CDDP_OK && (st = python_stack_text(&stacks, out)) != CDDP_OK)
        (void)cdi_fail(err, st, "the text is too long");
    python_stacks_release(&stacks);
    return st;
}

static void read_stack(pid_t pid, int64_t left_ms, struct cdi_buf *out)
{
    struct stack_limits native = {.threads = 8, .frames = 16, .timeout_ms = (int)left_ms};
    struct cdi_error err = {.status = CDDP_OK};

    if (left_ms < 50) {
        (void)cdi_buf_printf(out, "it was not read: the stacks of other ranks took too long\n");
        return;
    }
    if (python_stack_is_python(pid)) {
        if (read_python_stack(pid, left_ms, out, &err) == CDDP_OK)
            return;
        (void)cdi_buf_printf(out, "its Python stack cannot be read: %s\n", err.msg);
    }
    if (stack_read(pid, &native, out, &err) != CDDP_OK)
        (void)cdi_buf_printf(out, "it cannot be read: %s\n", err.msg);
}

static void take_stack(struct rank_memory *m, struct cdi_rank_report *r, int64_t deadline_ms)
{
    struct cdi_buf text;
    size_t n;

    if (r->place == CDI_PLACE_EXITED)
        return;
    cdi_buf_init(&text, 8 * RANK_DETAILS_STACK);
    read_stack(process_of(m, r), deadline_ms - cdi_now_ms(), &text);
    n = text.len < RANK_DETAILS_STACK ? text.len : RANK_DETAILS_STACK;
    m->stack = n == 0 ? NULL : strndup((const char *)cdi_buf_data(&text), n);
    r->stack = m->stack;
    cdi_buf_release(&text);
}

static bool is_wanted(int32_t rank, const int32_t *stacks_of, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (stacks_of[i] == rank)
            return true;
    return false;
}

/* The share of processor time of a rank that is behind is worth a short wait. */
static void wait_for_share(const struct rank_memory *m)
{
    int64_t age = cdi_now_ns() - m->sample.at_ns;

    if (age < SAMPLES_APART_NS)
        (void)usleep((useconds_t)((SAMPLES_APART_NS - age) / 1000) + 1000);
}

static void look_at_gpus(struct rank_details *d, struct cdi_rank_report *ranks, size_t n)
{
    pid_t *pids = calloc(n + 1, sizeof *pids);

    for (size_t i = 0; pids != NULL && i < n; i++)
        pids[i] = ranks[i].place == CDI_PLACE_EXITED ? 0 : process_of(&d->ranks[i], &ranks[i]);
    if (pids != NULL)
        gpu_load_look(d->gpus, pids, ranks, n);
    free(pids);
}

void rank_details_look(struct rank_details *d, struct cdi_node_report *r, const int32_t *stacks_of, size_t n)
{
    int64_t deadline_ms = cdi_now_ms() + RANK_DETAILS_MS;
    size_t n_ranks = r->n_ranks < d->n ? r->n_ranks : d->n;

    rank_details_note(d, r);
    for (size_t i = 0; i < n_ranks; i++) {
        free(d->ranks[i].stack);
        d->ranks[i].stack = NULL;
        look_at(&d->ranks[i], &r->ranks[i]);
    }
    look_at_gpus(d, r->ranks, n_ranks);
    for (size_t i = 0; i < n_ranks && n > 0; i++)
        if (is_wanted(r->ranks[i].rank, stacks_of, n))
            take_stack(&d->ranks[i], &r->ranks[i], deadline_ms);
    for (size_t i = 0; i < n_ranks && n > 0; i++) {
        if (!is_wanted(r->ranks[i].rank, stacks_of, n) || d->ranks[i].sample.pid == 0)
            continue;
        wait_for_share(&d->ranks[i]);
        look_at(&d->ranks[i], &r->ranks[i]);
    }
}
