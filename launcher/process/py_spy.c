/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/py_spy.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_MAX 65536

static bool py_spy_prepare(posix_spawn_file_actions_t *files, posix_spawnattr_t *attr, int fd)
{
    sigset_t none;

    (void)sigemptyset(&none);
    return posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0) == 0 &&
           posix_spawn_file_actions_adddup2(files, fd, STDOUT_FILENO) == 0 &&
           posix_spawn_file_actions_addopen(files, STDERR_FILENO, "/dev/null", O_WRONLY, 0) == 0 &&
           posix_spawnattr_setsigmask(attr, &none) == 0 && posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK) == 0;
}

/* Starts the program with fd as its stdout; -1: it cannot be started. */
static pid_t py_spy_start(pid_t target, bool nonblocking, int fd)
{
    char number[24];
    char name[] = "py-spy", dump[] = "dump", pid[] = "--pid", fast[] = "--nonblocking";
    char *with[] = {name, dump, pid, number, fast, NULL};
    char *without[] = {name, dump, pid, number, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    pid_t child = -1;

    (void)snprintf(number, sizeof number, "%ld", (long)target);
    if (posix_spawn_file_actions_init(&files) != 0)
        return -1;
    if (posix_spawnattr_init(&attr) != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return -1;
    }
    if (!py_spy_prepare(&files, &attr, fd) ||
        posix_spawnp(&child, "py-spy", &files, &attr, nonblocking ? with : without, environ) != 0)
        child = -1;
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&files);
    return child;
}

/* Reads until the program closes its stdout; a text that is too long is read on and dropped. */
static cddp_status py_spy_read(int fd, int64_t deadline_ms, struct cdi_buf *out)
{
    char bytes[4096];
    size_t total = 0;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = deadline_ms - cdi_now_ms();
        cddp_status st;
        ssize_t n;

        if (left <= 0)
            return CDDP_E_TIMEOUT;
        if (poll(&p, 1, (int)left) <= 0)
            continue;
        n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return total > 0 ? CDDP_OK : CDDP_E_NOT_FOUND;
        for (ssize_t i = 0; i < n; i++)
            if (((unsigned char)bytes[i] < 0x20 && bytes[i] != '\n') || bytes[i] == 0x7F)
                bytes[i] = '?';
        if ((size_t)n > OUTPUT_MAX - total)
            n = (ssize_t)(OUTPUT_MAX - total);
        total += (size_t)n;
        st = cdi_buf_append(out, bytes, (size_t)n);
        if (st != CDDP_OK)
            return st;
    }
}

static cddp_status py_spy_run(pid_t target, bool nonblocking, uint32_t timeout_ms, struct cdi_buf *out)
{
    int64_t deadline_ms = cdi_now_ms() + timeout_ms;
    CDI_AUTOCLOSE int child_fd = -1; /* by a pidfd the signal reaches nobody else, whoever reaps the child */
    CDI_AUTOCLOSE int reader = -1;
    size_t before = out->len;
    int fds[2];
    cddp_status st;
    pid_t child;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return CDDP_E_SYSTEM;
    reader = fds[0];
    child = py_spy_start(target, nonblocking, fds[1]);
    (void)close(fds[1]);
    if (child < 0)
        return CDDP_E_NOT_FOUND;
    child_fd = (int)syscall(SYS_pidfd_open, child, 0);
    st = py_spy_read(reader, deadline_ms, out);
    if (st != CDDP_OK)
        out->len = before; /* what it has printed so far */
    /* It has said all, or may not say more. Without a pidfd it ends by itself, and the agent reaps it. */
    if (child_fd >= 0)
        (void)syscall(SYS_pidfd_send_signal, child_fd, SIGKILL, NULL, 0);
    while (waitpid(child, NULL, child_fd >= 0 ? 0 : WNOHANG) < 0 && errno == EINTR)
        ;
    return st;
}

cddp_status py_spy_dump(pid_t pid, uint32_t timeout_ms, struct cdi_buf *out)
{
    cddp_status st = py_spy_run(pid, true, timeout_ms, out);

    return st == CDDP_OK ? st : py_spy_run(pid, false, timeout_ms, out);
}
