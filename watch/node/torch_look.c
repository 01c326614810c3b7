/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/node/torch_look.h"

#include "common/clock.h"
#include "launcher/process/procs.h"
#include "launcher/process/py_spy.h"
#include "launcher/process/sockets.h"
#include "watch/node/torch_files.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 1000
#define STALLED_MS 5000
#define STACK_MS 3000      /* for the stack of one rank */
#define STACKS_MS 8000     /* for all of them */
#define DUMPS_MS 3000      /* for the dumps of PyTorch's flight recorder */
#define DUMP_WORK_MS 10000 /* that a worker may go on with a dump, which has the stacks of all records */
#define CHILDREN_MS 300    /* between two looks at the processes that a worker has started */
#define CHILDREN_BUSY_MS 60
#define TEXT_MAX 32768

struct torch_look {
    struct torch_look_options opt;
    uv_work_t work;
    bool working, told;
    int64_t last_ms; /* of the last tick */
    int64_t said_ms; /* when the standstill began that was reported; 0: none */
    int64_t skip_ms; /* until then workers are busy with a dump, not with training */
    atomic_bool stopping;
    size_t n; /* of the workers below */
    struct foreign_worker workers[FOREIGN_WORKERS_MAX];
    struct torch_pulse pulses[FOREIGN_WORKERS_MAX];

    /* Of the thread that reads the stacks. */
    struct torch_rank *found;
    size_t n_found;
    enum torch_standstill kind;
    int64_t quiet_ms, begun_ms;
    bool asked; /* workers have written dumps, which takes processor time */
    struct page_wait waits[TORCH_WAITS_MAX];
    size_t n_waits;
    bool refuted; /* the workers' children are busy, or no worker runs Python */
};

/* ------------------------------------------------------------------------------------------------------ /proc ---- */

/* Is this the group of a worker? */
static bool is_workers_group(const struct torch_look *l, pid_t group)
{
    for (size_t i = 0; i < l->n_found; i++)
        if (l->found[i].pid == group)
            return true;
    return false;
}

struct sum {
    const struct torch_look *l;
    uint64_t cpu_ms;
    bool runs; /* one runs, or would if a processor were free */
};

static void add_child(void *arg, pid_t pid)
{
    struct sum *s = arg;
    struct procs_stat stat;

    if (!procs_stat(pid, &stat) || stat.group == pid || !is_workers_group(s->l, stat.group))
        return;
    s->cpu_ms += stat.cpu_ms;
    s->runs |= stat.state == 'R';
}

/* Do processes that the workers have started burn a processor? Then the workers wait for those, and not for a rank. */
static bool children_are_busy(const struct torch_look *l)
{
    struct sum before = {.l = l}, after = {.l = l};
    const struct timespec pause = {.tv_nsec = CHILDREN_MS * 1000000};

    procs_each(add_child, &before);
    (void)nanosleep(&pause, NULL);
    procs_each(add_child, &after);
    return before.runs || after.runs || after.cpu_ms >= before.cpu_ms + CHILDREN_BUSY_MS;
}

/* ----------------------------------------------------------------------------------------------------- stacks ---- */

static void read_stack(struct torch_rank *r)
{
    const struct python_stack_limits limits = {.timeout_ms = STACK_MS, .max_frames = TORCH_FRAMES};
    struct python_stacks s;
    struct cdi_error err = {.status = CDDP_OK};
    struct procs_stat stat;

    r->state = procs_stat(r->pid, &stat) ? stat.state : 'X';
    if (py_spy_collect(r->pid, &limits, &s, &err) != CDDP_OK) {
        (void)snprintf(r->why, sizeof r->why, "its Python stack cannot be read: %.150s", err.msg);
    } else {
        const struct python_thread *t = &s.threads[0]; /* the main thread */

        r->cut = t->cut;
        r->n_frames = t->n_frames;
        memcpy(r->frames, t->frames, t->n_frames * sizeof t->frames[0]);
    }
    python_stacks_release(&s);
}

