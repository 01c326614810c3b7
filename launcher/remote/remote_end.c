/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/remote/remote_end.h"

#include "common/clock.h"
#include "launcher/process/guard.h"
#include "launcher/remote/hosts.h"
#include "protocol/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define READ_SIZE 16384
#define OUT_MAX (4u * READ_SIZE) /* bytes that ssh has not taken yet: then the job waits */
#define WRITE_MAX 4096           /* never blocks if poll reports room */
#define REST_MS 1000             /* for output after the job's end, if a process that nobody can kill holds the pipe */

struct remote_end {
    const struct options *opt;
    pid_t child;
    int signals, child_in, child_out; /* -1: closed */
    struct cdi_buf in;                /* incomplete frames */
    struct cdi_buf data;              /* for the child's stdin */
    struct cdi_buf out;               /* for ssh */
    bool no_data;                     /* none will arrive: close the child's stdin when data is empty */
    bool no_commands;                 /* the stdin of this process has ended */
    bool no_reader;                   /* the stdout has */
    bool ending;                      /* the child has a signal that ends the job */
    int status;                       /* the child's exit status; -1: it runs */
    int64_t leave_at_ms;
};

static void remote_kill(struct remote_end *f, int signal)
{
    f->ending = f->ending || (signal > 0 && (options_ending(f->opt) >> (signal - 1) & 1) != 0);
    (void)kill(f->child, signal);
}

/* The user's signal may have ended it already, and a second one would kill workers that are saving. */
static void remote_end_job(struct remote_end *f)
{
    f->no_commands = true;
    f->no_data = true;
    if (!f->ending)
        remote_kill(f, options_end_signal(f->opt));
}

static void remote_send(struct remote_end *f, enum hosts_frame type, const void *payload, size_t n)
{
    if (!f->no_reader && cdi_frame_put(&f->out, (uint16_t)type, payload, n) != CDDP_OK)
        f->no_reader = true;
}

static void take_frame(struct remote_end *f, const struct cdi_frame *frame)
{
    if (frame->type == HOSTS_SIGNAL && frame->len == 1)
        remote_kill(f, frame->payload[0]);
    else if (frame->type == HOSTS_INPUT && frame->len == 0)
        f->no_data = true;
    else if (frame->type == HOSTS_INPUT && f->child_in >= 0 &&
             cdi_buf_append(&f->data, frame->payload, frame->len) != CDDP_OK)
        remote_end_job(f);
}

static void read_launcher(struct remote_end *f)
{
    uint8_t *room = cdi_buf_reserve(&f->in, READ_SIZE);
    ssize_t n = room == NULL ? 0 : read(STDIN_FILENO, room, READ_SIZE); /* no room: the frame is invalid */
    struct cdi_frame frame;
    struct cdi_error err;
    cddp_status st = CDDP_OK;

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n > 0)
        cdi_buf_commit(&f->in, (size_t)n);
    while (n > 0 && (st = cdi_frame_next(&f->in, &frame, &err)) == CDDP_OK) {
        take_frame(f, &frame);
        cdi_buf_consume(&f->in, frame.size);
    }
    if (n <= 0 || st != CDDP_IN_PROGRESS)
        remote_end_job(f);
}

static void write_child(struct remote_end *f, bool broken)
{
    ssize_t n = f->data.len == 0 ? 0 : write(f->child_in, cdi_buf_data(&f->data), f->data.len);

    if (n > 0) {
        const uint8_t got[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};

        cdi_buf_consume(&f->data, (size_t)n);
        remote_send(f, HOSTS_INPUT_GOT, got, sizeof got);
    }
    if (broken || (n < 0 && errno != EAGAIN && errno != EINTR) || (f->no_data && f->data.len == 0)) {
        (void)close(f->child_in);
        f->child_in = -1;
        cdi_buf_consume(&f->data, f->data.len);
    }
}

