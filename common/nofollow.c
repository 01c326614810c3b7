/* SPDX-License-Identifier: Apache-2.0 */
#include "common/nofollow.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The rule of the kernel's fs.protected_symlinks, which is not set everywhere and does not apply to realpath(). */
bool cdi_link_is_planted(const char *path)
{
    const char *slash = strrchr(path, '/');
    char dir[PATH_MAX] = ".";
    struct stat link, in;

    if (slash != NULL)
        (void)snprintf(dir, sizeof dir, "%.*s/", (int)(slash - path), path);
    return lstat(path, &link) == 0 && S_ISLNK(link.st_mode) && link.st_uid != geteuid() && stat(dir, &in) == 0 &&
           (in.st_mode & S_IWOTH) != 0 && link.st_uid != in.st_uid;
}

int cdi_nofollow(const char *path)
{
    struct stat is;

    return lstat(path, &is) == 0 && S_ISLNK(is.st_mode) && !cdi_link_is_planted(path) ? 0 : O_NOFOLLOW;
}

int cdi_lock_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0)
        (void)flock(fd, LOCK_EX | LOCK_NB);
    return fd;
}
