/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's process, and the killing of orphans that guard and agent share. No libuv, no thread. */
#include "launcher/process/guard.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/nofollow.h"
#include "common/time_limits.h"
#include "launcher/process/procs.h"
#include "launcher/process/signame.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define LATE_MS 100                /* a running agent ends its workers well within it */
#define RESUMED_MS 1000            /* an agent that was stopped together with the guard may have to be paged in first */
#define UNRESPONSIVE_LEAST_MS 5000 /* on a busy node an agent may need time to read a signal */

#define N_SIGNALS 64
#define BIT(signal) (UINT64_C(1) << ((signal)-1))
/* Signals that are forwarded to the workers, besides those that end the job. */
#define HANDED_ON                                                                                           \
    (BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGHUP) | BIT(SIGQUIT) | BIT(SIGUSR1) | BIT(SIGUSR2) | BIT(SIGTSTP) | \
     BIT(SIGCONT) | BIT(SIGWINCH))

/* -------------------------------------------------------------------------------------------------- sweeping ---- */

static void kill_child(pid_t pid)
{
    pid_t group = getpgid(pid);

    /*
     * Kills the whole group at once, so that a child that forks quickly cannot escape between two scans. Only groups
     * made below this process: those of other sessions and, if it leads its session, all but its own. The child is not
     * reaped yet, so its numbers are not reused.
     */
    if (group > 1 && group != getpgrp() && (getsid(pid) != getsid(0) || getsid(0) == getpid()))
        (void)kill(-group, SIGKILL);
    (void)kill(pid, SIGKILL);
}

static bool guard_is_stopped(pid_t pid)
{
    struct procs_stat stat;

    return procs_stat(pid, &stat) && stat.state == 'T';
}

static void kill_if_child(void *arg, pid_t pid)
{
    struct procs_stat stat;

    (void)arg;
    if (procs_stat(pid, &stat) && stat.parent == getpid())
        kill_child(pid);
}

/* By the kernel's own lists, one per thread; false if it has none (CONFIG_PROC_CHILDREN). */
static bool kill_by_lists(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    bool have = tasks != NULL;

    while (have && (entry = readdir(tasks)) != NULL) {
        char path[64];
        FILE *f;
        char pid[16];

        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "/proc/self/task/%.20s/children", entry->d_name);
        f = fopen(path, "re");
        if (f == NULL) {
            have = errno !=
                   ENOENT; /* other errors, such as no free descriptor, are temporary: the next round tries again */
            continue;
        }
        while (fscanf(f, "%15s", pid) == 1)
            kill_child((pid_t)strtol(pid, NULL, 10));
        (void)fclose(f);
    }
    if (tasks != NULL)
        (void)closedir(tasks);
    return have;
}

/* False: no child is left. */
static bool guard_reap(void)
{
    pid_t pid;

    do
        pid = waitpid(-1, NULL, WNOHANG);
    while (pid > 0 || (pid < 0 && errno == EINTR));
    return pid == 0;
}

bool guard_has_children(void)
{
    return guard_reap();
}

bool guard_sweep_once(void)
{
    if (!guard_reap())
        return false;
    if (!kill_by_lists())
        (void)procs_each(kill_if_child, NULL);
    return guard_reap();
}

