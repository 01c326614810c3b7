/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of CPython's variables in a live process, by /proc/PID/maps and the symbol tables of the files there. */
#ifndef CDI_PYTHON_SYMBOLS_H
#define CDI_PYTHON_SYMBOLS_H

#include "common/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct python_image {
    char path[PATH_MAX]; /* as the process sees it */
    uint64_t start;      /* the lowest address of its mappings, */
    uint64_t offset;     /* and the place in the file that is mapped there */
    bool library;        /* libpython3, and not a program */
};

/* Finds the file that has CPython: libpython3, otherwise the program, if its name says Python. false: none. */
bool python_image_find(pid_t pid, struct python_image *out);

struct python_symbols {
    uint64_t runtime; /* _PyRuntime */
    uint64_t version; /* Py_Version, a 64-bit number; 0: there is none before 3.11 */
};

/*
 * Finds the variables by the image's tables of symbols, or the section .PyRuntime. CDDP_E_NOT_FOUND: it has no
 * _PyRuntime; CDDP_E_DENIED, CDDP_E_IO: the file cannot be read; CDDP_E_UNSUPPORTED: not a 64-bit ELF file that makes
 * sense; CDDP_E_NOMEM.
 */
cddp_status python_symbols_find(pid_t pid, const struct python_image *image, struct python_symbols *out,
                                struct cdi_error *err);

/* Does the same for an open file; addresses are those of a process that has it at image->start. For tests. */
cddp_status python_symbols_in(int fd, const struct python_image *image, struct python_symbols *out,
                              struct cdi_error *err);

/* Returns the minor version of Python 3 that the name of a file states ("libpython3.11.so.1.0"); 0: none. */
uint32_t python_image_minor(const char *path);

#endif
