/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/remote/ssh.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/time_limits.h"
#include "launcher/cluster/cluster.h"
#include "launcher/process/guard.h"
#include "protocol/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define SSH_FAILED 255 /* its own exit status; others are the remote shell's */
#define READ_SIZE 16384
#define LINE_MAX_BYTES (1u << 20) /* a longer line is cut */
#define QUEUE_MAX (1u << 20)      /* of output that is not read yet: then the hosts wait */
#define WRITE_MAX 4096            /* never blocks if poll reports room */
#define TO_MAX (16u << 20)        /* the script, whose words the kernel limits to a quarter of this, and frames */
#define STARTING_MAX 8            /* hosts at a time: from the 10th on, sshd refuses some (MaxStartups) */
#define RETRY_MS 1000             /* from the first failures to the second tries */
#define TERMINAL_MS 500           /* between two looks of a background job, which may have got the terminal */
#define FILES_BASE 32             /* open files without hosts, with reserve */
#define SIGNAL_MS 200             /* for a signal that another process got at the same moment */
#define FLUSH_MS 1000             /* for signals on their way to ssh, before this process is stopped */

enum remote_state { REMOTE_WAITING, REMOTE_STARTING, REMOTE_UP, REMOTE_OVER };

struct remote {
    const char *name;
    enum remote_state state;
    unsigned tries;
    bool unwanted; /* its ssh was killed */
    pid_t pid;     /* of its ssh */
    int in;        /* -1: closed */
    int out[2];    /* its stdout and stderr */
    int status;    /* the exit status that remote_end.c has sent; -1: none yet */
    size_t window; /* bytes of stdin that may be sent */
    struct cdi_buf to, from;
    struct cdi_buf lines[2]; /* incomplete lines for our stdout and stderr */
};

struct ssh_run {
    const struct options *opt;
    const struct hosts_job *job;
    const char **argv; /* ssh's, of which argc are the same for all hosts */
    char *words;       /* of --ssh_args, for argv */
    size_t argc;
    struct guard_link link;
    struct remote *v;
    uint32_t n, n_up, n_over, n_starting;
    int children;            /* tells of SIGCHLD */
    struct cdi_buf queue[2]; /* for our stdout and stderr */
    bool input;              /* our stdin is open */
    int status;              /* the first that was not 0 */
    int unwritten;           /* the errno of a failed write to our stdout or stderr; 0 */
    bool unread;             /* some output was dropped */
    int64_t unread_at_ms[2]; /* when output of a job that ends is dropped, since nobody reads it */
    bool ending;
    int signal;            /* the first that ends the job; 0 */
    int64_t start_at_ms;   /* not before it */
    int64_t nudge_at_ms;   /* hosts that have not ended by then get a signal */
    int64_t give_up_at_ms; /* and are left alone from then on */
    int64_t stop_by_ms;    /* TSTP was received: stop as soon as the hosts have it */
};

/* -------------------------------------------------------------------------------------------------------- start ----
 */

/*
 * ssh's arguments: --ssh_args first, since ssh takes the first value of an option. A shared connection (ControlMaster)
 * that ssh would leave for the user's other commands would not outlive cddprun.
 */
