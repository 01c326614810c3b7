/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the samples of proc_state.h from /proc and from the cgroups, of both versions. */
#include "common/clock.h"
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
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX 8192                 /* bytes of a file of /proc that are read */
#define LIMIT_NONE (INT64_C(1) << 60) /* cgroup v1 writes such a number if there is no limit */
#define AT_LIMIT_PERCENT 98           /* of its limit: a cgroup that can hardly grow */
#define LEVELS_MAX 32                 /* of nested cgroups */
#define FIELD_STATE 3                 /* fields of /proc/PID/stat, counted from 1 as in proc(5) */
#define FIELD_MAJFLT 12
#define FIELD_STARTTIME 22
#define FIELD_EXIT_CODE 52

static bool read_proc(const char *root, pid_t pid, const char *file, char *text, size_t cap)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof path, "%s/proc/%d/%s", root, (int)pid, file);
    return small_file_read(path, text, cap);
}

/* Returns the text after "NAME:" at the beginning of a line; NULL: there is no such line. */
static const char *line_of(const char *text, const char *name)
{
    const size_t n = strlen(name);

    for (const char *p = text; p != NULL; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, n) == 0)
            return p + n;
    }
    return NULL;
}

static int64_t number_of(const char *text, const char *name)
{
    const char *at = line_of(text, name);

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

/* The files of a cgroup that matter here. events has the number of times that the limit was reached. */
struct layout {
    const char *controller; /* in the line of /proc/PID/cgroup; "": version 2 */
    const char *tops[2];
    const char *usage, *limit, *events, *event; /* event "": the file is the number */
    const char *frozen, *frozen_line;
};

static const struct layout layouts[] = {
    {"",
     {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
     "memory.current",
     "memory.max",
     "memory.events",
     "max ",
     "cgroup.events",
     "frozen 1"},
    {"memory",
     {"/sys/fs/cgroup/memory", NULL},
     "memory.usage_in_bytes",
     "memory.limit_in_bytes",
     "memory.failcnt",
     "",
     NULL,
     NULL},
    {"freezer", {"/sys/fs/cgroup/freezer", NULL}, NULL, NULL, NULL, NULL, "freezer.state", "FROZEN"},
};

static int64_t read_number(const char *dir, const char *file, const char *line)
{
    char path[PATH_MAX + 64], text[1024];

    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    if (!small_file_read(path, text, sizeof text))
        return -1;
    return line[0] != '\0' ? number_of(text, line) : isdigit((unsigned char)text[0]) ? strtoll(text, NULL, 10) : -1;
}

static void look_at_group(struct proc_sample *s, const struct layout *l, const char *dir, bool innermost)
{
    char path[PATH_MAX + 64], text[1024];
    int64_t usage, limit;

    (void)snprintf(path, sizeof path, "%s/%s", dir, l->frozen == NULL ? "" : l->frozen);
    if (innermost && l->frozen != NULL && small_file_read(path, text, sizeof text))
        s->frozen = s->frozen || line_of(text, l->frozen_line) != NULL;
    if (l->limit == NULL || s->memory_limit > 0)
        return;
    limit = read_number(dir, l->limit, "");
    usage = read_number(dir, l->usage, "");
    if (limit <= 0 || limit >= LIMIT_NONE || usage < limit / 100 * AT_LIMIT_PERCENT)
        return;
    s->memory_limit = limit;
    s->memory_waits = read_number(dir, l->events, l->event);
}

/* Looks at the cgroup of this path below its hierarchy's top, and at those around it. */
static void look_at_groups(struct proc_sample *s, const struct layout *l, const char *root, const char *top,
                           const char *path)
{
    char dir[PATH_MAX];
    size_t base = (size_t)snprintf(dir, sizeof dir, "%s%s", root, top);
    struct stat sb;

    if (base + strlen(path) >= sizeof dir)
        return;
    memcpy(dir + base, path, strlen(path) + 1);
    if (stat(dir, &sb) != 0) /* a container may show a path of the host, while its files are at the top */
        dir[base] = '\0';
    for (int level = 0; level < LEVELS_MAX; level++) {
        char *slash = strrchr(dir + base, '/');

        look_at_group(s, l, dir, level == 0);
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

/* Is "memory" one of "cpu,memory"? */
static bool lists(const char *list, size_t n, const char *word)
{
    const size_t len = strlen(word);

    for (const char *p = list, *end = list + n; p < end;) {
        const size_t part = strcspn(p, ",:");

        if (part == len && memcmp(p, word, len) == 0)
            return true;
        p += part + 1;
    }
    return false;
}

/* A line of /proc/PID/cgroup: "4:memory:/a/b" or, of version 2, "0::/a/b". */
static void look_at_line(struct proc_sample *s, const char *root, const char *line)
{
    const char *list = strchr(line, ':'), *path = list == NULL ? NULL : strchr(list + 1, ':');

    if (path == NULL)
        return;
    list++;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout *l = &layouts[i];
        const bool is_it = l->controller[0] == '\0' ? path == list : lists(list, (size_t)(path - list), l->controller);

        for (int k = 0; is_it && k < 2 && l->tops[k] != NULL; k++)
            look_at_groups(s, l, root, l->tops[k], path + 1);
    }
}

static void read_cgroups(struct proc_sample *s, const char *root, char *text)
{
    for (char *line = text, *end; line != NULL && *line != '\0'; line = end) {
        end = strchr(line, '\n');
        if (end == NULL)
            return; /* cut: its path is not known */
        *end++ = '\0';
        look_at_line(s, root, line);
    }
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
    if (read_proc(root, pid, "cgroup", text, sizeof text))
        read_cgroups(out, root, text);
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
