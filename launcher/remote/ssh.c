/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/remote/ssh.h"

#include "common/clock.h"
#include "common/log.h"
#include "launcher/cluster/cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define SSH_FAILED 255 /* its own exit status; all others are the command's */
#define READ_SIZE 16384
#define LINE_MAX_BYTES (1u << 20) /* a longer line is cut */
#define QUEUE_MAX (1u << 20)      /* of output that is not read yet: then the hosts wait */
#define WRITE_MAX 4096            /* never blocks if poll reports room */
#define OTHERS_MS 60000           /* from the first failed host until the other hosts are ended, too */
#define KILL_MS 75000             /* and from then on, until their ssh is killed */
#define LEAVE_MS 5000             /* and from then on, until output that is not read is dropped */

struct stream {
    int fd; /* -1: it has ended */
    struct cdi_buf line;
};

struct remote {
    const char *name;
    pid_t pid;         /* 0: it has exited */
    int in;            /* -1: closed */
    struct cdi_buf to; /* frames to be written to `in` */
    struct stream out[2];
};

struct ssh_run {
    struct remote *v;
    uint32_t n, n_alive, n_streams;
    int signals;
    struct cdi_buf queue[2]; /* for our stdout and stderr */
    bool input;              /* our stdin is open */
    int status;              /* the first that was not 0 */
    int unwritten;           /* the errno of a failed write to our stdout or stderr; 0 */
    int64_t end_at_ms, kill_at_ms, leave_at_ms;
};

/* -------------------------------------------------------------------------------------------------------- start ----
 */

/* In the child. ssh keeps ignored signals ignored, so that only cddprun receives a terminal's Ctrl-C. */
static _Noreturn void become_ssh(const struct remote *r, const char *command, const int fds[3], const sigset_t *mask,
                                 pid_t parent)
{
    const char *const argv[] = {"ssh",   "-T",    "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
                                r->name, command, NULL};

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGQUIT, SIG_IGN);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            _exit(SSH_FAILED);
    if (getppid() == parent)
        (void)execvp("ssh", (char *const *)(uintptr_t)argv);
    cdi_log(CDI_LOG_ERROR, "NEAR-SSH", "cannot run ssh: %s", strerror(errno));
    _exit(SSH_FAILED);
}

static void close_pair(int fds[2])
{
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
}

static cddp_status start_ssh(struct remote *r, const char *command, const sigset_t *mask, struct cdi_error *err)
{
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    pid_t me = getpid();
    bool good = true;

    for (int i = 0; i < 3; i++)
        good = good && pipe2(pipes[i], O_CLOEXEC) == 0;
    r->pid = good ? fork() : -1;
    if (r->pid == 0) {
        const int fds[3] = {pipes[0][0], pipes[1][1], pipes[2][1]};

        become_ssh(r, command, fds, mask, me);
    }
    if (r->pid < 0) {
        (void)cdi_fail_errno(err, errno, "starting ssh");
        for (int i = 0; i < 3; i++)
            close_pair(pipes[i]);
        r->pid = 0;
        return CDDP_E_SYSTEM;
    }
    (void)close(pipes[0][0]);
    (void)close(pipes[1][1]);
    (void)close(pipes[2][1]);
    r->in = pipes[0][1];
    r->out[0].fd = pipes[1][0];
    r->out[1].fd = pipes[2][0];
    (void)fcntl(r->in, F_SETFL, O_NONBLOCK);
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------------------- output ----
 */

/* Queues the bytes of `line` up to its last newline, or all of them. */
static void queue_lines(struct ssh_run *s, int which, struct cdi_buf *line, bool all)
{
    const uint8_t *data = cdi_buf_data(line), *last = memrchr(data, '\n', line->len);
    size_t n = all ? line->len : last == NULL ? 0 : (size_t)(last - data) + 1;

    if (n > 0 && cdi_buf_append(&s->queue[which], data, n) == CDDP_OK && data[n - 1] != '\n')
        (void)cdi_buf_append(&s->queue[which], "\n", 1);
    cdi_buf_consume(line, n);
}

static void read_stream(struct ssh_run *s, int which, struct stream *st)
{
    uint8_t *room = cdi_buf_reserve(&st->line, READ_SIZE);
    ssize_t n = room == NULL ? -1 : read(st->fd, room, READ_SIZE);

    if (room == NULL) { /* a line without end */
        queue_lines(s, which, &st->line, true);
        return;
    }
    if (n < 0 && errno == EINTR)
        return;
    if (n > 0)
        cdi_buf_commit(&st->line, (size_t)n);
    queue_lines(s, which, &st->line, n <= 0);
    if (n <= 0) {
        (void)close(st->fd);
        st->fd = -1;
        s->n_streams--;
        cdi_buf_release(&st->line);
    }
}

static void ssh_begin_end(struct ssh_run *s, int64_t patience_ms);

static void ssh_send_frame(struct remote *r, const void *frame, size_t n);

/* The same as in agent.c on one node: a full disk costs the output, a closed pipe ends the job. */
static void ssh_on_unwritten(struct ssh_run *s, int which, int error)
{
    static const uint8_t end[2] = {HOSTS_SIGNAL, SIGTERM};
    const char *name = which == 0 ? "stdout" : "stderr";

    if (s->unwritten != 0)
        return;
    s->unwritten = error;
    if (error != EPIPE) {
        cdi_log(CDI_LOG_ERROR, "NEAR-UNWRITTEN",
                "cannot write to %s: %s; the job continues, but further output of its workers there is lost, and the "
                "exit status will not be 0",
                name, strerror(error));
        return;
    }
    cdi_log(CDI_LOG_ERROR, "NEAR-UNWRITTEN", "the reader of its output is gone (SIGPIPE); ending the job");
    if (s->status == 0)
        s->status = 128 + SIGPIPE;
    for (uint32_t i = 0; i < s->n; i++)
        ssh_send_frame(&s->v[i], end, sizeof end);
    ssh_begin_end(s, OTHERS_MS);
}

static void write_queue(struct ssh_run *s, int which)
{
    struct cdi_buf *q = &s->queue[which];
    ssize_t n = write(which + 1, cdi_buf_data(q), q->len < WRITE_MAX ? q->len : WRITE_MAX);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n < 0)
        ssh_on_unwritten(s, which, errno);
    cdi_buf_consume(q, n < 0 ? q->len : (size_t)n);
}

