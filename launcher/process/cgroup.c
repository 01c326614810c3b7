/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/cgroup.h"

#include "launcher/process/small_file.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LIMIT_NONE (INT64_C(1) << 60) /* cgroup v1 writes such a number for "no limit" */
#define LEVELS_MAX 32                 /* of nested cgroups */

static const struct cgroup_layout layouts[] = {
    {"",
     {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
     "memory.current",
     "memory.max",
     "memory.events",
     "max ",
     "memory.events",
     "cgroup.events",
     "frozen 1"},
    {"memory",
     {"/sys/fs/cgroup/memory", NULL},
     "memory.usage_in_bytes",
     "memory.limit_in_bytes",
     "memory.failcnt",
     "",
     "memory.oom_control",
     NULL,
     NULL},
    {"freezer", {"/sys/fs/cgroup/freezer", NULL}, NULL, NULL, NULL, NULL, NULL, "freezer.state", "FROZEN"},
};

const char *cgroup_line(const char *text, const char *name)
{
    const size_t n = strlen(name);

    for (const char *p = text; p != NULL; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, n) == 0)
            return p + n;
    }
    return NULL;
}

int64_t cgroup_number(const char *dir, const char *file, const char *line)
{
    char path[PATH_MAX + 64], text[1024];
    const char *at;

    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    at = small_file_read(path, text, sizeof text) ? cgroup_line(text, line) : NULL;
    return at != NULL && isdigit((unsigned char)*at) ? strtoll(at, NULL, 10) : -1;
}

int64_t cgroup_memory_limit(const struct cgroup_layout *l, const char *dir)
{
    const int64_t limit = l->limit != NULL ? cgroup_number(dir, l->limit, "") : -1;

    return limit < LIMIT_NONE ? limit : -1;
}

/* Visits the cgroup of this path below its hierarchy's top, and those around it. */
static void walk_up(const struct cgroup_layout *l, const char *root, const char *top, const char *path,
                    cgroup_visit *visit, void *arg)
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

        visit(arg, l, dir, level == 0);
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
static void walk_line(const char *root, const char *line, cgroup_visit *visit, void *arg)
{
    const char *list = strchr(line, ':'), *path = list == NULL ? NULL : strchr(list + 1, ':');

    if (path == NULL)
        return;
    list++;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct cgroup_layout *l = &layouts[i];
        const bool is_it = l->controller[0] == '\0' ? path == list : lists(list, (size_t)(path - list), l->controller);

        for (int k = 0; is_it && k < 2 && l->tops[k] != NULL; k++)
            walk_up(l, root, l->tops[k], path + 1, visit, arg);
    }
}

void cgroup_walk(const char *root, const char *process, cgroup_visit *visit, void *arg)
{
    char path[PATH_MAX], text[8192];

    (void)snprintf(path, sizeof path, "%.2000s/proc/%s/cgroup", root, process);
    if (!small_file_read(path, text, sizeof text))
        return;
    for (char *line = text, *end; *line != '\0'; line = end) {
        end = strchr(line, '\n');
        if (end == NULL)
            return; /* cut: its path is not known */
        *end++ = '\0';
        walk_line(root, line, visit, arg);
    }
}
