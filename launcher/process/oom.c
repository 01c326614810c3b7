/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/oom.h"

#include "common/size_text.h"
#include "launcher/process/small_file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_NONE (INT64_C(1) << 60) /* cgroup v1 writes such a number if there is no limit */

/* The memory cgroup that this process is in. */
struct group {
    char top[PATH_MAX]; /* the mount point of the hierarchy */
    char path[PATH_MAX];
    const char *events; /* the file with the counter */
    const char *limit;
};

/* Returns the number of a line such as "oom_kill 3"; -1: there is none. */
static int64_t find_count(const char *text)
{
    for (const char *p = text; p != NULL; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, "oom_kill ", strlen("oom_kill ")) == 0)
            return strtoll(p + strlen("oom_kill "), NULL, 10);
    }
    return -1;
}

static int64_t read_count(const char *dir, const char *file)
{
    char path[2 * PATH_MAX], text[1024];

    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    return small_file_read(path, text, sizeof text) ? find_count(text) : -1;
}

/* Is "memory" one of "cpu,memory"? */
static bool has_memory(const char *list, size_t n)
{
    for (const char *p = list, *end = list + n; p < end;) {
        size_t len = strcspn(p, ",:");

        if (len == strlen("memory") && memcmp(p, "memory", len) == 0)
            return true;
        p += len + 1;
    }
    return false;
}

/*
 * A line of /proc/self/cgroup, "4:memory:/a/b" or, of version 2, "0::/a/b". A container may show a path of the host,
 * while its files are at the top.
 */
static bool take_line(struct group *g, const char *root, const char *line)
{
    static const char *const tops[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    const char *list = strchr(line, ':'), *path = list == NULL ? NULL : strchr(list + 1, ':');
    bool v2 = path != NULL && path == list + 1;
    int len;

    if (path == NULL || (!v2 && !has_memory(list + 1, (size_t)(path - list - 1))))
        return false;
    len = (int)strcspn(++path, "\n");
    g->events = v2 ? "memory.events" : "memory.oom_control";
    g->limit = v2 ? "memory.max" : "memory.limit_in_bytes";
    for (int i = 0; i < 2; i++) {
        if ((size_t)snprintf(g->top, sizeof g->top, "%s%s", root, v2 ? tops[i] : "/sys/fs/cgroup/memory") >=
                sizeof g->top ||
            (size_t)snprintf(g->path, sizeof g->path, "%.2000s%.*s", g->top, len == 1 ? 0 : len, path) >=
                sizeof g->path)
            return false;
        if (read_count(g->path, g->events) >= 0)
            return true;
        memcpy(g->path, g->top, sizeof g->path);
        if (read_count(g->path, g->events) >= 0)
            return true;
    }
    return false;
}

static bool find_group(struct group *g, const char *root)
{
    char path[PATH_MAX], text[8192];

    (void)snprintf(path, sizeof path, "%.2000s/proc/self/cgroup", root);
    if (!small_file_read(path, text, sizeof text))
        return false;
    for (const char *p = text; *p != '\0'; p += strcspn(p, "\n") + (strchr(p, '\n') != NULL))
        if (take_line(g, root, p))
            return true;
    return false;
}

/* The least limit of the group and those above it, in bytes; -1: none. */
static int64_t find_limit(const struct group *g)
{
    char dir[PATH_MAX], path[2 * PATH_MAX], text[64];
    int64_t least = -1;

    memcpy(dir, g->path, sizeof dir);
    for (;;) {
        int64_t v = -1;
        char *slash;

        (void)snprintf(path, sizeof path, "%s/%s", dir, g->limit);
        if (small_file_read(path, text, sizeof text) && text[0] >= '0' && text[0] <= '9')
            v = strtoll(text, NULL, 10);
        if (v >= 0 && v < LIMIT_NONE && (least < 0 || v < least))
            least = v;
        slash = strrchr(dir, '/');
        if (slash == NULL || (size_t)(slash - dir) < strlen(g->top))
            return least;
        *slash = '\0';
    }
}

struct oom_count oom_look(const char *root)
{
    char path[PATH_MAX], text[32768];
    struct group g;

    if (find_group(&g, root))
        return (struct oom_count){.kills = read_count(g.path, g.events)};
    (void)snprintf(path, sizeof path, "%.2000s/proc/vmstat", root);
    return (struct oom_count){.kills = small_file_read(path, text, sizeof text) ? find_count(text) : -1,
                              .machine = true};
}

bool oom_explain(const char *root, const struct oom_count *before, char *buf, size_t cap)
{
    struct oom_count now = oom_look(root);
    char size[CDI_SIZE_TEXT];
    struct group g;
    int64_t limit;

    if (before->kills < 0 || now.machine != before->machine || now.kills <= before->kills)
        return false;
    if (now.machine) {
        (void)snprintf(buf, cap, "the kernel has just killed a process on this node because it was out of memory");
        return true;
    }
    limit = find_group(&g, root) ? find_limit(&g) : -1;
    if (limit < 0)
        (void)snprintf(buf, cap, "the kernel killed it: out of memory");
    else
        (void)snprintf(buf, cap, "the kernel killed it: out of memory (the limit of its memory cgroup is %s)",
                       cdi_size_text(size, (double)limit));
    return true;
}