/* ----------------------------------------------------------------------------------------------------- commands ----
 */

static void close_in(struct remote *r)
{
    if (r->in >= 0)
        (void)close(r->in);
    r->in = -1;
    cdi_buf_release(&r->to);
}

static void ssh_send_frame(struct remote *r, const void *frame, size_t n)
{
    if (r->in >= 0 && cdi_buf_append(&r->to, frame, n) != CDDP_OK)
        close_in(r); /* the host does not read: the end of file ends its job */
}

static void write_remote(struct remote *r)
{
    ssize_t n = write(r->in, cdi_buf_data(&r->to), r->to.len);

    if (n > 0)
        cdi_buf_consume(&r->to, (size_t)n);
    else if (errno != EAGAIN && errno != EINTR)
        close_in(r);
}

/* Sends stdin to the host of rank 0. */
static void read_input(struct ssh_run *s)
{
    uint8_t frame[3 + HOSTS_DATA_MAX] = {HOSTS_DATA};
    static const uint8_t end[] = {HOSTS_END};
    ssize_t n = read(STDIN_FILENO, frame + 3, HOSTS_DATA_MAX);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        s->input = false;
        ssh_send_frame(&s->v[0], end, sizeof end);
        return;
    }
    frame[1] = (uint8_t)n;
    frame[2] = (uint8_t)(n >> 8);
    ssh_send_frame(&s->v[0], frame, 3 + (size_t)n);
}

static void ssh_begin_end(struct ssh_run *s, int64_t patience_ms)
{
    int64_t at = cdi_deadline_ms(cdi_now_ms(), patience_ms);

    if (at < s->end_at_ms)
        s->end_at_ms = at;
    if (s->kill_at_ms == CDI_NEVER_MS)
        s->kill_at_ms = cdi_deadline_ms(at, KILL_MS);
}

static void on_exit_of(struct ssh_run *s, struct remote *r, int status)
{
    r->pid = 0;
    s->n_alive--;
    close_in(r);
    if (status == 0)
        return;
    if (status == SSH_FAILED)
        cdi_log(CDI_LOG_ERROR, "NEAR-HOST", "the connection to %s failed (ssh's exit status 255); ending the job",
                r->name);
    if (s->status == 0)
        s->status = status == SSH_FAILED ? 1 : status;
    /* The hosts report a failure to each other. Only this process knows of a lost connection. */
    ssh_begin_end(s, status == SSH_FAILED ? 0 : OTHERS_MS);
}

static void ssh_reap(struct ssh_run *s)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->v[i].pid == pid)
                on_exit_of(s, &s->v[i], WIFSIGNALED(status) ? SSH_FAILED : WEXITSTATUS(status));
}

