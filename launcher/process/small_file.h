/* SPDX-License-Identifier: Apache-2.0 */
/* Files of /proc and of cgroups, which are read at once. */
#ifndef SMALL_FILE_H
#define SMALL_FILE_H

#include "common/cleanup.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

/* Reads a small file, at most cap - 1 bytes, and adds a NUL. Returns false if it cannot be read, or is empty. */
static inline bool small_file_read(const char *path, char *text, size_t cap)
{
    CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, cap - 1);

    if (n <= 0)
        return false;
    text[n] = '\0';
    return true;
}

#endif
