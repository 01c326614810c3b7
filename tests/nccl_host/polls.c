/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's threads poll their sockets without a pause (misc/socket.cc, socketWait), each on a core of its node. Here many
 * ranks share few cores: a thread that has polled in vain for long sleeps for a moment. The linker puts these in place
 * of libc's (--wrap).
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define IN_VAIN 64
#define NAP_US 100

ssize_t __real_recv(int fd, void *to, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *to, size_t bytes, int flags);
int __real_accept(int fd, struct sockaddr *from, socklen_t *bytes);
int __wrap_accept(int fd, struct sockaddr *from, socklen_t *bytes);

static void polled(ssize_t rc)
{
    static _Thread_local unsigned in_vain;
    int was = errno;

    if (rc >= 0 || (was != EAGAIN && was != EWOULDBLOCK)) {
        in_vain = 0;
    } else if (++in_vain >= IN_VAIN) {
        (void)usleep(NAP_US);
        errno = was;
    }
}

ssize_t __wrap_recv(int fd, void *to, size_t bytes, int flags)
{
    ssize_t rc = __real_recv(fd, to, bytes, flags);

    polled(rc);
    return rc;
}

int __wrap_accept(int fd, struct sockaddr *from, socklen_t *bytes)
{
    int rc = __real_accept(fd, from, bytes);

    polled(rc);
    return rc;
}