static void ssh_take_signal(struct ssh_run *s)
{
    struct signalfd_siginfo info;
    uint8_t frame[2] = {HOSTS_SIGNAL};

    if (read(s->signals, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    if (info.ssi_signo == SIGCHLD) {
        ssh_reap(s);
        return;
    }
    frame[1] = (uint8_t)info.ssi_signo;
    for (uint32_t i = 0; i < s->n; i++)
        ssh_send_frame(&s->v[i], frame, sizeof frame);
    if (info.ssi_signo != SIGUSR1 && info.ssi_signo != SIGUSR2)
        ssh_begin_end(s, OTHERS_MS);
}

/* Ends the job when its time is over: to a remote end, the end of file means SIGTERM. */
static void check_deadlines(struct ssh_run *s)
{
    int64_t now = cdi_now_ms();

    if (now >= s->end_at_ms) {
        for (uint32_t i = 0; i < s->n; i++)
            close_in(&s->v[i]);
        s->end_at_ms = CDI_NEVER_MS;
    }
    if (now < s->kill_at_ms)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->v[i].pid > 0)
            (void)kill(s->v[i].pid, SIGKILL);
    s->kill_at_ms = CDI_NEVER_MS;
    s->leave_at_ms = now + LEAVE_MS;
}

/* --------------------------------------------------------------------------------------------------------- loop ----
 */

static int wait_ms(const struct ssh_run *s)
{
    int64_t at = s->end_at_ms < s->kill_at_ms ? s->end_at_ms : s->kill_at_ms, now = cdi_now_ms();

    at = at < s->leave_at_ms ? at : s->leave_at_ms;
    if (at == CDI_NEVER_MS)
        return -1;
    return at <= now ? 0 : at - now > 1000 ? 1000 : (int)(at - now);
}

/* Sets the descriptors and events: signals, stdin, stdout, stderr, then three for each host. */
static void fill_polls(const struct ssh_run *s, struct pollfd *fds)
{
    bool full = s->queue[0].len >= QUEUE_MAX || s->queue[1].len >= QUEUE_MAX;
    bool takes = s->input && s->v[0].in >= 0 && s->v[0].to.len < HOSTS_DATA_MAX;

    fds[0] = (struct pollfd){.fd = s->signals, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = takes ? STDIN_FILENO : -1, .events = POLLIN};
    for (int i = 0; i < 2; i++)
        fds[2 + i] = (struct pollfd){.fd = s->queue[i].len > 0 ? i + 1 : -1, .events = POLLOUT};
    for (uint32_t i = 0; i < s->n; i++) {
        const struct remote *r = &s->v[i];

        fds[4 + 3 * i] = (struct pollfd){.fd = r->to.len > 0 ? r->in : -1, .events = POLLOUT};
        for (int k = 0; k < 2; k++)
            fds[5 + 3 * i + k] = (struct pollfd){.fd = full ? -1 : r->out[k].fd, .events = POLLIN};
    }
}

static void ssh_serve(struct ssh_run *s, const struct pollfd *fds)
{
    for (int i = 0; i < 2; i++)
        if (fds[2 + i].revents != 0)
            write_queue(s, i);
    for (uint32_t i = 0; i < s->n; i++) {
        if (fds[4 + 3 * i].revents != 0)
            write_remote(&s->v[i]);
        for (int k = 0; k < 2; k++)
            if (fds[5 + 3 * i + k].revents != 0)
                read_stream(s, k, &s->v[i].out[k]);
    }
    if (fds[1].revents != 0)
        read_input(s);
    if (fds[0].revents != 0)
        ssh_take_signal(s);
    check_deadlines(s);
}

static void ssh_run_loop(struct ssh_run *s, struct pollfd *fds)
{
    while (s->n_alive > 0 || s->n_streams > 0 || s->queue[0].len > 0 || s->queue[1].len > 0) {
        fill_polls(s, fds);
        if (poll(fds, 4 + 3 * (nfds_t)s->n, wait_ms(s)) >= 0)
            ssh_serve(s, fds);
        else if (errno != EINTR)
            return;
        if (cdi_now_ms() >= s->leave_at_ms)
            return;
    }
}

/* -------------------------------------------------------------------------------------------------------- start ----
 */

static uint16_t random_port(void)
{
    uint16_t v = 0;

    (void)getrandom(&v, sizeof v, 0);
    return (uint16_t)(CLUSTER_FIRST_PORT + v % CLUSTER_N_PORTS);
}

/* Does the remote cddprun get this variable, too? */
static bool is_exported(const struct options *o, const char *setting)
{
    static const char *const prefixes[] = {"PET_", "LOGLEVEL=", "PYTHON_EXEC=",
                                           "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT="};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(setting, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    for (size_t i = 0; i < o->n_exports; i++) {
        size_t n = strlen(o->exports[i]);

        if (strncmp(setting, o->exports[i], n) == 0 && setting[n] == '=')
            return true;
    }
    return false;
}

static char **choose_env(const struct options *o)
{
    size_t n = 0, all = 0;
    char **v;

    while (environ[all] != NULL)
        all++;
    v = calloc(all + 1, sizeof *v);
    for (size_t i = 0; v != NULL && i < all; i++)
        if (is_exported(o, environ[i]))
            v[n++] = environ[i];
    return v;
}

static cddp_status ssh_start_all(struct ssh_run *s, const struct hosts_job *job, struct cdi_error *err)
{
    sigset_t set, before;
    cddp_status st = CDDP_OK;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    for (size_t i = 0; i < 7; i++)
        (void)sigaddset(&set, (const int[]){SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}[i]);
    (void)sigprocmask(SIG_BLOCK, &set, &before);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (s->signals < 0)
        return cdi_fail_errno(err, errno, "signalfd");
    for (uint32_t i = 0; i < s->n && st == CDDP_OK; i++) {
        struct cdi_buf command;

        cdi_buf_init(&command, 0);
        st = hosts_command(&command, job, i);
        if (st == CDDP_OK)
            st = start_ssh(&s->v[i], (const char *)cdi_buf_data(&command), &before, err);
        else
            st = cdi_fail(err, st, "out of memory");
        cdi_buf_release(&command);
        s->n_alive += st == CDDP_OK;
        s->n_streams += st == CDDP_OK ? 2 : 0;
    }
    return st;
}

static cddp_status ssh_run_job(struct ssh_run *s, const struct hosts *hosts, const struct hosts_job *job,
                               struct cdi_error *err)
{
    struct pollfd *fds = calloc(4 + 3 * (size_t)hosts->n, sizeof *fds);
    cddp_status st;

    s->v = calloc(hosts->n, sizeof *s->v);
    if (fds == NULL || s->v == NULL) {
        free(fds);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    }
    s->n = hosts->n;
    cdi_buf_init(&s->queue[0], 0); /* reading stops at QUEUE_MAX */
    cdi_buf_init(&s->queue[1], 0);
    for (uint32_t i = 0; i < s->n; i++) {
        struct remote *r = &s->v[i];

        *r = (struct remote){.name = hosts->v[i].name, .in = -1, .out = {{.fd = -1}, {.fd = -1}}};
        cdi_buf_init(&r->to, QUEUE_MAX);
        cdi_buf_init(&r->out[0].line, LINE_MAX_BYTES);
        cdi_buf_init(&r->out[1].line, LINE_MAX_BYTES);
    }
    st = ssh_start_all(s, job, err);
    if (st != CDDP_OK) /* the end of file ends those that were started */
        ssh_begin_end(s, 0);
    ssh_run_loop(s, fds);
    free(fds);
    return st;
}

int ssh_run_hosts(const struct options *o, char **argv, struct cdi_error *err)
{
    struct ssh_run s = {.input = true,
                        .signals = -1,
                        .end_at_ms = CDI_NEVER_MS,
                        .kill_at_ms = CDI_NEVER_MS,
                        .leave_at_ms = CDI_NEVER_MS};
    struct hosts hosts = {.n = 0};
    char program[PATH_MAX] = "", *directory = get_current_dir_name(), **env = choose_env(o);
    struct hosts_job job = {.hosts = &hosts,
                            .flags = argv + 1,
                            .n_flags = (int)(o->command - (argv + 1)),
                            .command = o->command,
                            .env = env,
                            .terminal = isatty(STDOUT_FILENO) == 1,
                            .program = program,
                            .directory = directory,
                            .master_addr = o->master_addr};
    cddp_status st = hosts_parse(&hosts, o, err);
    int status = st == CDDP_OK ? 1 : 2;

    if (st == CDDP_OK &&
        (readlink("/proc/self/exe", program, sizeof program - 1) < 0 || directory == NULL || env == NULL))
        st = cdi_fail_errno(err, errno, "cannot find cddprun's path and directory");
    if (st == CDDP_OK) {
        if (job.n_flags > 0 && strcmp(argv[job.n_flags], "--") == 0)
            job.n_flags--;
        if (job.master_addr == NULL)
            job.master_addr = hosts_address(&hosts.v[0]);
        job.master_port = o->master_port > 0 ? (uint16_t)o->master_port : random_port();
        st = ssh_run_job(&s, &hosts, &job, err);
        status = st != CDDP_OK || (s.status == 0 && s.unwritten != 0) ? 1 : s.status;
    }
    for (uint32_t i = 0; i < s.n && s.v != NULL; i++) {
        close_in(&s.v[i]);
        cdi_buf_release(&s.v[i].out[0].line);
        cdi_buf_release(&s.v[i].out[1].line);
    }
    cdi_buf_release(&s.queue[0]);
    cdi_buf_release(&s.queue[1]);
    if (s.signals >= 0)
        (void)close(s.signals);
    free(s.v);
    free(hosts.v);
    free(directory);
    free(env);
    return status;
}
