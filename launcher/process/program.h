/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a program, from its file. The file may have any contents: every offset and size is checked. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>

#define PROGRAM_NAME_MAX 256 /* bytes of a name, NUL included; longer ones are ignored */

struct program_facts {
    char interpreter[PROGRAM_NAME_MAX]; /* the dynamic loader, or the interpreter of a script (#!); "": none */
    bool script;                        /* it begins with #! */
    bool carriage_return;               /* a script whose first line ends in one */
    char mpi[PROGRAM_NAME_MAX];         /* the MPI library that it is linked to; "": none */
    bool cddp;                          /* it is linked to libcddp */
};

/*
 * Reads the beginning of a script, or the program headers and the names of the needed libraries of an ELF file for this
 * kind of machine. False: the file cannot be read or is neither; then the facts are all empty. Blocks as read(2) does.
 */
bool program_read(const char *path, struct program_facts *out);
/* Adds what a line of /proc/PID/maps tells about mpi and cddp to the facts; a module of libcddp counts as libcddp. */
void program_take_map(struct program_facts *facts, const char *line);

#endif
