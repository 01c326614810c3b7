/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/procs.h"

#include "common/cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *procs_stat(int dir, const char *path, char text[PROCS_STAT])
{
    CDI_AUTOCLOSE int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, PROCS_STAT - 1);
    const char *close_paren;

    if (n <= 0)
        return NULL;
    text[n] = '\0';
    close_paren = strrchr(text, ')');
    return close_paren == NULL || strlen(close_paren) < sizeof ") S 1" - 1 ? NULL : close_paren + 2;
}

bool procs_stopped(void (*found)(void *arg, pid_t pid, pid_t group), void *arg)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;

    if (proc == NULL)
        return false;
    while ((entry = readdir(proc)) != NULL) {
        char path[64], text[PROCS_STAT], *end;
        const char *state;

        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        (void)snprintf(path, sizeof path, "%.20s/stat", entry->d_name);
        state = procs_stat(dirfd(proc), path, text);
        if (state == NULL || *state != 'T')
            continue;
        (void)strtol(state + 1, &end, 10); /* its parent */
        found(arg, (pid_t)strtol(entry->d_name, NULL, 10), (pid_t)strtol(end, NULL, 10));
    }
    (void)closedir(proc);
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
