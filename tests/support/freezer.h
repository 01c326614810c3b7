/* SPDX-License-Identifier: Apache-2.0 */
/* Freezes a process of a test by a cgroup of version 1, which leaves it in D state: no debugger can stop it. */
#ifndef FREEZER_H
#define FREEZER_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct freezer {
    char folder[96];
};

static inline bool freezer_put(const struct freezer *f, const char *name, const char *text)
{
    char path[160];
    FILE *file;
    bool ok;

    (void)snprintf(path, sizeof path, "%s/%s", f->folder, name);
    file = fopen(path, "we");
    if (file == NULL)
        return false;
    ok = fputs(text, file) >= 0;
    return fclose(file) == 0 && ok;
}

static inline bool freezer_is_frozen(const struct freezer *f)
{
    char path[160], text[16] = "";
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/freezer.state", f->folder);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    (void)!fgets(text, sizeof text, file);
    (void)fclose(file);
    return strncmp(text, "FROZEN", 6) == 0;
}

/* Freezes pid; false: no cgroup can be made here. Call freezer_release() in any case. */
static inline bool freezer_freeze(struct freezer *f, pid_t pid)
{
    char text[32];

    (void)snprintf(f->folder, sizeof f->folder, "/sys/fs/cgroup/freezer/cddp-test-%ld-%ld", (long)getpid(), (long)pid);
    (void)snprintf(text, sizeof text, "%ld", (long)pid);
    if (mkdir(f->folder, 0755) != 0 || !freezer_put(f, "cgroup.procs", text) ||
        !freezer_put(f, "freezer.state", "FROZEN"))
        return false;
    for (int i = 0; i < 1000 && !freezer_is_frozen(f); i++)
        (void)usleep(10000);
    return freezer_is_frozen(f);
}

static inline void freezer_thaw(const struct freezer *f)
{
    (void)freezer_put(f, "freezer.state", "THAWED");
}

/* Removes the cgroup, after its process has ended. */
static inline void freezer_release(const struct freezer *f)
{
    freezer_thaw(f);
    for (int i = 0; i < 1000 && rmdir(f->folder) != 0 && access(f->folder, F_OK) == 0; i++)
        (void)usleep(10000);
}

#endif
