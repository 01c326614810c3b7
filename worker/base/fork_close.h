/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets that a child of fork() must not keep: for as long as it lived, the other ends would not hear that this
 * process has died, and a port would stay in use after its store has gone. The child closes them before fork() returns
 * in it. One that runs no fork handlers (vfork, posix_spawn) gets rid of them when it execs: they are close-on-exec.
 *
 * Whatever is opened here must be closed here, or a child could close what has got the same number since. Any thread.
 */
#ifndef CDI_BASE_FORK_CLOSE_H
#define CDI_BASE_FORK_CLOSE_H

/* As socket(2), a TCP socket that does not block. */
int cdi_fork_socket(int family);
/* As accept(2), and the connection does not block; nor may the listener, which nobody could fork in the meantime. */
int cdi_fork_accept(int listener);
/* -1: nothing. errno stays. */
void cdi_fork_close(int fd);

#endif
