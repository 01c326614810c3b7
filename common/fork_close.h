/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets that a child of fork() must not keep. While it lived, the other ends would not notice that this process has
 * died, and the port of a stopped store would stay in use. The child closes them before fork() returns in it. A child
 * that runs no fork handlers (vfork, posix_spawn) loses them when it execs: they are close-on-exec.
 *
 * A descriptor that was opened here must be closed here: otherwise a child could close another one that got the same
 * number. Any thread.
 */
#ifndef CDI_FORK_CLOSE_H
#define CDI_FORK_CLOSE_H

/* Returns a TCP socket that does not block, as socket(2) does. */
int cdi_fork_socket(int family);
/* Accepts a connection that does not block, as accept(2) does. The listener must not block: no thread can fork in the
 * meantime. */
int cdi_fork_accept(int listener);
/* Closes fd; does nothing if it is -1. Does not change errno. */
void cdi_fork_close(int fd);

#endif
