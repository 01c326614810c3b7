/* SPDX-License-Identifier: Apache-2.0 */
/* The text: pure. proc_sample.c reads the samples. */
#include "launcher/process/proc_state.h"

#include "common/size_text.h"
#include "launcher/process/signame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SECOND_NS INT64_C(1000000000)
#define SHORTEST_NS (SECOND_NS / 100) /* between two samples: below, shares of time mean nothing */
#define RUNS_PERMILLE 50              /* of a core: a sleeping main thread with more has other threads that run */
#define SWAPS_PER_S 20                /* pages from the disk in a second: more is not a program's start */

/* The change of a counter between the samples; 0: not known. */
static int64_t grown(int64_t before, int64_t now)
{
    return before >= 0 && now > before ? now - before : 0;
}

static int64_t per_second(int64_t n, int64_t ns)
{
    return ns < SHORTEST_NS ? 0 : (int64_t)((double)n * (double)SECOND_NS / (double)ns);
}

static int64_t permille(int64_t part_ns, int64_t ns)
{
    return ns < SHORTEST_NS ? 0 : (int64_t)((double)part_ns * 1000 / (double)ns);
}

static void limit_text(int64_t bytes, char *buf, size_t cap)
{
    char size[CDI_SIZE_TEXT];

    (void)snprintf(buf, cap, "at its memory limit of %s", cdi_size_text(size, (double)bytes));
}

/* The kernel's function in which it sleeps; "": not known, or only that it has entered the kernel. */
static const char *sleeps_in(const struct proc_sample *now)
{
    static const char *const entries[] = {
        "do_syscall_64", "x64_sys_call", "entry_SYSCALL_64", "do_fast_syscall_32", "invoke_syscall",
        "do_el0_svc",    "el0"};

    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strncmp(now->wchan, entries[i], strlen(entries[i])) == 0)
            return "";
    return now->wchan;
}

static void share_text(int64_t share, char *buf, size_t cap)
{
    if (share < 1100)
        (void)snprintf(buf, cap, "%" PRId64 " %% of a core", share > 1000 ? 100 : (share + 5) / 10);
    else
        (void)snprintf(buf, cap, "%" PRId64 ".%" PRId64 " cores", (share + 50) / 1000, (share + 50) % 1000 / 100);
}

static void stopped_text(const struct proc_sample *now, char *buf, size_t cap)
{
    char name[32];

    if (now->state == 't' && now->tracer > 0)
        (void)snprintf(buf, cap, "stopped by a debugger (pid %d)", (int)now->tracer);
    else if (now->state == 't')
        (void)snprintf(buf, cap, "stopped by a debugger");
    else if (now->stop_signal > 0)
        (void)snprintf(buf, cap, "stopped by %s", signame(now->stop_signal, name, sizeof name));
    else
        (void)snprintf(buf, cap, "stopped by a signal");
}

/* asleep_ns: for how long the samples show it there; 0: not known. */
static void uninterruptible_text(const struct proc_sample *now, int64_t asleep_ns, char *buf, size_t cap)
{
    char where[48] = "", since[40] = "";

    if (sleeps_in(now)[0] != '\0')
        (void)snprintf(where, sizeof where, " (%s)", now->wchan);
    if (asleep_ns >= SECOND_NS)
        (void)snprintf(since, sizeof since, " for %" PRId64 " s", asleep_ns / SECOND_NS);
    (void)snprintf(buf, cap, "in D state%s%s", where, since);
}

static void sleeping_text(const struct proc_sample *now, char *buf, size_t cap)
{
    if (now->call[0] != '\0')
        (void)snprintf(buf, cap, "sleeping in %s", now->call);
    else if (sleeps_in(now)[0] != '\0')
        (void)snprintf(buf, cap, "sleeping (%s)", now->wchan);
    else
        (void)snprintf(buf, cap, "sleeping");
}

static void swapping_text(int64_t pages_per_s, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "swapping, %" PRId64 " pages a second from the disk", pages_per_s);
}

/* limit: what to add; "": nothing. */
static void running_text(const struct proc_sample *now, int64_t share, int64_t waited, const char *limit, char *buf,
                         size_t cap)
{
    bool starves = now->state == 'R' && share < RUNS_PERMILLE && waited > 500;
    char text[40];

    share_text(share, text, sizeof text);
    (void)snprintf(buf, cap, "%s %s%s%s", starves ? "ready to run, but gets" : "running,", text,
                   limit[0] != '\0' ? ", " : "", limit);
}

/* Is it gone, or held by something outside of it? These need no second sample. */
static bool held_text(const struct proc_sample *now, char *buf, size_t cap)
{
    if (now->pid <= 0) {
        (void)snprintf(buf, cap, "not known");
    } else if (now->state == '\0' || now->state == 'X' || (now->state == 'Z' && now->threads <= 1)) {
        (void)snprintf(buf, cap, "exited");
    } else if (now->state == 'Z') {
        (void)snprintf(buf, cap, "its main thread has exited, %d other threads have not", (int)now->threads - 1);
    } else if (now->frozen) {
        (void)snprintf(buf, cap, "frozen by its cgroup");
    } else if (now->state == 'T' || now->state == 't') {
        stopped_text(now, buf, cap);
    } else {
        return false;
    }
    return true;
}

void proc_state_text(const struct proc_sample *before, const struct proc_sample *now, char *buf, size_t cap)
{
    bool pair = before != NULL && before->pid == now->pid && before->started == now->started && before->state != '\0' &&
                now->at_ns > before->at_ns;
    int64_t ns = pair ? now->at_ns - before->at_ns : 0;
    int64_t share = pair ? permille(grown(before->cpu_ns, now->cpu_ns), ns) : 0;
    int64_t waited = pair ? permille(grown(before->waited_ns, now->waited_ns), ns) : 0;
    int64_t pages = pair ? per_second(grown(before->major_faults, now->major_faults), ns) : 0;
    bool asleep = pair && before->state == 'D' && now->switches >= 0 && now->switches == before->switches;
    /* A cgroup's limit includes its cache of files, so one that is reached says nothing about a process that sleeps. */
    bool reclaims = now->memory_limit > 0 && pair && grown(before->memory_waits, now->memory_waits) > 0;
    char limit[64] = "";

    if (held_text(now, buf, cap))
        return;
    if (now->memory_limit > 0)
        limit_text(now->memory_limit, limit, sizeof limit);
    if (now->memory_limit > 0 && now->state == 'D') {
        (void)snprintf(buf, cap, "%s", limit);
    } else if (pages >= SWAPS_PER_S && now->swap_bytes > 0) {
        swapping_text(pages, buf, cap);
    } else if (now->state == 'D') {
        uninterruptible_text(now, asleep ? ns : 0, buf, cap);
    } else if (ns >= SHORTEST_NS && now->cpu_ns >= 0 && (now->state == 'R' || share >= RUNS_PERMILLE)) {
        running_text(now, share, waited, reclaims ? limit : "", buf, cap);
    } else if (now->state == 'R') {
        (void)snprintf(buf, cap, "running");
    } else {
        sleeping_text(now, buf, cap);
    }
}