/* Finds the workers that have the store's connections that wait. */
static void find_waits(struct torch_look *l)
{
    for (size_t i = 0; i < l->n_waits && !atomic_load(&l->stopping); i++) {
        const struct page_wait *w = &l->waits[i];
        struct cdi_address client, server;
        uint64_t inode;

        if (!cdi_address_parse(w->address, &client) || !cdi_address_parse(w->server, &server) ||
            !sockets_find(&client, &server, &inode))
            continue; /* it may be on another node */
        for (size_t k = 0; k < l->n_found; k++) {
            struct torch_rank *r = &l->found[k];

            if (r->key[0] != '\0' || !sockets_has(r->pid, inode))
                continue;
            (void)snprintf(r->key, sizeof r->key, "%s", w->key);
            r->key_ms = w->for_ms;
        }
    }
}

static void look_work(uv_work_t *w)
{
    struct torch_look *l = w->data;
    int64_t deadline_ms = cdi_now_ms() + STACKS_MS;
    size_t n_python = 0;

    for (size_t i = 0; i < l->n_found; i++)
        n_python += python_stack_is_python(l->found[i].pid);
    l->refuted = n_python == 0 || children_are_busy(l);
    for (size_t i = 0; i < l->n_found && !l->refuted && !atomic_load(&l->stopping); i++) {
        if (cdi_now_ms() < deadline_ms)
            read_stack(&l->found[i]);
        else
            (void)snprintf(l->found[i].why, sizeof l->found[i].why, "not looked at: other ranks' stacks took %d s",
                           STACKS_MS / 1000);
    }
    if (!l->refuted && !atomic_load(&l->stopping))
        find_waits(l);
    if (!l->refuted && !atomic_load(&l->stopping))
        l->asked = torch_files_find(l->found, l->n_found, DUMPS_MS, &l->stopping);
}

static void look_say(struct torch_look *l)
{
    struct cdi_buf text;

    cdi_buf_init(&text, TEXT_MAX);
    /* A text that is too long is shown as far as it goes. */
    (void)torch_watch_text(l->found, l->n_found, l->kind, l->quiet_ms, l->opt.host, &text);
    l->opt.facts->say(l->opt.facts->arg, (const char *)cdi_buf_data(&text), text.len);
    cdi_buf_release(&text);
    l->said_ms = l->begun_ms - l->quiet_ms;
}

/* The standstill that was reported is over. */
static void look_say_again(struct torch_look *l, int64_t now_ms)
{
    char text[TORCH_NOTE];

    if (l->said_ms == 0)
        return;
    torch_again_text(l->n, now_ms - l->said_ms, text);
    l->said_ms = 0;
    l->opt.facts->say(l->opt.facts->arg, text, strlen(text));
}

/* The workers did not stand still, so that the time of the warning begins anew. */
static void look_begin_anew(struct torch_look *l)
{
    l->told = false;
    memset(l->pulses, 0, sizeof l->pulses);
}

static void look_free(struct torch_look *l)
{
    free(l->found);
    free(l);
}

static void look_after_work(uv_work_t *w, int status)
{
    struct torch_look *l = w->data;
    struct foreign_worker now[FOREIGN_WORKERS_MAX];
    size_t n;

    l->working = false;
    if (atomic_load(&l->stopping)) {
        look_free(l);
        return;
    }
    if (status != 0)
        return;
    /* A worker may have ended while the stacks were read, or a new round begun; then the job goes on. */
    n = l->opt.facts->foreign(l->opt.facts->arg, now, FOREIGN_WORKERS_MAX);
    if (l->refuted)
        look_begin_anew(l);
    else if (n == l->n && (n == 0 || memcmp(now, l->workers, n * sizeof now[0]) == 0))
        look_say(l);
    if (l->asked)
        l->skip_ms = cdi_now_ms() + DUMP_WORK_MS;
    free(l->found);
    l->found = NULL;
}

/* ----------------------------------------------------------------------------------------------------- timer ---- */

