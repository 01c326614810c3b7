/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/flight_crash.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void cdi_crash_offer(struct cdi_flight_crash *c, int fd)
{
    atomic_store(&c->reader_fd, fd);
    atomic_store(&c->reader_pid, (int32_t)getpid());
}

enum cdi_crash_state cdi_crash_look(const struct cdi_flight_crash *c, struct cdi_flight_crash *copy)
{
    const uint32_t state = atomic_load_explicit(&c->state, memory_order_acquire);

    memset(copy, 0, sizeof *copy);
    atomic_init(&copy->armed, atomic_load_explicit(&c->armed, memory_order_acquire));
    if (state == CDI_CRASH_NONE || state > CDI_CRASH_UNREACHED)
        return CDI_CRASH_NONE;
    copy->signal = c->signal;
    copy->code = c->code;
    copy->pid = c->pid;
    copy->tid = c->tid;
    copy->address = c->address;
    copy->pc = c->pc;
    copy->n_registers = c->n_registers;
    if (copy->n_registers > CDI_CRASH_REGISTERS)
        copy->n_registers = CDI_CRASH_REGISTERS;
    memcpy(copy->registers, c->registers, copy->n_registers * sizeof copy->registers[0]);
    return (enum cdi_crash_state)state;
}

void cdi_crash_tell_read(struct cdi_flight_crash *c)
{
    atomic_store(&c->read, 1);
    (void)syscall(SYS_futex, &c->read, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool cdi_crash_path(const struct cdi_flight_crash *c, char path[CDI_CRASH_PATH])
{
    const int pid = atomic_load(&c->reader_pid), fd = atomic_load(&c->reader_fd);

    if (pid <= 0 || fd < 0)
        return false;
    (void)snprintf(path, CDI_CRASH_PATH, "/proc/%d/fd/%d", pid, fd);
    return true;
}

/* The pid may be another process's by now: only a pipe gets the byte. */
bool cdi_crash_tell(const char *path)
{
    const int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    bool told;

    if (fd < 0)
        return false;
    told = fcntl(fd, F_GETPIPE_SZ) > 0 && (write(fd, "", 1) == 1 || errno == EAGAIN); /* full: it will look anyway */
    (void)close(fd);
    return told;
}

void cdi_crash_wait_read(struct cdi_flight_crash *c)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += CDI_CRASH_WAIT_MS / 1000;
    while (atomic_load_explicit(&c->read, memory_order_acquire) == 0)
        if (syscall(SYS_futex, &c->read, FUTEX_WAIT_BITSET, 0, &until, NULL, FUTEX_BITSET_MATCH_ANY) != 0 &&
            errno != EAGAIN && errno != EINTR)
            return;
}
