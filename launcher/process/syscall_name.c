/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/syscall_name.h"

#include <stddef.h>
#include <sys/syscall.h>

struct call {
    long number;
    const char *name;
    bool takes_fd;
};

static const struct call calls[] = {
    {SYS_read, "read", true},
    {SYS_write, "write", true},
    {SYS_readv, "readv", true},
    {SYS_writev, "writev", true},
    {SYS_pread64, "pread", true},
    {SYS_pwrite64, "pwrite", true},
    {SYS_recvfrom, "recv", true},
    {SYS_recvmsg, "recvmsg", true},
    {SYS_sendto, "send", true},
    {SYS_sendmsg, "sendmsg", true},
    {SYS_accept, "accept", true},
    {SYS_accept4, "accept", true},
    {SYS_connect, "connect", true},
    {SYS_fsync, "fsync", true},
    {SYS_fdatasync, "fdatasync", true},
    {SYS_flock, "flock", true},
    {SYS_fcntl, "fcntl", true},
    {SYS_ioctl, "ioctl", true},
    {SYS_close, "close", true},
    {SYS_futex, "futex", false},
    {SYS_ppoll, "poll", false},
    {SYS_pselect6, "select", false},
    {SYS_epoll_pwait, "epoll_wait", false},
    {SYS_nanosleep, "nanosleep", false},
    {SYS_clock_nanosleep, "nanosleep", false},
    {SYS_wait4, "wait for a child", false},
    {SYS_waitid, "wait for a child", false},
    {SYS_rt_sigsuspend, "sigsuspend", false},
    {SYS_rt_sigtimedwait, "wait for a signal", false},
    {SYS_openat, "open", false},
    {SYS_munmap, "munmap", false},
    {SYS_mmap, "mmap", false},
    {SYS_io_getevents, "io_getevents", false},
#ifdef SYS_poll
    {SYS_poll, "poll", false},
#endif
#ifdef SYS_select
    {SYS_select, "select", false},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait", false},
#endif
#ifdef SYS_pause
    {SYS_pause, "pause", false},
#endif
#ifdef SYS_open
    {SYS_open, "open", false},
#endif
#ifdef SYS_futex_waitv
    {SYS_futex_waitv, "futex", false},
#endif
#ifdef SYS_epoll_pwait2
    {SYS_epoll_pwait2, "epoll_wait", false},
#endif
};

static const struct call *find_call(long number)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i].number == number)
            return &calls[i];
    return NULL;
}

const char *syscall_name(long number)
{
    const struct call *c = find_call(number);

    return c == NULL ? NULL : c->name;
}

bool syscall_takes_fd(long number)
{
    const struct call *c = find_call(number);

    return c != NULL && c->takes_fd;
}
