/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/remote/remote_end.h"

#include "common/buf.h"
#include "common/clock.h"
#include "launcher/remote/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define INPUT_MAX (1u << 20) /* of stdin that rank 0 has not read yet */
#define READ_SIZE 16384
#define KILL_AFTER_MS 60000 /* longer than cddprun's own grace period: then it hangs */

struct remote_end {
    pid_t child;
    int signals, child_stdin; /* child_stdin -1: closed */
    struct cdi_buf in;        /* incomplete frames */
    struct cdi_buf data;      /* for the child's stdin */
    bool ended;               /* no more data will arrive: close its stdin when data is empty */
    bool gone;                /* the connection is gone */
    int64_t kill_at_ms;
};

static void remote_end_job(struct remote_end *f)
{
    f->gone = true;
    f->ended = true;
    f->kill_at_ms = cdi_deadline_ms(cdi_now_ms(), KILL_AFTER_MS);
    (void)kill(f->child, SIGTERM);
}

/* Handles one complete frame at the front of `in`; false: there is none. Invalid bytes end the job. */
static bool handle_frame(struct remote_end *f)
{
    const uint8_t *p = cdi_buf_data(&f->in);
    size_t len;

    if (f->in.len >= 2 && p[0] == HOSTS_SIGNAL) {
        (void)kill(f->child, p[1]);
        cdi_buf_consume(&f->in, 2);
        return true;
    }
    if (f->in.len >= 1 && p[0] == HOSTS_END) {
        f->ended = true;
        cdi_buf_consume(&f->in, 1);
        return true;
    }
    if (f->in.len < 3 || p[0] != HOSTS_DATA) {
        if (f->in.len > 0 && p[0] != HOSTS_DATA && p[0] != HOSTS_SIGNAL)
            remote_end_job(f);
        return false;
    }
    len = (size_t)p[1] | (size_t)p[2] << 8;
    if (f->in.len < 3 + len)
        return false;
    if (f->child_stdin >= 0 && cdi_buf_append(&f->data, p + 3, len) != CDDP_OK)
        remote_end_job(f);
    cdi_buf_consume(&f->in, 3 + len);
    return true;
}

static void read_launcher(struct remote_end *f)
{
    uint8_t *room = cdi_buf_reserve(&f->in, READ_SIZE);
    ssize_t n = room == NULL ? 0 : read(STDIN_FILENO, room, READ_SIZE); /* no room: the frame is invalid */

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        remote_end_job(f);
        return;
    }
    cdi_buf_commit(&f->in, (size_t)n);
    while (!f->gone && handle_frame(f))
        ;
}

static void write_child(struct remote_end *f, bool broken)
{
    ssize_t n = f->data.len == 0 ? 0 : write(f->child_stdin, cdi_buf_data(&f->data), f->data.len);

    if (n > 0)
        cdi_buf_consume(&f->data, (size_t)n);
    if (broken || (n < 0 && errno != EAGAIN && errno != EINTR) || (f->ended && f->data.len == 0)) {
        (void)close(f->child_stdin);
        f->child_stdin = -1;
        cdi_buf_consume(&f->data, f->data.len);
    }
}

/* Handles SIGCHLD, and forwards all other signals to the child. Returns its exit status if it has exited, or -1. */
static int remote_take_signal(struct remote_end *f)
{
    struct signalfd_siginfo info;
    int status;

    if (read(f->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return -1;
    if (info.ssi_signo != SIGCHLD) {
        (void)kill(f->child, (int)info.ssi_signo);
        return -1;
    }
    if (waitpid(f->child, &status, WNOHANG) != f->child)
        return -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static _Noreturn void relay(struct remote_end *f)
{
    for (;;) {
        bool room = !f->gone && f->data.len < INPUT_MAX;
        struct pollfd fds[3] = {
            {.fd = f->signals, .events = POLLIN},
            {.fd = f->gone ? -1 : STDIN_FILENO, .events = (short)(room ? POLLIN : 0)},
            {.fd = f->child_stdin, .events = (short)(f->data.len > 0 || f->ended ? POLLOUT : 0)},
        };
        int status = -1;

        if (f->gone && cdi_now_ms() >= f->kill_at_ms)
            (void)kill(f->child, SIGKILL);
        if (poll(fds, 3, f->gone ? 1000 : -1) < 0 && errno != EINTR)
            _exit(1);
        if (fds[0].revents != 0)
            status = remote_take_signal(f);
        if (status >= 0)
            _exit(status);
        if ((fds[1].revents & POLLIN) != 0)
            read_launcher(f);
        else if (fds[1].revents != 0)
            remote_end_job(f);
        if (f->child_stdin >= 0 && fds[2].revents != 0)
            write_child(f, (fds[2].revents & POLLERR) != 0);
    }
}

static cddp_status become_child(const int pipe_fds[2], const sigset_t *before, pid_t parent, struct cdi_error *err)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    if (dup2(pipe_fds[0], STDIN_FILENO) < 0)
        return cdi_fail_errno(err, errno, "stdin");
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    return CDDP_OK;
}

cddp_status remote_end_start(struct cdi_error *err)
{
    struct remote_end f = {.child = -1};
    int pipe_fds[2];
    sigset_t set, before;
    pid_t me = getpid();

    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return cdi_fail_errno(err, errno, "pipe");
    (void)sigemptyset(&set);
    for (size_t i = 0; i < 5; i++)
        (void)sigaddset(&set, (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT}[i]);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    f.child = fork();
    if (f.child < 0) {
        (void)cdi_fail_errno(err, errno, "fork");
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        (void)close(pipe_fds[0]);
        (void)close(pipe_fds[1]);
        return CDDP_E_SYSTEM;
    }
    if (f.child == 0)
        return become_child(pipe_fds, &before, me, err);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)close(pipe_fds[0]);
    f.child_stdin = pipe_fds[1];
    f.signals = signalfd(-1, &set, SFD_CLOEXEC);
    (void)fcntl(f.child_stdin, F_SETFL, O_NONBLOCK);
    cdi_buf_init(&f.in, 2 * READ_SIZE + 2 * (HOSTS_DATA_MAX + 3));
    cdi_buf_init(&f.data, INPUT_MAX + 0x10000 + 2 * READ_SIZE);
    relay(&f);
}
