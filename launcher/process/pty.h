/* SPDX-License-Identifier: Apache-2.0 */
/* Pseudo-terminals for the stdout of workers. Raw: a worker's bytes are read unchanged. Any thread. */
#ifndef PTY_H
#define PTY_H

#include <stdint.h>

/*
 * Opens a raw pseudo-terminal: no echo, no translation of line ends, no signals from characters. It does not become a
 * controlling terminal. ends[0] is the master, ends[1] the worker's end; both are close-on-exec and the caller's to
 * close. Returns 0, or errno (then ends is unchanged): ENOSPC if the system has no more of them, ENOENT without devpts.
 */
int pty_open(int ends[2]);
/*
 * Sets the size of a pseudo-terminal to that of the window on cddprun's own stdout, less `front` columns for the prefix
 * of lines. Does nothing if stdout has no window. fd is either end.
 */
void pty_resize(int fd, uint32_t front);

#endif