static cddp_status make_argv(struct ssh_run *s, struct cdi_error *err)
{
    static const char *const own[] = {"-oServerAliveInterval=5", "-oServerAliveCountMax=3", "-oControlMaster=no"};
    const char *args = s->opt->ssh_args == NULL ? "" : s->opt->ssh_args;
    char *word, *rest = NULL;

    s->words = strdup(args);
    s->argv = calloc(strlen(args) / 2 + 10, sizeof *s->argv);
    if (s->words == NULL || s->argv == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    s->argv[s->argc++] = "ssh";
    s->argv[s->argc++] = "-T";
    for (word = strtok_r(s->words, " \t\n", &rest); word != NULL; word = strtok_r(NULL, " \t\n", &rest))
        s->argv[s->argc++] = word;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        s->argv[s->argc++] = own[i];
    return CDDP_OK;
}

/*
 * In the child. Signals are for cddprun, which forwards them: the guard's agent ignores them, and so does ssh, which
 * keeps ignored ones. A first try asks no questions; the second one may, since only one host at a time has it.
 */
static _Noreturn void become_ssh(struct ssh_run *s, const struct remote *r, const int fds[3], pid_t parent)
{
    static const int own_signals[] = {SIGPIPE, SIGTTIN, SIGTTOU, SIGXFSZ};
    sigset_t none;

    if (r->tries == 1)
        s->argv[s->argc++] = "-oBatchMode=yes";
    s->argv[s->argc++] = r->name;
    s->argv[s->argc++] = "exec /bin/sh -s";
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    for (size_t i = 0; i < sizeof own_signals / sizeof own_signals[0]; i++)
        if ((s->link.ignored >> (own_signals[i] - 1) & 1) == 0)
            (void)signal(own_signals[i], SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (int i = 0; i < 3; i++)
        if (dup2(fds[i], i) < 0)
            _exit(SSH_FAILED);
    if (getppid() == parent)
        (void)execvp("ssh", (char *const *)(uintptr_t)s->argv);
    cdi_log(CDI_LOG_ERROR, "NEAR-SSH", "cannot run ssh: %s", strerror(errno));
    _exit(SSH_FAILED - 1);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

static cddp_status start_ssh(struct ssh_run *s, struct remote *r, struct cdi_error *err)
{
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    pid_t me = getpid();
    bool good = true;

    for (int i = 0; i < 3; i++)
        good = good && pipe2(pipes[i], O_CLOEXEC) == 0;
    r->tries++;
    r->pid = good ? fork() : -1;
    if (r->pid == 0) {
        const int fds[3] = {pipes[0][0], pipes[1][1], pipes[2][1]};

        become_ssh(s, r, fds, me);
    }
    if (r->pid < 0) {
        (void)cdi_fail_errno(err, errno, "starting ssh");
        for (int i = 0; i < 6; i++)
            close_fd(&pipes[i / 2][i % 2]);
        return CDDP_E_SYSTEM;
    }
    close_fd(&pipes[0][0]);
    close_fd(&pipes[1][1]);
    close_fd(&pipes[2][1]);
    r->in = pipes[0][1];
    r->out[0] = pipes[1][0];
    r->out[1] = pipes[2][0];
    for (int i = 0; i < 3; i++)
        (void)fcntl(i < 2 ? r->out[i] : r->in, F_SETFL, O_NONBLOCK);
    r->state = REMOTE_STARTING;
    s->n_starting++;
    return CDDP_OK;
}

/* Starts the hosts that wait, at most STARTING_MAX at a time; those that have failed once one by one, after all others.
 */
static cddp_status start_waiting(struct ssh_run *s, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (unsigned tries = 0; tries < 2; tries++)
        for (uint32_t i = 0; i < s->n && st == CDDP_OK && !s->ending; i++) {
            struct remote *r = &s->v[i];

            if (r->state != REMOTE_WAITING || r->tries != tries)
                continue;
            if (s->n_starting >= (tries == 0 ? STARTING_MAX : 1) || (tries > 0 && cdi_now_ms() < s->start_at_ms))
                return CDDP_OK;
            st = hosts_script(&r->to, s->job, i);
            st = st == CDDP_OK ? start_ssh(s, r, err) : cdi_fail(err, st, "out of memory");
        }
    return st;
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

static void add_output(struct ssh_run *s, struct remote *r, int which, const void *bytes, size_t n)
{
    /* ssh repeats on a second try what it printed on the first one. */
    bool held = which == 1 && r->state == REMOTE_STARTING && r->tries == 1;

    if (cdi_buf_append(&r->lines[which], bytes, n) != CDDP_OK) { /* a line without end */
        queue_lines(s, which, &r->lines[which], true);
        (void)cdi_buf_append(&r->lines[which], bytes, n);
    }
    if (!held)
        queue_lines(s, which, &r->lines[which], false);
}

static void ssh_begin_end(struct ssh_run *s, int64_t patience_ms);
static void ssh_end_all(struct ssh_run *s);

/* The same as in agent.c on one node: a full disk costs the output, a closed pipe ends the job. */
static void ssh_on_unwritten(struct ssh_run *s, int which, int error)
{
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
    ssh_end_all(s);
    ssh_begin_end(s, options_grace_ms(s->opt) + 1000 * CDI_LIMIT_ALL_HOSTS_S);
}

/*
 * From the end of the job on, a reader that does not read is waited for as long as workers are; after that, no more
 * until it reads again.
 */
static void write_queue(struct ssh_run *s, int which, bool room)
{
    struct cdi_buf *q = &s->queue[which];
    ssize_t n = room && q->len > 0 ? write(which + 1, cdi_buf_data(q), q->len < WRITE_MAX ? q->len : WRITE_MAX) : 0;

    if (n < 0 && errno != EINTR && errno != EAGAIN) {
        ssh_on_unwritten(s, which, errno);
        cdi_buf_consume(q, q->len);
    }
    if (n > 0)
        cdi_buf_consume(q, (size_t)n);
    if (n > 0 || !s->ending || (q->len == 0 && !s->unread)) {
        s->unread_at_ms[which] = cdi_deadline_ms(cdi_now_ms(), options_grace_ms(s->opt) > 1000 * CDI_LIMIT_READER_S
                                                                   ? options_grace_ms(s->opt)
                                                                   : 1000 * CDI_LIMIT_READER_S);
    } else if (q->len > 0 && cdi_now_ms() >= s->unread_at_ms[which]) {
        if (!s->unread)
            cdi_log(CDI_LOG_ERROR, "NEAR-UNREAD",
                    "its output is not being read: the last output of the workers is lost");
        s->unread = true;
        cdi_buf_consume(q, q->len);
    }
}

/* ------------------------------------------------------------------------------------------------------- frames ----
 */

static void close_in(struct remote *r)
{
    close_fd(&r->in);
    cdi_buf_release(&r->to);
}

static void ssh_send_frame(struct remote *r, enum hosts_frame type, const void *payload, size_t n)
{
    if (r->in >= 0 && cdi_frame_put(&r->to, (uint16_t)type, payload, n) != CDDP_OK)
        close_in(r); /* the host does not read: the end of file ends its job */
}

/* A host that is not up yet has no job that a signal could be for. */
static void ssh_signal_all(struct ssh_run *s, int signal)
{
    const uint8_t number = (uint8_t)signal;

    for (uint32_t i = 0; i < s->n; i++)
        if (s->v[i].state == REMOTE_UP)
            ssh_send_frame(&s->v[i], HOSTS_SIGNAL, &number, 1);
}

/* Unless the user's signal has: a second one would kill workers that are saving. */
static void ssh_end_all(struct ssh_run *s)
{
    if (s->signal == 0)
        ssh_signal_all(s, options_end_signal(s->opt));
}

static void write_remote(struct remote *r)
{
    ssize_t n = write(r->in, cdi_buf_data(&r->to), r->to.len);

    if (n > 0)
        cdi_buf_consume(&r->to, (size_t)n);
    else if (errno != EAGAIN && errno != EINTR)
        close_in(r);
}

/* Bytes before HOSTS_HELLO are from the login shell, and shown. */
static bool is_up(struct ssh_run *s, struct remote *r)
{
    const uint8_t *bytes = cdi_buf_data(&r->from), *at = memmem(bytes, r->from.len, HOSTS_HELLO, HOSTS_HELLO_LEN);
    size_t n = at != NULL ? (size_t)(at - bytes) : r->from.len < HOSTS_HELLO_LEN ? 0 : r->from.len - HOSTS_HELLO_LEN;

    add_output(s, r, 0, bytes, n);
    cdi_buf_consume(&r->from, n + (at == NULL ? 0 : HOSTS_HELLO_LEN));
    if (at == NULL)
        return false;
    r->state = REMOTE_UP;
    r->window = HOSTS_WINDOW;
    s->n_starting--;
    s->n_up++;
    return true;
}

static void take_frame(struct ssh_run *s, struct remote *r, const struct cdi_frame *f)
{
    if (f->type == HOSTS_OUTPUT)
        add_output(s, r, 0, f->payload, f->len);
    else if (f->type == HOSTS_INPUT_GOT && f->len == 4)
        r->window += (size_t)(f->payload[0] | f->payload[1] << 8 | f->payload[2] << 16);
    else if (f->type == HOSTS_STATUS && f->len == 1)
        r->status = f->payload[0];
}

/* Returns false if there is nothing to read now, or no more. */
static bool read_remote(struct ssh_run *s, struct remote *r, int which)
{
    uint8_t bytes[READ_SIZE];
    ssize_t n = read(r->out[which], bytes, sizeof bytes);
    struct cdi_frame frame;
    struct cdi_error err;

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        close_fd(&r->out[which]);
    if (n <= 0)
        return false;
    if (which == 1) {
        add_output(s, r, 1, bytes, (size_t)n);
        return true;
    }
    if (cdi_buf_append(&r->from, bytes, (size_t)n) != CDDP_OK)
        close_fd(&r->out[which]); /* its frames are none */
    if (r->state == REMOTE_STARTING && !is_up(s, r))
        return true;
    while (cdi_frame_next(&r->from, &frame, &err) == CDDP_OK) {
        take_frame(s, r, &frame);
        cdi_buf_consume(&r->from, frame.size);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------- stdin ----
 */

/* May this process read its stdin? From a terminal only as its foreground job: others would be stopped (SIGTTIN). */
static bool has_stdin(void)
{
    pid_t group = tcgetpgrp(STDIN_FILENO);

    return group < 0 || group == getpgrp();
}

/* The number of hosts that get stdin. The first has rank 0. */
static uint32_t n_readers(const struct ssh_run *s)
{
    return s->opt->stdin_to == OPTIONS_STDIN_ALL ? s->n : 1;
}

/* Not before all hosts are up: until then ssh may have questions. */
static bool wants_stdin(const struct ssh_run *s)
{
    bool room = s->input && s->n_up == s->n && s->n_over < s->n;

    for (uint32_t i = 0; room && i < n_readers(s); i++)
        room = s->v[i].state == REMOTE_OVER ? n_readers(s) > 1 : s->v[i].window >= HOSTS_DATA_MAX;
    return room;
}

static void read_stdin(struct ssh_run *s)
{
    uint8_t bytes[HOSTS_DATA_MAX];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);

    if (n < 0 && (errno == EINTR || errno == EAGAIN || !has_stdin()))
        return;
    s->input = n > 0;
    n = n > 0 ? n : 0;
    for (uint32_t i = 0; i < n_readers(s); i++) {
        ssh_send_frame(&s->v[i], HOSTS_INPUT, bytes, (size_t)n);
        s->v[i].window -= (size_t)n;
    }
}

/* ------------------------------------------------------------------------------------------------------- the end ----
 */

/* The hosts must have ended after this time; the workers there have their own, in each cddprun. */
static void ssh_begin_end(struct ssh_run *s, int64_t patience_ms)
{
    int64_t at = cdi_deadline_ms(cdi_now_ms(), patience_ms);

    s->ending = true;
    if (at < s->give_up_at_ms)
        s->give_up_at_ms = at;
    if (s->n_up == s->n)
        return;
    /* No worker runs yet, since a host is missing. It will not be asked for again, and a question of ssh is over. */
    for (uint32_t i = 0; i < s->n; i++) {
        struct remote *r = &s->v[i];

        if (r->state == REMOTE_STARTING) {
            r->unwanted = true;
            close_in(r);
            if (r->pid > 0)
                (void)kill(r->pid, SIGKILL);
        } else if (r->state == REMOTE_WAITING) {
            r->state = REMOTE_OVER;
            s->n_over++;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- signals ----
 */

static void tell_guard(const struct ssh_run *s, char word)
{
    (void)send(s->link.fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void on_ending_signal(struct ssh_run *s, int signal)
{
    bool second = s->signal != 0 && (signal == SIGINT || signal == SIGTERM);

    tell_guard(s, GUARD_GOT_SIGNAL);
    s->signal = s->signal == 0 ? signal : s->signal;
    if (s->n_up < s->n && s->status == 0)
        s->status = 128 + signal;
    ssh_signal_all(s, signal);
    ssh_begin_end(s, 1000 * CDI_LIMIT_ALL_HOSTS_S + (second ? 0 : options_grace_ms(s->opt)));
}

/* Signals come from the guard, as in agent.c. on_ssh_exit() may have taken those that poll reported. */
static void take_signals(struct ssh_run *s)
{
    unsigned char signals[16];
    ssize_t n = recv(s->link.fd, signals, sizeof signals, MSG_DONTWAIT);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        guard_is_gone(&s->link);
    for (ssize_t i = 0; i < n; i++) {
        s->stop_by_ms = signals[i] == SIGTSTP   ? cdi_deadline_ms(cdi_now_ms(), FLUSH_MS)
                        : signals[i] == SIGCONT ? CDI_NEVER_MS
                                                : s->stop_by_ms;
        if ((options_ending(s->opt) >> (signals[i] - 1) & 1) != 0)
            on_ending_signal(s, signals[i]);
        else if (signals[i] != SIGWINCH)
            ssh_signal_all(s, signals[i]);
    }
}

static void check_stop(struct ssh_run *s)
{
    bool sent = true;

    if (s->stop_by_ms == CDI_NEVER_MS)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        sent = sent && s->v[i].to.len == 0;
    if (!sent && cdi_now_ms() < s->stop_by_ms)
        return;
    s->stop_by_ms = CDI_NEVER_MS;
    tell_guard(s, GUARD_STOPPED);
}

/* ------------------------------------------------------------------------------------------------------- exits ----
 */

/* Logs why a host has no exit status. Returns whether it is started again. */
static bool has_second_try(struct ssh_run *s, struct remote *r, int status)
{
    const char *at = hosts_address(&s->job->hosts->v[r - s->v]);

    if (r->state == REMOTE_STARTING && status == SSH_FAILED && r->tries == 1 && !s->ending) {
        cdi_log(CDI_LOG_INFO, "NEAR-AGAIN", "the connection to %s failed (ssh's exit status 255); trying again",
                r->name);
        s->start_at_ms = cdi_deadline_ms(cdi_now_ms(), RETRY_MS);
        return true;
    }
    if (r->state == REMOTE_UP || status == SSH_FAILED)
        cdi_log(CDI_LOG_ERROR, "NEAR-HOST", "the connection to %s failed (ssh's exit status %d); ending the job",
                r->name, status);
    else if (status != SSH_FAILED - 1)
        cdi_log(CDI_LOG_ERROR, "NEAR-START",
                "cddprun did not start on %s (exit status %d); '%s' and the directory '%s' must be there, too", at,
                status, s->job->program, s->job->directory);
    return false;
}

static void on_ssh_exit(struct ssh_run *s, struct remote *r, int status)
{
    struct pollfd link = {.fd = s->link.fd, .events = POLLIN};
    bool failed = false, again = false;

    for (int i = 0; i < 2; i++)
        while (r->out[i] >= 0 && read_remote(s, r, i))
            ;
    r->pid = 0;
    /* A Ctrl-C at a question of ssh ends ssh, too, which may be quicker than the guard. */
    if (r->state == REMOTE_STARTING && r->tries > 1 && poll(&link, 1, SIGNAL_MS) > 0)
        take_signals(s);
    if (r->status < 0 && !r->unwanted)
        failed = !(again = has_second_try(s, r, status));
    s->n_starting -= r->state == REMOTE_STARTING;
    r->state = again ? REMOTE_WAITING : REMOTE_OVER;
    s->n_over += !again;
    for (int i = 0; i < 2; i++) {
        close_fd(&r->out[i]);
        if (!again)
            queue_lines(s, i, &r->lines[i], true);
        cdi_buf_release(&r->lines[i]);
    }
    close_in(r);
    cdi_buf_release(&r->from);
    if (r->status <= 0 && !failed)
        return;
    /* A host that learned of the end from another one, before it got our signal, has status 1. */
    if (s->status == 0 || (s->status == 1 && s->signal != 0 && r->status == 128 + s->signal))
        s->status = failed ? 1 : r->status;
    /* The hosts tell each other of a failure. Only this process knows of a lost connection. */
    if (failed || s->n_up < s->n)
        ssh_end_all(s);
    else if (s->nudge_at_ms == CDI_NEVER_MS)
        s->nudge_at_ms = cdi_deadline_ms(cdi_now_ms(), options_grace_ms(s->opt) + 1000 * CDI_LIMIT_OTHER_HOSTS_S);
    ssh_begin_end(s, 2 * options_grace_ms(s->opt) + 1000 * CDI_LIMIT_OTHER_HOSTS_S + 1000 * CDI_LIMIT_ALL_HOSTS_S);
}

static void ssh_reap(struct ssh_run *s)
{
    struct signalfd_siginfo info;
    int status;
    pid_t pid;

    if (read(s->children, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->v[i].pid == pid)
                on_ssh_exit(s, &s->v[i], WIFSIGNALED(status) ? SSH_FAILED : WEXITSTATUS(status));
}

/* --------------------------------------------------------------------------------------------------------- loop ----
 */

static int wait_ms(const struct ssh_run *s)
{
    int64_t now = cdi_now_ms(), at = s->give_up_at_ms < s->stop_by_ms ? s->give_up_at_ms : s->stop_by_ms;

    if (s->nudge_at_ms < at)
        at = s->nudge_at_ms;
    for (int i = 0; i < 2; i++)
        if (s->ending && s->queue[i].len > 0 && s->unread_at_ms[i] < at)
            at = s->unread_at_ms[i];
    if (s->start_at_ms > now && s->start_at_ms < at)
        at = s->start_at_ms;
    if (wants_stdin(s) && !has_stdin() && at > now + TERMINAL_MS)
        at = now + TERMINAL_MS;
    if (at == CDI_NEVER_MS)
        return -1;
    return at <= now ? 0 : at - now > INT_MAX ? INT_MAX : (int)(at - now);
}

/* Sets the descriptors and events: signals, children, stdin, stdout, stderr, then three for each host. */
static void fill_polls(const struct ssh_run *s, struct pollfd *fds)
{
    fds[0] = (struct pollfd){.fd = s->link.fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = s->children, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = wants_stdin(s) && has_stdin() ? STDIN_FILENO : -1, .events = POLLIN};
    for (int i = 0; i < 2; i++)
        fds[3 + i] = (struct pollfd){.fd = s->queue[i].len > 0 ? i + 1 : -1, .events = POLLOUT};
    for (uint32_t i = 0; i < s->n; i++) {
        const struct remote *r = &s->v[i];

        fds[5 + 3 * i] = (struct pollfd){.fd = r->to.len > 0 ? r->in : -1, .events = POLLOUT};
        for (int k = 0; k < 2; k++)
            fds[6 + 3 * i + k] = (struct pollfd){.fd = s->queue[k].len >= QUEUE_MAX ? -1 : r->out[k], .events = POLLIN};
    }
}

static void ssh_serve(struct ssh_run *s, const struct pollfd *fds)
{
    for (int i = 0; i < 2; i++)
        write_queue(s, i, fds[3 + i].revents != 0);
    for (uint32_t i = 0; i < s->n; i++) {
        struct remote *r = &s->v[i];

        if (fds[5 + 3 * i].revents != 0 && r->in >= 0)
            write_remote(r);
        for (int k = 0; k < 2; k++)
            if (fds[6 + 3 * i + k].revents != 0)
                (void)read_remote(s, r, k);
    }
    if (fds[2].revents != 0)
        read_stdin(s);
    if (fds[1].revents != 0)
        ssh_reap(s);
    if (fds[0].revents != 0)
        take_signals(s);
    check_stop(s);
}

static cddp_status ssh_run_loop(struct ssh_run *s, struct pollfd *fds, struct cdi_error *err)
{
    cddp_status st = CDDP_OK, first = CDDP_OK;

    while (s->n_over < s->n || s->queue[0].len > 0 || s->queue[1].len > 0) {
        st = first == CDDP_OK ? start_waiting(s, err) : CDDP_OK;
        if (st != CDDP_OK) {
            first = st;
            ssh_begin_end(s, 1000 * CDI_LIMIT_ALL_HOSTS_S);
            continue;
        }
        fill_polls(s, fds);
        if (poll(fds, 5 + 3 * (nfds_t)s->n, wait_ms(s)) >= 0)
            ssh_serve(s, fds);
        else if (errno != EINTR)
            return cdi_fail_errno(err, errno, "poll");
        if (cdi_now_ms() >= s->nudge_at_ms) {
            s->nudge_at_ms = CDI_NEVER_MS;
            ssh_end_all(s);
        }
        if (cdi_now_ms() >= s->give_up_at_ms) {
            if (s->n_over < s->n)
                cdi_log(CDI_LOG_ERROR, "NEAR-GIVEUP",
                        "%u of %u hosts did not end the job in time; closing their connections", s->n - s->n_over,
                        s->n);
            break;
        }
    }
    return first;
}

/* -------------------------------------------------------------------------------------------------------- job ----
 */

static uint16_t random_port(void)
{
    uint16_t v = 0;

    (void)getrandom(&v, sizeof v, 0);
    return (uint16_t)(CLUSTER_FIRST_PORT + v % CLUSTER_N_PORTS);
}

/* prefixes: separated by spaces. */
static bool begins_with_any(const char *setting, const char *prefixes)
{
    for (const char *p = prefixes; *p != '\0'; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");

        if (strncmp(setting, p, n) == 0)
            return true;
        p += n;
    }
    return false;
}

/* Does the remote cddprun get this variable, too? */
static bool is_exported(const struct options *o, const char *setting)
{
    static const char always[] = "PET_ LOGLEVEL= PYTHON_EXEC= TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE= "
                                 "TORCH_ELASTIC_SHUTDOWN_TIMEOUT= CDDP_AUTH_TOKEN_FILE= CDDP_DATA_PORTS= "
                                 "CDDP_CRASH_STACK= CDDP_TRACE="; /* in place of flags */
    /* Even with ALL: they are those of this login, this machine, or this job of a batch system. */
    static const char never[] =
        "HOME= USER= LOGNAME= SHELL= SHLVL= PWD= OLDPWD= MAIL= HOSTNAME= TMPDIR= DISPLAY= _= SSH_ XDG_ DBUS_ SLURM PMI "
        "OMPI_ PBS_ LSB_ KUBERNETES_ MASTER_ " OPTIONS_REMOTE_ENV "=";

    if (begins_with_any(setting, always))
        return true;
    for (size_t i = 0; i < o->n_exports; i++) {
        size_t n = strlen(o->exports[i]);

        if (strncmp(setting, o->exports[i], n) == 0 && setting[n] == '=')
            return true;
        if (strcmp(o->exports[i], OPTIONS_EXPORT_ALL) == 0 && !begins_with_any(setting, never))
            return true;
    }
    return false;
}

/* Another python3 there may lack the packages of this one. */
static void warn_of_python(const struct options *o)
{
    for (char **e = environ; *e != NULL; e++)
        if (begins_with_any(*e, "VIRTUAL_ENV= CONDA_PREFIX=") && !is_exported(o, *e))
            cdi_log(CDI_LOG_WARN, "NEAR-PYTHON",
                    "%.*s is set here, but not on the hosts, where python3 may be another one; add --export=ALL, or -x "
                    "PATH -x %.*s",
                    (int)strcspn(*e, "="), *e, (int)strcspn(*e, "="), *e);
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

/* For three descriptors for each host. ssh closes what it does not need, so its own limit does not matter. */
static cddp_status raise_nofile(uint32_t n, struct cdi_error *err)
{
    rlim_t need = FILES_BASE + 3 * (rlim_t)n;
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur >= need)
        return CDDP_OK;
    lim.rlim_cur = need;
    if (lim.rlim_max < need || setrlimit(RLIMIT_NOFILE, &lim) != 0)
        return cdi_fail(err, CDDP_E_LIMIT,
                        "the limit of open files is %llu, but with %u hosts cddprun needs %llu; raise it (ulimit -n "
                        "%llu)",
                        (unsigned long long)lim.rlim_max, n, (unsigned long long)need, (unsigned long long)need);
    return CDDP_OK;
}

/* After guard_start(). */
static cddp_status ssh_run_job(struct ssh_run *s, const struct hosts *hosts, struct cdi_error *err)
{
    struct pollfd *fds = calloc(5 + 3 * (size_t)hosts->n, sizeof *fds);
    struct termios before;
    CDI_AUTOCLOSE int terminal = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
    bool has_terminal = tcgetattr(terminal, &before) == 0;
    cddp_status st = CDDP_OK;
    sigset_t set;

    s->v = calloc(hosts->n, sizeof *s->v);
    if (fds == NULL || s->v == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    (void)signal(SIGTTIN, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    s->children = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (st == CDDP_OK && s->children < 0)
        st = cdi_fail_errno(err, errno, "signalfd");
    cdi_buf_init(&s->queue[0], 0); /* reading stops at QUEUE_MAX */
    cdi_buf_init(&s->queue[1], 0);
    for (uint32_t i = 0; st == CDDP_OK && i < hosts->n; i++) {
        struct remote *r = &s->v[i];

        *r = (struct remote){.name = hosts->v[i].name, .in = -1, .out = {-1, -1}, .status = -1};
        cdi_buf_init(&r->to, TO_MAX);
        cdi_buf_init(&r->from, CDI_FRAME_MAX);
        cdi_buf_init(&r->lines[0], LINE_MAX_BYTES);
        cdi_buf_init(&r->lines[1], LINE_MAX_BYTES);
    }
    if (st == CDDP_OK) {
        s->n = hosts->n;
        tell_guard(s, GUARD_READY);
        st = ssh_run_loop(s, fds, err);
    }
    /* An ssh that was killed while it asked for a password has switched the echo off. */
    if (has_terminal && tcgetpgrp(terminal) == getpgrp())
        (void)tcsetattr(terminal, TCSADRAIN, &before);
    free(fds);
    return st;
}

static void ssh_release(struct ssh_run *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        close_in(&s->v[i]);
        cdi_buf_release(&s->v[i].from);
        cdi_buf_release(&s->v[i].lines[0]);
        cdi_buf_release(&s->v[i].lines[1]);
    }
    cdi_buf_release(&s->queue[0]);
    cdi_buf_release(&s->queue[1]);
    free(s->v);
    free(s->argv);
    free(s->words);
}

int ssh_run_hosts(const struct options *o, const char *file, char **argv, struct cdi_error *err)
{
    struct ssh_run s = {.opt = o,
                        .input = o->stdin_to != OPTIONS_STDIN_NONE,
                        .nudge_at_ms = CDI_NEVER_MS,
                        .give_up_at_ms = CDI_NEVER_MS,
                        .stop_by_ms = CDI_NEVER_MS};
    struct hosts hosts = {.n = 0};
    char program[PATH_MAX] = "", *directory = get_current_dir_name(), **env = choose_env(o);
    struct hosts_job job = {.hosts = &hosts,
                            .flags = argv + 1,
                            .n_flags = o->n_flag_words,
                            .command = o->command,
                            .env = env,
                            .terminal = isatty(STDOUT_FILENO) == 1,
                            .program = program,
                            .directory = directory,
                            .master_addr = o->master_addr};
    cddp_status st = hosts_parse(&hosts, o, file, err);
    int status = st == CDDP_OK ? 1 : 2;

    if (st == CDDP_OK &&
        (readlink("/proc/self/exe", program, sizeof program - 1) < 0 || directory == NULL || env == NULL))
        st = cdi_fail_errno(err, errno, "cannot find cddprun's path and directory");
    if (st == CDDP_OK)
        st = raise_nofile(hosts.n, err);
    if (st == CDDP_OK)
        st = make_argv(&s, err);
    if (st == CDDP_OK)
        warn_of_python(o);
    if (st == CDDP_OK)
        st = guard_start(&s.link, NULL, options_ending(o), options_grace_ms(o), err);
    if (st == CDDP_OK) {
        s.job = &job;
        if (job.n_flags > 0 && strcmp(argv[job.n_flags], "--") == 0)
            job.n_flags--;
        if (job.master_addr == NULL)
            job.master_addr = hosts_address(&hosts.v[0]);
        job.master_port = o->master_port > 0 ? (uint16_t)o->master_port : random_port();
        st = ssh_run_job(&s, &hosts, err);
        status = st != CDDP_OK || (s.status == 0 && s.unwritten != 0) ? 1 : s.status;
    }
    ssh_release(&s);
    free(hosts.v);
    free(directory);
    free(env);
    return status;
}
