/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/oom.h"

#include "common/size_text.h"
#include "launcher/process/cgroup.h"
#include "launcher/process/small_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* The innermost memory cgroup with a counter, and the least limit of it and of those around it. */
struct found {
    const struct cgroup_layout *in; /* NULL: none so far */
    bool complete;
    int64_t kills, limit; /* limit -1: none */
};

static void take_group(void *arg, const struct cgroup_layout *l, const char *dir, bool innermost)
{
    struct found *f = arg;
    int64_t limit;

    f->complete = f->complete || (innermost && f->in != NULL);
    if (f->complete || l->kills == NULL)
        return;
    if (f->in == NULL)
        f->kills = cgroup_number(dir, l->kills, "oom_kill ");
    if (f->kills < 0)
        return;
    f->in = l;
    limit = cgroup_memory_limit(l, dir);
    if (limit >= 0 && (f->limit < 0 || limit < f->limit))
        f->limit = limit;
}

static struct found find_group(const char *root)
{
    struct found f = {.kills = -1, .limit = -1};

    cgroup_walk(root, "self", take_group, &f);
    return f;
}

struct oom_count oom_look(const char *root)
{
    char path[PATH_MAX], text[32768];
    const struct found f = find_group(root);
    const char *at = NULL;

    if (f.in != NULL)
        return (struct oom_count){.kills = f.kills};
    (void)snprintf(path, sizeof path, "%.2000s/proc/vmstat", root);
    if (small_file_read(path, text, sizeof text))
        at = cgroup_line(text, "oom_kill ");
    return (struct oom_count){.kills = at != NULL ? strtoll(at, NULL, 10) : -1, .machine = true};
}

bool oom_explain(const char *root, const struct oom_count *before, char *buf, size_t cap)
{
    struct oom_count now = oom_look(root);
    char size[CDI_SIZE_TEXT];
    int64_t limit;

    if (before->kills < 0 || now.machine != before->machine || now.kills <= before->kills)
        return false;
    if (now.machine) {
        (void)snprintf(buf, cap, "the kernel has just killed a process on this node because it was out of memory");
        return true;
    }
    limit = find_group(root).limit;
    if (limit < 0)
        (void)snprintf(buf, cap, "the kernel killed it: out of memory");
    else
        (void)snprintf(buf, cap, "the kernel killed it: out of memory (the limit of its memory cgroup is %s)",
                       cdi_size_text(size, (double)limit));
    return true;
}
