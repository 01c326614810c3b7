/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/procs.h"

#include "launcher/process/small_file.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool procs_stat(pid_t pid, struct procs_stat *out)
{
    char path[40], text[512];
    const char *name_end;
    uint64_t user, system;

    (void)snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    name_end = small_file_read(path, text, sizeof text) ? strrchr(text, ')') : NULL; /* a name may have any character */
    if (name_end == NULL || sscanf(name_end, ") %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                                   &out->state, &out->parent, &out->group, &user, &system) != 5)
        return false;
    out->cpu_ms = (user + system) * 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
    return true;
}

bool procs_each(void (*found)(void *arg, pid_t pid), void *arg)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;

    if (proc == NULL)
        return false;
    while ((entry = readdir(proc)) != NULL)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            found(arg, (pid_t)strtol(entry->d_name, NULL, 10));
    (void)closedir(proc);
    return true;
}