/* Reads the stacks in another thread. */
static void look_begin(struct torch_look *l, enum torch_standstill kind, int64_t now_ms)
{
    l->found = calloc(l->n, sizeof *l->found);
    if (l->found == NULL)
        return;
    l->n_found = l->n;
    l->kind = kind;
    l->asked = false;
    l->begun_ms = now_ms;
    l->quiet_ms = INT64_MAX;
    for (size_t i = 0; i < l->n; i++) {
        int64_t quiet_ms = torch_pulse_quiet_ms(&l->pulses[i], now_ms);

        l->found[i].rank = l->workers[i].rank;
        l->found[i].pid = l->workers[i].pid;
        l->found[i].started_wall_ms = l->workers[i].started_wall_ms;
        l->found[i].quiet = quiet_ms >= l->opt.warning_ms;
        if (l->found[i].quiet && quiet_ms < l->quiet_ms)
            l->quiet_ms = quiet_ms;
    }
    l->n_waits = l->opt.facts->waits(l->opt.facts->arg, l->waits, TORCH_WAITS_MAX);
    l->work.data = l;
    l->working = uv_queue_work(l->opt.loop, &l->work, look_work, look_after_work) == 0;
    if (!l->working) {
        free(l->found);
        l->found = NULL;
    }
}

/* Lists the workers anew; if they are others than before, all of them begin anew. */
static void look_list(struct torch_look *l)
{
    struct foreign_worker now[FOREIGN_WORKERS_MAX];
    size_t n = l->opt.facts->foreign(l->opt.facts->arg, now, FOREIGN_WORKERS_MAX);

    if (n == l->n && memcmp(now, l->workers, n * sizeof now[0]) == 0)
        return;
    l->n = n;
    l->told = false;
    l->said_ms = l->skip_ms = 0;
    if (n > 0)
        memcpy(l->workers, now, n * sizeof now[0]);
    memset(l->pulses, 0, sizeof l->pulses);
}

static void look_at_workers(struct torch_look *l, int64_t now_ms)
{
    enum torch_standstill kind;

    if (l->working)
        return;
    if (now_ms - l->last_ms > STALLED_MS) /* this process was stopped, and so were the workers */
        l->n = 0;
    l->last_ms = now_ms;
    look_list(l);
    for (size_t i = 0; i < l->n; i++) {
        struct procs_stat stat;

        if (!procs_stat(l->workers[i].pid, &stat))
            continue;
        if (now_ms <= l->skip_ms)
            torch_pulse_skip(&l->pulses[i], stat.cpu_ms, now_ms);
        else
            torch_pulse_note(&l->pulses[i], stat.cpu_ms, stat.state == 'R', now_ms);
    }
    if (l->told && !torch_has_moved(l->pulses, l->n))
        return;
    if (l->told) {
        look_say_again(l, now_ms);
        torch_note_again(l->pulses, l->n, now_ms); /* those that sleep on are counted anew */
    }
    kind = torch_decide(l->pulses, l->n, l->opt.warning_ms, now_ms);
    l->told = kind != TORCH_RUNS;
    if (l->told) {
        torch_note_told(l->pulses, l->n, l->opt.warning_ms, now_ms);
        look_begin(l, kind, now_ms);
    }
}

int64_t torch_look_again(struct torch_look *l, int64_t now_ms)
{
    if (l == NULL)
        return CDI_NEVER_MS;
    look_at_workers(l, now_ms);
    return now_ms + (l->opt.warning_ms / 3 < TICK_MS ? l->opt.warning_ms / 3 + 1 : TICK_MS);
}

cddp_status torch_look_start(struct torch_look **out, const struct torch_look_options *opt, struct cdi_error *err)
{
    struct torch_look *l = calloc(1, sizeof *l);

    if (l == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    l->opt = *opt;
    l->last_ms = cdi_now_ms();
    *out = l;
    return CDDP_OK;
}

void torch_look_stop(struct torch_look *l)
{
    if (l == NULL)
        return;
    atomic_store(&l->stopping, true);
    if (l->working)
        (void)uv_cancel((uv_req_t *)&l->work);
    else
        look_free(l);
}