bool guard_sweep(int ms)
{
    int64_t deadline = cdi_now_ms() + ms;
    struct timespec pause = {.tv_nsec = 100000};

    while (guard_sweep_once()) {
        if (cdi_now_ms() >= deadline)
            return false;
        (void)nanosleep(&pause, NULL);
        if (pause.tv_nsec < 5000000)
            pause.tv_nsec *= 2;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- directory ---- */

static int guard_remove_entry(const char *path, const struct stat *sb, int type, struct FTW *where)
{
    (void)sb;
    (void)type;
    (void)where;
    (void)remove(path);
    return 0;
}

void guard_remove_dir(const char *dir)
{
    if (dir[0] != '\0')
        (void)nftw(dir, guard_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

struct guard_shared {
    _Atomic int64_t act_by_ms; /* see guard_act_by() */
    atomic_bool has_run_dir;   /* run_dir is complete: it can be removed */
    char run_dir[PATH_MAX];
};

/* The guard knows the name before the directory exists: if one process is killed, the other one removes it. */
static cddp_status make_run_dir(struct guard_link *link, const char *tmpdir, struct cdi_error *err)
{
    /* Absolute, since workers may change their directory. */
    CDI_AUTOFREE char *base = realpath(tmpdir, NULL);
    struct guard_shared *s = link->shared;

    if (base == NULL ||
        (size_t)snprintf(s->run_dir, sizeof s->run_dir - 64, "%s/cddprun-XXXXXX", base) >= sizeof s->run_dir - 64)
        return cdi_fail_errno(err, base == NULL ? errno : ENAMETOOLONG,
                              "cannot create a private directory in '%.200s' (set TMPDIR to another directory)",
                              tmpdir);
    atomic_store(&s->has_run_dir, true);
    if (mkdtemp(s->run_dir) == NULL) {
        atomic_store(&s->has_run_dir, false);
        return cdi_fail_errno(
            err, errno, "cannot create a private directory in '%.200s' (set TMPDIR to another directory)", tmpdir);
    }
    (void)cdi_lock_dir(s->run_dir); /* until this process ends */
    memcpy(link->run_dir, s->run_dir, sizeof link->run_dir);
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------------- the guard ---- */

struct guard {
    pid_t agent;
    int link, signals;
    uint64_t ending; /* signals that end the job */
    struct guard_shared *shared;
    int conn;                 /* the agent's connection to the rendezvous, see guard_hold(); -1: none */
    bool ready;               /* the agent handles signals */
    bool want_stop;           /* TSTP was received, and no CONT after it */
    int64_t late_allowed_ms;  /* from late_ms on */
    int64_t late_ms;          /* when the agent was first found late; 0: it is not */
    int64_t inactive_ms;      /* how long it had been inactive when it was killed for that; 0: it was not */
    int64_t patience_ms;      /* for an agent that does not read signals */
    int64_t read_by_ms;       /* by then the agent must have read an ending signal; CDI_NEVER_MS */
    int unread_signal;        /* that signal */
    bool killed_unresponsive; /* the agent was killed because it had not read it */
    int killed_by_us;         /* the signal that ended an agent that did not handle signals yet */
    bool ended;
    int status; /* the agent's, from waitpid */
};

static void guard_forward(const struct guard *g, int signal)
{
    unsigned char byte = (unsigned char)signal;

    /* An agent that does not read is dying: the byte is not needed. */
    (void)send(g->link, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/*
 * The CONT that woke this process is still to be read, and would be forwarded twice. By then the agent may be about to
 * exit, and a CONT would cancel the stop by which a debugger (or a leak checker) attaches to it.
 */
static void swallow_cont(void)
{
    struct timespec no_wait = {0};
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCONT);
    (void)sigtimedwait(&set, NULL, &no_wait);
}

/*
 * Would no process continue this one? A terminal's ^Z does not stop a process whose group has no parent in the session,
 * such as a session leader's. The kernel ensures that for the default action of the signal only.
 */
static bool is_orphaned(void)
{
    struct procs_stat stat;
    pid_t parent = getppid();

    while (parent > 0 && getpgid(parent) == getpgrp())
        parent = procs_stat(parent, &stat) ? stat.parent : -1;
    return parent <= 0 || getsid(parent) != getsid(0);
}

/* In one function and in this order, so that a CONT can never arrive in the middle of a stop. */
static void stop_both(struct guard *g)
{
    g->want_stop = false;
    (void)kill(g->agent, SIGSTOP);
    (void)kill(getpid(), SIGSTOP);
    swallow_cont();
    (void)kill(g->agent, SIGCONT);
    guard_forward(g, SIGCONT);
}

static void reap_agent(struct guard *g)
{
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == g->agent) {
            g->ended = true;
            g->status = status;
        }
    }
}

/*
 * Ensures that the agent reads it: an agent that was stopped alone would not. Only such an agent gets CONT, since it
 * would cancel the stop by which a debugger attaches.
 */
static void see_to_it(struct guard *g, int signal)
{
    if (guard_is_stopped(g->agent))
        (void)kill(g->agent, SIGCONT);
    if (g->read_by_ms != CDI_NEVER_MS)
        return;
    g->unread_signal = signal;
    g->read_by_ms = cdi_deadline_ms(cdi_now_ms(), g->patience_ms);
}

/* by_kernel: a key of the terminal has sent it, and not a process. */
static void guard_on_signal(struct guard *g, int signal, bool by_kernel)
{
    if (signal == SIGCHLD) {
        reap_agent(g);
    } else if (signal == SIGTSTP && by_kernel && is_orphaned()) {
        return;
    } else if (signal == SIGTSTP) {
        g->want_stop = true;
        if (g->ready)
            guard_forward(g, signal);
        else
            stop_both(g);
    } else if (signal == SIGCONT) {
        g->want_stop = false;
        if (guard_is_stopped(g->agent))
            (void)kill(g->agent, SIGCONT);
        guard_forward(g, signal);
    } else if (g->ready) {
        guard_forward(g, signal);
        if ((g->ending & BIT(signal)) != 0)
            see_to_it(g, signal);
    } else if ((g->ending & BIT(signal)) != 0) {
        /* Still starting (it may be waiting for a name server): there is no worker yet. */
        g->killed_by_us = signal;
        (void)kill(g->agent, SIGKILL);
    }
}

/* Reads one byte of the agent, and the descriptor sent with it; -1: none. */
static ssize_t guard_receive(const struct guard *g, char *byte, int *fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = byte, .iov_len = 1};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(g->link, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;

    *fd = -1;
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd, CMSG_DATA(c), sizeof(int));
    return n;
}

static void on_link(struct guard *g, struct pollfd *p)
{
    char byte;
    int fd;
    ssize_t n = guard_receive(g, &byte, &fd);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        p->fd = -1; /* the agent is exiting; its status follows */
        return;
    }
    if (fd >= 0) {
        if (g->conn >= 0)
            (void)close(g->conn);
        g->conn = fd;
    }
    if (n == 1 && byte == GUARD_READY)
        g->ready = true;
    if (n == 1 && byte == GUARD_GOT_SIGNAL)
        g->read_by_ms = CDI_NEVER_MS;
    if (n == 1 && byte == GUARD_STOPPED) {
        if (g->want_stop)
            stop_both(g);
        else
            guard_forward(g, SIGCONT);
    }
}

/*
 * Checks whether the agent is late. It may have been stopped together with the guard, and be about to end its workers
 * itself, so it counts only when it is found late a second time. Returns the time until the next check, -1: forever.
 */
static int guard_check_agent(struct guard *g)
{
    int64_t now = cdi_now_ms(), act_by = atomic_load(&g->shared->act_by_ms), wait = act_by - now;

    if (act_by == CDI_NEVER_MS || wait > 0)
        g->late_ms = 0;
    if (act_by == CDI_NEVER_MS)
        return -1;
    if (wait > 0)
        return wait < INT_MAX ? (int)wait : INT_MAX;
    if (g->late_ms == 0) {
        g->late_ms = now;
        g->late_allowed_ms = -wait > LATE_MS ? RESUMED_MS : LATE_MS; /* the guard is late, too */
    }
    wait = g->late_ms + g->late_allowed_ms - now;
    if (wait > 0)
        return (int)wait;
    g->inactive_ms = now - act_by;
    (void)kill(g->agent, SIGKILL);
    return -1;
}

/* The longest time to wait; -1: forever. */
static int next_look(struct guard *g)
{
    int64_t left = g->read_by_ms - cdi_now_ms();
    int wait;

    if (g->inactive_ms != 0 || g->killed_unresponsive)
        return -1;
    wait = guard_check_agent(g);
    if (g->read_by_ms == CDI_NEVER_MS || (wait >= 0 && wait <= left))
        return wait;
    return left <= 0 ? 0 : left < INT_MAX ? (int)left : INT_MAX;
}

static void guard_watch(struct guard *g)
{
    struct pollfd p[2] = {{.fd = g->signals, .events = POLLIN}, {.fd = g->link, .events = POLLIN}};
    struct signalfd_siginfo info;

    while (!g->ended) {
        int n = poll(p, 2, next_look(g));

        if (n < 0 && errno != EINTR)
            break;
        /* Only if there is nothing to read: this process may have been stopped, and the answer be there already. */
        if (n == 0 && cdi_now_ms() >= g->read_by_ms && !g->killed_unresponsive) {
            g->killed_unresponsive = true;
            (void)kill(g->agent, SIGKILL);
        }
        while (!g->ended && read(g->signals, &info, sizeof info) == (ssize_t)sizeof info) {
            /* The sender may have seen the workers, and the agent's byte is older: it must be handled first. */
            if (!g->ready && p[1].fd >= 0)
                on_link(g, &p[1]);
            guard_on_signal(g, (int)info.ssi_signo, info.ssi_code == SI_KERNEL);
        }
        if (p[1].fd >= 0 && p[1].revents != 0)
            on_link(g, &p[1]);
    }
}

/* The exit status and message for an agent that is dead. */
static int conclude(const struct guard *g)
{
    char name[32];
    int signal;

    if (!guard_sweep(1000 * CDI_LIMIT_KILLED_S))
        fprintf(stderr,
                "cddprun: some processes of this job did not end after SIGKILL; the kernel or a debugger holds them\n");
    else if (g->conn >= 0)
        (void)shutdown(g->conn, SHUT_WR); /* no worker is left: the rendezvous may be informed */
    if (atomic_load(&g->shared->has_run_dir))
        guard_remove_dir(g->shared->run_dir);
    if (g->killed_by_us != 0)
        return 128 + g->killed_by_us;
    if (WIFEXITED(g->status))
        return WEXITSTATUS(g->status);
    signal = WTERMSIG(g->status);
    if (g->killed_unresponsive) {
        fprintf(stderr,
                "cddprun: the agent (pid %d) did not answer signal %d (%s) for %lld s (was it stopped?); it and every "
                "worker have been killed\n",
                (int)g->agent, g->unread_signal, signame(g->unread_signal, name, sizeof name),
                (long long)g->patience_ms / 1000);
        return 128 + g->unread_signal;
    }
    if (g->inactive_ms != 0) {
        fprintf(stderr,
                "cddprun: the agent (pid %d) was inactive (was it stopped?) until the rendezvous was about to count "
                "this node as lost; it and every worker have been killed\n",
                (int)g->agent);
        return 128 + signal;
    }
    fprintf(stderr, "cddprun: the agent (pid %d) was killed by signal %d (%s); every worker has been killed\n",
            (int)g->agent, signal, signame(signal, name, sizeof name));
    return 128 + signal;
}

/* ------------------------------------------------------------------------------------------- the agent's side ---- */

void guard_is_gone(const struct guard_link *link)
{
    static const char text[] = "cddprun: the guard process was killed; all workers have been killed\n";
    bool all = guard_sweep(1000 * CDI_LIMIT_KILLED_S);
    ssize_t n;

    guard_remove_dir(link->run_dir);
    n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(all ? 1 : 2);
}

void guard_leave(const struct guard_link *link)
{
    if (link->guard != 0 && getppid() != link->guard) /* killed before the agent's loop could see that */
        guard_is_gone(link);
    guard_remove_dir(link->run_dir);
}

/* ----------------------------------------------------------------------------------------------------- start ---- */

static void note_dispositions(struct guard_link *link, const sigset_t *mask)
{
    for (int s = 1; s <= N_SIGNALS; s++) {
        if (sigismember(mask, s) == 1)
            link->mask |= BIT(s);
        if (guard_is_ignored(s))
            link->ignored |= BIT(s);
    }
}

static bool dies_of_file_limit; /* before guard_outlive_file_limit() */

void guard_outlive_file_limit(void)
{
    dies_of_file_limit = signal(SIGXFSZ, SIG_IGN) != SIG_IGN;
}

bool guard_is_ignored(int signal)
{
    struct sigaction sa;

    if (signal == SIGXFSZ && dies_of_file_limit)
        return false;
    return sigaction(signal, NULL, &sa) == 0 && sa.sa_handler == SIG_IGN;
}

void guard_signals(uint64_t ending, sigset_t *set)
{
    (void)sigemptyset(set);
    (void)sigaddset(set, SIGCHLD);
    for (int s = 1; s <= N_SIGNALS; s++)
        if (((HANDED_ON | ending) & BIT(s)) != 0 && !guard_is_ignored(s))
            (void)sigaddset(set, s);
}

bool guard_act_by(struct guard_link *link, int64_t act_by_ms)
{
    return atomic_exchange(&link->shared->act_by_ms, act_by_ms) == CDI_NEVER_MS && act_by_ms != CDI_NEVER_MS;
}

void guard_hold(const struct guard_link *link, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    char byte = GUARD_HOLD;
    struct iovec iov = {.iov_base = &byte, .iov_len = 1};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    (void)sendmsg(link->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void become_agent(uint64_t ending, pid_t guard)
{
    sigset_t none;

    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    /* The death of the guard wakes an agent that is stopped, so that it sees the end of the link. */
    (void)prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);
    for (int s = 1; s <= N_SIGNALS; s++)
        if (s != SIGCONT && ((HANDED_ON | ending) & BIT(s)) != 0)
            (void)signal(s, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGTTOU, SIG_IGN);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (getppid() != guard)
        _exit(1);
}

static _Noreturn void become_guard(const struct guard_link *link, uint64_t ending, int64_t patience_ms, pid_t agent,
                                   int fd, int signals)
{
    struct guard g = {.agent = agent,
                      .link = fd,
                      .signals = signals,
                      .conn = -1,
                      .ending = ending,
                      .shared = link->shared,
                      .patience_ms = patience_ms > UNRESPONSIVE_LEAST_MS ? patience_ms : UNRESPONSIVE_LEAST_MS,
                      .read_by_ms = CDI_NEVER_MS};

    guard_watch(&g);
    _exit(conclude(&g));
}

cddp_status guard_start(struct guard_link *link, const char *tmpdir, uint64_t ending, int64_t patience_ms,
                        struct cdi_error *err)
{
    CDI_AUTOCLOSE int signals = -1;
    sigset_t set, before;
    pid_t guard = getpid(), pid;
    int pair[2];
    cddp_status st;

    *link = (struct guard_link){.fd = -1};
    (void)signal(SIGCHLD, SIG_DFL); /* ignored, it would make waitpid lose every status */
    (void)sigprocmask(SIG_SETMASK, NULL, &before);
    note_dispositions(link, &before);
    guard_signals(ending, &set);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0)
        return cdi_fail_errno(err, errno, "cannot watch for signals");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return cdi_fail_errno(err, errno, "cannot become the subreaper of orphaned processes (prctl)");
    link->shared = mmap(NULL, sizeof *link->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (link->shared == MAP_FAILED)
        return cdi_fail_errno(err, errno, "cannot create the memory shared by guard and agent");
    atomic_init(&link->shared->act_by_ms, CDI_NEVER_MS);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return cdi_fail_errno(err, errno, "cannot create the link between guard and agent");
    (void)sigprocmask(SIG_SETMASK, &set, NULL);
    pid = fork();
    if (pid > 0) {
        (void)close(pair[1]);
        become_guard(link, ending, patience_ms, pid, pair[0], cdi_steal_fd(&signals));
    }
    st = pid < 0 ? cdi_fail_errno(err, errno, "cannot fork") : CDDP_OK;
    (void)close(pair[0]);
    if (st == CDDP_OK) {
        link->guard = guard;
        become_agent(ending, guard);
        st = tmpdir == NULL ? CDDP_OK : make_run_dir(link, tmpdir, err);
    } else {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
    }
    if (st == CDDP_OK)
        link->fd = pair[1];
    else
        (void)close(pair[1]);
    return st;
}
