/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/flight_crash.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 64 /* of "/proc/PID/fd/N" */

void cdi_crash_offer(struct cdi_flight_crash *c, int fd)
{
    struct stat pipe;

    if (fstat(fd, &pipe) != 0)
        return;
    atomic_store(&c->reader_fd, fd);
    atomic_store(&c->reader_inode, (uint32_t)pipe.st_ino);
    atomic_store(&c->reader_pid, (int32_t)getpid());
}

/* Reads a plain member once: the number that is checked is the one that is used. */
static int32_t load_once(const void *at)
{
    return *(const volatile int32_t *)at;
}

enum cdi_crash_state cdi_crash_look(const struct cdi_flight_crash *c, struct cdi_flight_crash *copy)
{
    const uint32_t state = atomic_load_explicit(&c->state, memory_order_acquire);

    memset(copy, 0, sizeof *copy);
    atomic_init(&copy->armed, atomic_load_explicit(&c->armed, memory_order_acquire));
    if (state == CDI_CRASH_NONE || state > CDI_CRASH_UNREACHED)
        return CDI_CRASH_NONE;
    copy->signal = load_once(&c->signal);
    copy->code = c->code;
    copy->pid = load_once(&c->pid);
    copy->tid = load_once(&c->tid);
    copy->address = c->address;
    copy->pc = c->pc;
    copy->n_registers = (uint32_t)load_once(&c->n_registers);
    if (copy->n_registers > CDI_CRASH_REGISTERS)
        copy->n_registers = CDI_CRASH_REGISTERS;
    memcpy(copy->registers, c->registers, copy->n_registers * sizeof copy->registers[0]);
    if (copy->signal <= 0 || copy->signal >= NSIG || copy->pid <= 0 || copy->tid <= 0) {
        copy->signal = copy->pid = copy->tid = 0;
        return CDI_CRASH_NONE;
    }
    return (enum cdi_crash_state)state;
}

void cdi_crash_tell_read(struct cdi_flight_crash *c)
{
    atomic_store(&c->read, 1);
    (void)syscall(SYS_futex, &c->read, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool cdi_crash_has_reader(const struct cdi_flight_crash *c)
{
    return atomic_load(&c->reader_pid) > 0;
}

/* Writes "TEXT" and a number's decimal digits: snprintf() is not async-signal-safe. Returns the end. */
static char *put_number(char *at, const char *text, int number)
{
    unsigned rest = number < 0 ? 0 : (unsigned)number, n = 1;
    const size_t len = strlen(text);

    memcpy(at, text, len);
    at += len;
    for (unsigned i = rest; i >= 10; i /= 10)
        n++;
    for (unsigned i = n; i > 0; i--, rest /= 10)
        at[i - 1] = (char)('0' + rest % 10);
    at[n] = '\0';
    return at + n;
}

static void pipe_path(const struct cdi_flight_crash *c, char path[PATH_BYTES])
{
    (void)put_number(put_number(path, "/proc/", atomic_load(&c->reader_pid)), "/fd/", atomic_load(&c->reader_fd));
}

static bool is_pipe(const struct cdi_flight_crash *c, const struct stat *file)
{
    return S_ISFIFO(file->st_mode) && (uint32_t)file->st_ino == atomic_load(&c->reader_inode);
}

/* Before an open, which may wake a device. */
bool cdi_crash_is_there(const struct cdi_flight_crash *c)
{
    char path[PATH_BYTES];
    struct stat file;

    if (!cdi_crash_has_reader(c))
        return false;
    pipe_path(c, path);
    return stat(path, &file) == 0 && is_pipe(c, &file);
}

bool cdi_crash_tell(const struct cdi_flight_crash *c)
{
    char path[PATH_BYTES];
    struct stat file;
    bool told;
    int fd;

    if (!cdi_crash_is_there(c))
        return false;
    pipe_path(c, path);
    fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return false;
    told = fstat(fd, &file) == 0 && is_pipe(c, &file) &&
           (write(fd, "", 1) == 1 || errno == EAGAIN); /* full: it will look anyway */
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
