/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/py_spy.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/visible.h"
#include "launcher/process/tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "py-spy"
#define TIMEOUT_MS 2000
#define OUTPUT_MAX (4 << 20)
#define TRIES 3 /* its frames may change while they are read */

static bool py_spy_prepare(posix_spawn_file_actions_t *files, posix_spawnattr_t *attr, int fd)
{
    sigset_t none;

    (void)sigemptyset(&none);
    return posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0) == 0 &&
           posix_spawn_file_actions_adddup2(files, fd, STDOUT_FILENO) == 0 &&
           posix_spawn_file_actions_adddup2(files, fd, STDERR_FILENO) == 0 &&
           posix_spawnattr_setsigmask(attr, &none) == 0 && posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK) == 0;
}

/* Writes the path of the program beside cddprun, where pip installs both; otherwise its name, for PATH. */
static void py_spy_find(char program[PATH_MAX])
{
    const ssize_t n = readlink("/proc/self/exe", program, PATH_MAX - sizeof PROGRAM);
    char *slash;

    program[n < 0 ? 0 : n] = '\0';
    slash = strrchr(program, '/');
    if (slash != NULL) {
        memcpy(slash + 1, PROGRAM, sizeof PROGRAM);
        if (access(program, X_OK) == 0)
            return;
    }
    memcpy(program, PROGRAM, sizeof PROGRAM);
}

/* Starts the program with fd as its stdout and stderr. Returns an errno. */
static int py_spy_start(pid_t target, int fd, pid_t *child)
{
    char number[24], program[PATH_MAX];
    char name[] = PROGRAM, dump[] = "dump", pid[] = "--pid", running[] = "--nonblocking", json[] = "--json";
    char *argv[] = {name, dump, pid, number, running, json, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    int rc;

    (void)snprintf(number, sizeof number, "%ld", (long)target);
    py_spy_find(program);
    if (posix_spawn_file_actions_init(&files) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&attr) != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    rc = py_spy_prepare(&files, &attr, fd) ? posix_spawnp(child, program, &files, &attr, argv, environ) : ENOMEM;
    (void)posix_spawnattr_destroy(&attr);
    (void)posix_spawn_file_actions_destroy(&files);
    return rc;
}

/* Reads until the program closes its stdout and stderr. */
static cddp_status py_spy_read(int fd, int64_t deadline_ms, struct cdi_buf *out)
{
    char bytes[4096];

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
            return CDDP_OK;
        st = cdi_buf_append(out, bytes, (size_t)n);
        if (st != CDDP_OK)
            return st;
    }
}

/* Would it run, but had a processor for less than half of this time? */
static bool py_spy_is_starved(pid_t child, uint32_t ms)
{
    char path[64], text[64], name[TASK_NAME], state;
    CDI_AUTOCLOSE int fd = -1;
    ssize_t n;

    (void)snprintf(path, sizeof path, "/proc/%ld/schedstat", (long)child);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0 || !task_look(child, child, name, &state) || state != 'R')
        return false;
    text[n] = '\0';
    return strtoull(text, NULL, 10) / 1000000 < ms / 2; /* the first number: ns on a processor */
}

/* Explains why the program, which still runs, has not ended within the limit. */
static cddp_status py_spy_late(pid_t child, uint32_t timeout_ms, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_TIMEOUT, "py-spy did not end in %.1f s%s", timeout_ms / 1000.0,
                    py_spy_is_starved(child, timeout_ms) ? ", since this node's processors are busy" : "");
}

static cddp_status py_spy_run(pid_t target, uint32_t timeout_ms, int64_t deadline_ms, struct cdi_buf *out,
                              struct cdi_error *err)
{
    CDI_AUTOCLOSE int child_fd = -1; /* by a pidfd the signal reaches nobody else, whoever reaps the child */
    CDI_AUTOCLOSE int reader = -1;
    int fds[2], rc;
    cddp_status st;
    pid_t child;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return cdi_fail_errno(err, errno, "pipe");
    reader = fds[0];
    rc = py_spy_start(target, fds[1], &child);
    (void)close(fds[1]);
    if (rc == ENOENT)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "py-spy is missing: install it with `pip install py-spy`");
    if (rc != 0)
        return cdi_fail_errno(err, rc, "cannot start py-spy");
    child_fd = (int)syscall(SYS_pidfd_open, child, 0);
    st = py_spy_read(reader, deadline_ms, out);
    if (st == CDDP_E_TIMEOUT)
        st = py_spy_late(child, timeout_ms, err);
    else if (st != CDDP_OK)
        (void)cdi_fail(err, st, "no room for what py-spy prints");
    /* It has said all, or may not say more. Without a pidfd it ends by itself, and the agent reaps it. */
    if (child_fd >= 0)
        (void)syscall(SYS_pidfd_send_signal, child_fd, SIGKILL, NULL, 0);
    while (waitpid(child, NULL, child_fd >= 0 ? 0 : WNOHANG) < 0 && errno == EINTR)
        ;
    return st;
}

/* Explains by what py-spy has printed why it has no stacks. */
static cddp_status py_spy_failed(const char *text, struct cdi_error *err)
{
    const char *why = strstr(text, "Error: ");
    char line[200];

    if (strstr(text, "ermission denied") != NULL || strstr(text, "ermission Denied") != NULL)
        return cdi_fail(
            err, CDDP_E_DENIED,
            "py-spy may not read its memory: see kernel.yama.ptrace_scope, or give the container SYS_PTRACE");
    why = why == NULL ? text : why + strlen("Error: ");
    (void)cdi_visible_line(line, sizeof line, why, strcspn(why, "\n"));
    return cdi_fail(err, CDDP_E_PROTOCOL, "py-spy: %s", line[0] != '\0' ? line : "it has printed nothing");
}

/* The JSON begins at the start of a line; warnings may stand before it. */
static cddp_status py_spy_parse(struct cdi_buf *buf, pid_t pid, const struct python_stack_limits *limits,
                                struct python_stacks *out, struct cdi_error *err)
{
    const char *text, *json;

    if (cdi_buf_append(buf, "", 1) != CDDP_OK)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    text = (const char *)cdi_buf_data(buf);
    json = text[0] == '[' ? text : strstr(text, "\n[");
    if (json == NULL)
        return py_spy_failed(text, err);
    return python_stacks_parse(json, strlen(json), pid, limits, out, err);
}

/*
 * Only with --nonblocking: py-spy otherwise stops the process, which stays stopped if py-spy is killed meanwhile.
 */
cddp_status py_spy_collect(pid_t pid, const struct python_stack_limits *limits, struct python_stacks *out,
                           struct cdi_error *err)
{
    const uint32_t timeout_ms = limits == NULL || limits->timeout_ms == 0 ? TIMEOUT_MS : limits->timeout_ms;
    const int64_t deadline_ms = cdi_now_ms() + timeout_ms;
    cddp_status st = CDDP_E_PROTOCOL;
    struct cdi_buf buf;

    *out = (struct python_stacks){0};
    if (tasks_are_stuck(pid)) /* py-spy could not be killed, either */
        return cdi_fail(err, CDDP_E_DENIED, "a thread of it is in D state, and its memory may be locked");
    for (int i = 0; st == CDDP_E_PROTOCOL && i < TRIES && (i == 0 || cdi_now_ms() < deadline_ms); i++) {
        cdi_buf_init(&buf, OUTPUT_MAX);
        st = py_spy_run(pid, timeout_ms, deadline_ms, &buf, err);
        if (st == CDDP_OK)
            st = py_spy_parse(&buf, pid, limits, out, err);
        cdi_buf_release(&buf);
    }
    return st;
}
