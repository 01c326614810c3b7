/* SPDX-License-Identifier: Apache-2.0 */
/* Pseudo-terminals for the stdout of workers. Raw: what a worker writes is what is read. Any thread. */
#ifndef PTY_H
#define PTY_H

#include <stdint.h>

/*
 * Opens a raw pseudo-terminal: no echo, no translation of line ends, no signals from characters. It becomes nobody's
 * controlling terminal. ends[0] is the master, ends[1] the worker's end; both are close-on-exec and the caller's to
 * close. Returns 0, or errno (then ends is unchanged): ENOSPC if the system has no more of them, ENOENT without devpts.
 */
int pty_open(int ends[2]);
/*
 * Gives a pseudo-terminal the size of the window on our own stdout, less `front` columns, which the prefix of a line
 * takes. Does nothing where stdout has no window. fd is either end.
 */
void pty_resize(int fd, uint32_t front);

#endif
