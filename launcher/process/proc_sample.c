/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the samples of proc_state.h from /proc and from the cgroups, of both versions. */
#include "common/clock.h"
#include "launcher/process/cgroup.h"
#include "launcher/process/proc_state.h"
#include "launcher/process/small_file.h"
#include "launcher/process/syscall_name.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX 8192       /* bytes of a file of /proc that are read */
#define AT_LIMIT_PERCENT 98 /* of its limit: a cgroup that can hardly grow */
#define FIELD_STATE 3       /* fields of /proc/PID/stat, counted from 1 as in proc(5) */
#define FIELD_MAJFLT 12
#define FIELD_STARTTIME 22
#define FIELD_EXIT_CODE 52

static bool read_proc(const char *root, pid_t pid, const char *file, char *text, size_t cap)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/proc/%d/%s", root, (int)pid, file);
    return small_file_read(path, text, cap);
}

static int64_t number_of(const char *text, const char *name)
{
    const char *at = cgroup_line(text, name);

    return at == NULL ? -1 : strtoll(at, NULL, 10);
}

/* /proc/PID/stat. The name in brackets may contain anything. */
static void read_stat(struct proc_sample *s, const char *text)
{
    const char *p = strrchr(text, ')');

    p = p == NULL || p[1] == '\0' ? NULL : p + 2;
    for (int field = FIELD_STATE; p != NULL && *p != '\0'; field++) {
        if (field == FIELD_STATE)
            s->state = *p;
        else if (field == FIELD_MAJFLT)
            s->major_faults = strtoll(p, NULL, 10);
        else if (field == FIELD_STARTTIME)
            s->started = strtoull(p, NULL, 10);
        else if (field == FIELD_EXIT_CODE && s->state == 'T') /* Linux puts a stopped process's signal there */
            s->stop_signal = (int)strtol(p, NULL, 10) & 0x7f;
        p = strchr(p, ' ');
        p = p == NULL ? NULL : p + 1;
    }
}

static void read_status(struct proc_sample *s, const char *text)
{
    const int64_t yielded = number_of(text, "voluntary_ctxt_switches:");
    const int64_t taken = number_of(text, "nonvoluntary_ctxt_switches:");
    const int64_t tracer = number_of(text, "TracerPid:"), swap = number_of(text, "VmSwap:");
    const int64_t threads = number_of(text, "Threads:");

    s->switches = yielded < 0 || taken < 0 ? -1 : yielded + taken;
    s->tracer = tracer < 0 ? 0 : (pid_t)tracer;
    s->swap_bytes = swap < 0 ? -1 : swap * 1024;
    s->threads = threads < 0 ? -1 : (int32_t)threads;
}

/* Linux gives the processor time of any process as a clock, in nanoseconds. */
static int64_t read_cpu(const char *root, pid_t pid)
{
    struct timespec ts;
    clockid_t clock;

    if (root[0] != '\0' || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &ts) != 0)
        return -1;
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Of the planted files of a test: the main thread's time on a core, and its time without one. */
static void read_schedstat(struct proc_sample *s, const char *text)
{
    char *end;
    const int64_t ran = strtoll(text, &end, 10);

    if (s->cpu_ns < 0)
        s->cpu_ns = ran;
    s->waited_ns = strtoll(end, NULL, 10);
}

/* What a descriptor of the process is: " of a pipe"; "": not known. */
static const char *object_of(const char *root, pid_t pid, unsigned long fd)
{
    static const struct {
        const char *prefix, *text;
    } kinds[] = {
        {"pipe:", " of a pipe"},
        {"socket:", " of a socket"},
        {"anon_inode:[eventfd]", " of an eventfd"},
        {"/dev/pts/", " of a terminal"},
        {"/dev/tty", " of a terminal"},
        {"/dev/", " of a device"},
        {"/", " of a file"},
    };
    char path[PATH_MAX], target[PATH_MAX];
    ssize_t n;

    (void)snprintf(path, sizeof path, "%s/proc/%d/fd/%lu", root, (int)pid, fd);
    n = readlink(path, target, sizeof target - 1);
    if (n <= 0)
        return "";
    target[n] = '\0';
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strncmp(target, kinds[i].prefix, strlen(kinds[i].prefix)) == 0)
            return kinds[i].text;
    return "";
}