static void read_child(struct remote_end *f)
{
    uint8_t bytes[READ_SIZE];
    ssize_t n = read(f->child_out, bytes, sizeof bytes);

    if (n > 0) {
        remote_send(f, HOSTS_OUTPUT, bytes, (size_t)n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        (void)close(f->child_out);
        f->child_out = -1;
    }
}

static void write_launcher(struct remote_end *f, bool broken)
{
    ssize_t n =
        broken ? -1 : write(STDOUT_FILENO, cdi_buf_data(&f->out), f->out.len < WRITE_MAX ? f->out.len : WRITE_MAX);

    if (n >= 0) {
        cdi_buf_consume(&f->out, (size_t)n);
    } else if (broken || (errno != EINTR && errno != EAGAIN)) {
        f->no_reader = true;
        remote_end_job(f);
    }
}

/* Handles SIGCHLD, and forwards all other signals to the child. */
static void remote_take_signal(struct remote_end *f)
{
    struct signalfd_siginfo info;
    int status;

    if (read(f->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    if (info.ssi_signo != SIGCHLD) {
        remote_kill(f, (int)info.ssi_signo);
    } else if (waitpid(f->child, &status, WNOHANG) == f->child) {
        f->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        f->leave_at_ms = cdi_deadline_ms(cdi_now_ms(), REST_MS);
    }
}

static void serve(struct remote_end *f, int wait_ms)
{
    bool writes = f->child_in >= 0 && (f->data.len > 0 || f->no_data);
    struct pollfd fds[5] = {
        {.fd = f->signals, .events = POLLIN},
        {.fd = f->no_commands || f->status >= 0 ? -1 : STDIN_FILENO, .events = POLLIN},
        {.fd = f->child_in, .events = (short)(writes ? POLLOUT : 0)},
        {.fd = f->out.len < OUT_MAX ? f->child_out : -1, .events = POLLIN},
        {.fd = f->no_reader ? -1 : STDOUT_FILENO, .events = (short)(f->out.len > 0 ? POLLOUT : 0)},
    };

    if (poll(fds, 5, wait_ms) < 0 && errno != EINTR)
        _exit(1);
    if (fds[0].revents != 0 && f->status < 0)
        remote_take_signal(f);
    if (fds[1].revents != 0)
        read_launcher(f);
    if (f->child_in >= 0 && fds[2].revents != 0)
        write_child(f, (fds[2].revents & POLLERR) != 0);
    if (fds[3].revents != 0)
        read_child(f);
    if (fds[4].revents != 0)
        write_launcher(f, (fds[4].revents & (POLLERR | POLLHUP)) != 0);
    if (f->no_reader)
        cdi_buf_consume(&f->out, f->out.len);
}

static _Noreturn void relay(struct remote_end *f)
{
    uint8_t status;

    if (cdi_buf_append(&f->out, HOSTS_HELLO, HOSTS_HELLO_LEN) != CDDP_OK)
        _exit(1);
    while (f->status < 0)
        serve(f, -1);
    while (f->child_out >= 0 && cdi_now_ms() < f->leave_at_ms)
        serve(f, REST_MS);
    status = (uint8_t)f->status;
    remote_send(f, HOSTS_STATUS, &status, 1);
    while (f->out.len > 0)
        serve(f, -1);
    _exit(f->status);
}

static cddp_status become_child(const struct options *o, int in[2], int out[2], const sigset_t *before, pid_t parent,
                                struct cdi_error *err)
{
    bool good;

    (void)prctl(PR_SET_PDEATHSIG, options_end_signal(o), 0, 0, 0);
    if (getppid() != parent)
        _exit(1);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    good = dup2(in[0], STDIN_FILENO) >= 0 && dup2(out[1], STDOUT_FILENO) >= 0;
    for (int i = 0; i < 2; i++) {
        (void)close(in[i]);
        (void)close(out[i]);
    }
    return good ? CDDP_OK : cdi_fail_errno(err, errno, "stdin and stdout");
}

cddp_status remote_end_start(const struct options *o, struct cdi_error *err)
{
    struct remote_end f = {.opt = o, .child = -1, .status = -1};
    int in[2], out[2];
    sigset_t set, before;
    pid_t me = getpid();

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        return cdi_fail_errno(err, errno, "pipe");
    guard_signals(options_ending(o), &set);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    f.signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (f.signals < 0)
        return cdi_fail_errno(err, errno, "signalfd");
    f.child = fork();
    if (f.child < 0)
        return cdi_fail_errno(err, errno, "fork");
    if (f.child == 0) {
        (void)close(f.signals);
        return become_child(o, in, out, &before, me, err);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)close(in[0]);
    (void)close(out[1]);
    f.child_in = in[1];
    f.child_out = out[0];
    (void)fcntl(f.child_in, F_SETFL, O_NONBLOCK);
    cdi_buf_init(&f.in, 2 * READ_SIZE + 2 * (HOSTS_DATA_MAX + CDI_FRAME_HEADER));
    cdi_buf_init(&f.data, 2 * HOSTS_WINDOW);
    cdi_buf_init(&f.out, 4 * OUT_MAX);
    relay(&f);
}