/* /proc/PID/syscall: "0 0x3 ...", "-1 0x7ff...", or "running". */
static void read_call(struct proc_sample *s, const char *root, const char *text)
{
    char *end;
    const long number = strtol(text, &end, 10);
    const char *name = end == text ? NULL : syscall_name(number);

    if (name == NULL)
        return;
    (void)snprintf(s->call, sizeof s->call, "%s%s", name,
                   syscall_takes_fd(number) ? object_of(root, s->pid, strtoul(end, NULL, 16)) : "");
}

/* A name of the kernel: only such characters, so that nothing else can get into a message. */
static void read_wchan(struct proc_sample *s, const char *text)
{
    size_t n = 0;

    while (n + 1 < sizeof s->wchan && (isalnum((unsigned char)text[n]) || text[n] == '_' || text[n] == '.'))
        n++;
    if (n > 1) /* "0": not known */
        memcpy(s->wchan, text, n);
    s->wchan[n > 1 ? n : 0] = '\0';
}

/* --------------------------------------------------------------------------------------------------- cgroups ---- */

static void look_at_group(void *arg, const struct cgroup_layout *l, const char *dir, bool innermost)
{
    struct proc_sample *s = arg;
    char path[PATH_MAX + 64], text[1024];
    int64_t usage, limit;

    (void)snprintf(path, sizeof path, "%s/%s", dir, l->frozen == NULL ? "" : l->frozen);
    if (innermost && l->frozen != NULL && small_file_read(path, text, sizeof text))
        s->frozen = s->frozen || cgroup_line(text, l->frozen_line) != NULL;
    if (l->limit == NULL || s->memory_limit > 0)
        return;
    limit = cgroup_memory_limit(l, dir);
    usage = cgroup_number(dir, l->usage, "");
    if (limit <= 0 || usage < limit / 100 * AT_LIMIT_PERCENT)
        return;
    s->memory_limit = limit;
    s->memory_waits = cgroup_number(dir, l->reached, l->reached_line);
}

/* ------------------------------------------------------------------------------------------------ the sample ---- */

int proc_sample_take_below(const char *root, pid_t pid, struct proc_sample *out)
{
    char text[FILE_MAX];

    *out = (struct proc_sample){.pid = pid,
                                .at_ns = cdi_now_ns(),
                                .threads = -1,
                                .cpu_ns = -1,
                                .waited_ns = -1,
                                .switches = -1,
                                .major_faults = -1,
                                .swap_bytes = -1,
                                .memory_waits = -1};
    if (pid <= 0 || !read_proc(root, pid, "stat", text, sizeof text))
        return ESRCH;
    read_stat(out, text);
    out->cpu_ns = read_cpu(root, pid);
    if (read_proc(root, pid, "schedstat", text, sizeof text))
        read_schedstat(out, text);
    if (read_proc(root, pid, "status", text, sizeof text))
        read_status(out, text);
    if (out->state == 'Z' || out->state == 'X')
        return 0;
    if (read_proc(root, pid, "wchan", text, sizeof text))
        read_wchan(out, text);
    if (read_proc(root, pid, "syscall", text, sizeof text))
        read_call(out, root, text);
    (void)snprintf(text, sizeof text, "%d", (int)pid);
    cgroup_walk(root, text, look_at_group, out);
    return 0;
}

int proc_sample_take(pid_t pid, struct proc_sample *out)
{
    return proc_sample_take_below("", pid, out);
}

bool proc_is_frozen(pid_t pid)
{
    struct proc_sample s;

    return proc_sample_take(pid, &s) == 0 && s.frozen;
}
