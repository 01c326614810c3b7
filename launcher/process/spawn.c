/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/spawn.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "launcher/process/pty.h"
#include "launcher/process/syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHIM "cddprun-shim"
#define ARGS_OF_SHIM 7    /* before PROGRAM */
#define ARGS_IN_NUMBERS 4 /* of these */
#define FILES_BASE 32     /* open files of an agent without workers, with reserve */
#define DRAIN_READS 16    /* a pipe holds 64 KiB, and 1 MiB at most by default */
#define CHILD_STACK 8192  /* for become_shim() */
#define FSIZE_LEAST 32768 /* of a flight page, which counts as a file */
#define PREFLIGHT "cddp-preflight"
#define ARGS_OF_PREFLIGHT 6 /* its name, the mode, the guard, the host, the local rank, the program */
#define FILES_PER_WORKER 8  /* two pipes, the page, exec's pipe; two logs; store connections of its ranks */

/* ---------------------------------------------------------------------------------------------- preparations ---- */

/* base is a path of n bytes, without the final slash. */
static bool try_part(char *out, size_t cap, const char *base, size_t n, const char *rest, const char *part)
{
    return (size_t)snprintf(out, cap, "%.*s/%s%s", (int)n, base, rest, part) < cap && access(out, X_OK) == 0;
}

/*
 * Looks for another program of ours: where a build tree has it, seen from cddprun; then at its installed place relative
 * to cddprun (so that DESTDIR and moved trees work), then at the configured path.
 */
static bool find_part(char *out, size_t cap, const char *build_folder, const char *part)
{
    const char *bin = CDI_BINDIR, *libexec = CDI_LIBEXECDIR;
    char exe[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    size_t common = 0, n;
    char *slash;

    if (len > 0) {
        exe[len] = '\0';
        slash = strrchr(exe, '/');
        n = slash == NULL ? 0 : (size_t)(slash - exe);
        if (try_part(out, cap, exe, n, build_folder, part))
            return true;
        for (size_t i = 0; bin[i] != '\0' && bin[i] == libexec[i]; i++)
            if (bin[i] == '/')
                common = i + 1;
        /* The directory of exe ends like bin; the path before that end is the present prefix. */
        if (n >= strlen(bin + common) &&
            strncmp(exe + n - strlen(bin + common), bin + common, strlen(bin + common)) == 0) {
            char rest[PATH_MAX];
            size_t prefix = n - strlen(bin + common);

            (void)snprintf(rest, sizeof rest, "%s/", libexec + common);
            if (try_part(out, cap, exe, prefix > 0 ? prefix - 1 : 0, rest, part))
                return true;
        }
    }
    return try_part(out, cap, libexec, strlen(libexec), "", part);
}

static cddp_status find_parts(struct spawn_context *ctx, struct cdi_error *err)
{
    const char *missing = NULL;

    if (!find_part(ctx->shim, sizeof ctx->shim, "", SHIM))
        missing = SHIM;
    else if (ctx->preflight != NULL &&
             !find_part(ctx->preflight_program, sizeof ctx->preflight_program, "../preflight/", PREFLIGHT))
        missing = PREFLIGHT;
    if (missing == NULL)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_NOT_FOUND,
                    "cannot find %s, a part of cddprun, beside it or in %s; install cddprun again", missing,
                    CDI_LIBEXECDIR);
}

/* To the hard limit: the agent may host the store, with connections of ranks on every node. */
static cddp_status raise_nofile(struct spawn_context *ctx, uint32_t n_procs, struct cdi_error *err)
{
    rlim_t need = FILES_BASE + (rlim_t)n_procs * FILES_PER_WORKER;
    struct rlimit lim;

    ctx->nofile = -1;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return CDDP_OK;
    if (lim.rlim_max < need)
        return cdi_fail(err, CDDP_E_LIMIT,
                        "the limit of open files is %" PRIu64 ", but with %u worker(s) cddprun needs %" PRIu64
                        "; raise it (ulimit -n %" PRIu64 ")",
                        (uint64_t)lim.rlim_max, n_procs, (uint64_t)need, (uint64_t)need);
    if (lim.rlim_cur == lim.rlim_max)
        return CDDP_OK;
    ctx->nofile = (int64_t)lim.rlim_cur;
    lim.rlim_cur = lim.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &lim) != 0)
        return cdi_fail_errno(err, errno, "cannot raise the number of open files to %" PRIu64, (uint64_t)lim.rlim_max);
    return CDDP_OK;
}

static cddp_status check_fsize(struct cdi_error *err)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_FSIZE, &lim) != 0 || lim.rlim_cur >= FSIZE_LEAST)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_LIMIT,
                    "the limit of file sizes is %" PRIu64
                    " bytes, but cddprun shares %d with each worker; raise it (ulimit -f %d)",
                    (uint64_t)lim.rlim_cur, FSIZE_LEAST, FSIZE_LEAST / 1024);
}

/*
 * Call it while this process has one thread. With more, each growth of the kernel's table of descriptors waits until
 * all cores have passed through the scheduler (synchronize_rcu), which takes as long as starting 64 workers.
 */
static void grow_table(const struct spawn_context *ctx, uint32_t n_procs)
{
    int fd = fcntl(ctx->null_fd, F_DUPFD_CLOEXEC, (int)(FILES_BASE + n_procs * FILES_PER_WORKER) - 1);

    if (fd >= 0)
        (void)close(fd);
}

/* Above 4: see become_shim(). */
static int open_null(void)
{
    CDI_AUTOCLOSE int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 5);
}

cddp_status spawn_prepare(struct spawn_context *ctx, uint32_t n_procs, struct cdi_error *err)
{
    cddp_status st = find_parts(ctx, err);

    if (st != CDDP_OK)
        return st;
    ctx->null_fd = open_null();
    if (ctx->null_fd < 0)
        return cdi_fail_errno(err, errno, "cannot open /dev/null");
    st = check_fsize(err);
    if (st == CDDP_OK)
        st = raise_nofile(ctx, n_procs, err);
    if (st == CDDP_OK)
        grow_table(ctx, n_procs);
    return st;
}

void spawn_release(struct spawn_context *ctx)
{
    if (ctx->null_fd >= 0)
        (void)close(ctx->null_fd);
    ctx->null_fd = -1;
}

/* Returns 0, or the errno of why this file cannot be run. */
static int runnable(const char *path)
{
    struct stat sb;

    if (stat(path, &sb) != 0)
        return errno;
    if (S_ISDIR(sb.st_mode))
        return EISDIR;
    return access(path, X_OK) == 0 ? 0 : errno;
}

static int search_path(const char *program, char *out)
{
    const char *path = cdi_env_str("PATH"), *end;
    int worst = ENOENT;

    for (path = path == NULL ? "/bin:/usr/bin" : path;; path = end + 1) {
        char file[PATH_MAX];
        int n;

        end = strchrnul(path, ':');
        n = (int)(end - path);
        if ((size_t)snprintf(file, sizeof file, "%.*s%s%s", n, path, n > 0 ? "/" : "", program) < sizeof file) {
            int rc = runnable(file);

            if (rc == 0) {
                memcpy(out, file, strlen(file) + 1);
                return 0;
            }
            if (rc == EACCES)
                worst = rc;
        }
        if (*end == '\0')
            return worst;
    }
}

static int spawn_search_path(const char *program, char *path)
{
    if (strchr(program, '/') == NULL)
        return search_path(program, path);
    if ((size_t)snprintf(path, PATH_MAX, "%s", program) >= PATH_MAX)
        return ENAMETOOLONG;
    return runnable(program);
}

cddp_status spawn_find_program(const char *program, char *path, int *exit_status, struct cdi_error *err)
{
    bool plain = strchr(program, '/') == NULL;
    int rc = spawn_search_path(program, path);

    if (rc == 0)
        return CDDP_OK;
    *exit_status = rc == ENOENT || rc == ENOTDIR ? 127 : 126;
    if (plain && rc == ENOENT && runnable(program) == 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "program '%.300s' is not in PATH; did you mean ./%.300s?", program,
                        program);
    if (plain && rc == ENOENT)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "program '%.300s' is not in PATH", program);
    if (rc == EACCES)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "program '%.300s' is not executable (run a script with its interpreter: cddprun ... python3 %.300s)",
            program, program);
    return cdi_fail(err, CDDP_E_NOT_FOUND, "cannot run program '%.300s': %s", program, strerror(rc));
}

/* -------------------------------------------------------------------------------------------------- starting ---- */

cddp_status worker_make_page(struct worker *w, uint32_t epoch, char *flight_env, size_t cap, struct cdi_error *err)
{
    cddp_status st;

    w->flight_fd = -1;
    w->exec_fd = -1;
    st = cdi_flight_create(&w->flight, epoch, &w->flight_fd, err);
    if (st == CDDP_OK)
        cdi_flight_env(w->flight, SPAWN_FLIGHT_FD, w->flight_fd, flight_env, cap);
    return st;
}

static void spawn_on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct worker *w = h->data;

    (void)suggested;
    *buf = uv_buf_init(w->ctx->read_buf, SPAWN_READ);
}

static void spawn_on_handle_closed(uv_handle_t *h)
{
    struct worker *w = h->data;
    void (*closed)(struct worker * w) = NULL;

    if (--w->open_handles > 0 || w->closed == NULL)
        return;
    closed = w->closed;
    closed(w);
}

static void end_stream(struct worker *w, int i)
{
    if (!w->piped[i])
        return;
    w->piped[i] = false;
    if (i == 0 && w->on_pty) {
        uv_close((uv_handle_t *)&w->master_poll, spawn_on_handle_closed);
        (void)close(w->master);
        w->master = -1;
    } else {
        uv_close((uv_handle_t *)&w->pipes[i], spawn_on_handle_closed);
    }
}

static void spawn_on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct worker *w = s->data;
    int i = s == (uv_stream_t *)&w->pipes[1];

    if (n == 0)
        return;
    if (n > 0) {
        w->on->output(w, i + 1, buf->base, (size_t)n);
        return;
    }
    end_stream(w, i);
    w->on->output(w, i + 1, NULL, 0);
}

/*
 * Reads as much as fits. The kernel returns all buffered bytes before EIO, which is the end: the other side is closed.
 * libuv's own streams would take a short read and a hang-up for the end, and a read from a pseudo-terminal returns 4
 * KiB at most.
 */
static void on_master(uv_poll_t *p, int status, int events)
{
    struct worker *w = p->data;
    bool over = status < 0;
    size_t n = 0;

    (void)events;
    while (!over && n < SPAWN_READ) {
        ssize_t got = read(w->master, w->ctx->read_buf + n, SPAWN_READ - n);

        if (got > 0)
            n += (size_t)got;
        else if (got == 0 || (errno != EINTR && errno != EAGAIN))
            over = true;
        else if (errno == EAGAIN)
            break;
    }
    if (n > 0)
        w->on->output(w, 1, w->ctx->read_buf, n);
    if (!over || !w->piped[0])
        return;
    end_stream(w, 0);
    w->on->output(w, 1, NULL, 0);
}

static void read_exec_errno(struct worker *w)
{
    int error;
    ssize_t n;

    if (w->exec_fd < 0)
        return;
    n = read(w->exec_fd, &error, sizeof error);
    if (n == (ssize_t)sizeof error) {
        w->exec_failure = (enum exec_failure)(error >> EXEC_ERRNO_BITS);
        w->exec_errno = error & EXEC_ERRNO_MASK;
    }
    (void)close(w->exec_fd);
    w->exec_fd = -1;
}

/* *fd: the worker's end of its stream i + 1. */
static cddp_status make_pipe(struct worker *w, uv_loop_t *loop, int i, int *fd, struct cdi_error *err)
{
    int pair[2], rc;

    if (pipe2(pair, O_CLOEXEC) != 0)
        return cdi_fail_errno(err, errno, "pipe");
    *fd = pair[1];
    rc = uv_pipe_init(loop, &w->pipes[i], 0);
    if (rc != 0) {
        (void)close(pair[0]);
        return cdi_fail_errno(err, -rc, "pipe");
    }
    w->pipes[i].data = w;
    w->piped[i] = true;
    w->open_handles++;
    rc = uv_pipe_open(&w->pipes[i], pair[0]); /* only this end becomes non-blocking */
    if (rc == 0)
        return CDDP_OK;
    (void)close(pair[0]);
    return cdi_fail_errno(err, -rc, "pipe");
}

/* The same for stdout as a pseudo-terminal. If there is none and a pipe is accepted, w->pty_errno is the reason. */
static cddp_status make_terminal(struct worker *w, uv_loop_t *loop, int *fd, struct cdi_error *err)
{
    int ends[2] = {-1, -1}, rc;

    w->pty_errno = pty_open(ends);
    if (w->pty_errno != 0 && w->needs_pty)
        return cdi_fail_errno(err, w->pty_errno, "cannot open a pseudo-terminal for its stdout (--pty=always)");
    if (w->pty_errno != 0)
        return CDDP_OK;
    *fd = ends[1];
    pty_resize(ends[0], w->front);
    rc = uv_poll_init(loop, &w->master_poll, ends[0]); /* makes the master non-blocking */
    if (rc != 0) {
        (void)close(ends[0]);
        return cdi_fail_errno(err, -rc, "pseudo-terminal");
    }
    w->master_poll.data = w;
    w->master = ends[0];
    w->on_pty = true;
    w->piped[0] = true;
    w->open_handles++;
    return CDDP_OK;
}

static cddp_status make_streams(struct worker *w, uv_loop_t *loop, int fds[2], struct cdi_error *err)
{
    cddp_status st = w->wants_pty ? make_terminal(w, loop, &fds[0], err) : CDDP_OK;

    if (st == CDDP_OK && !w->on_pty)
        st = make_pipe(w, loop, 0, &fds[0], err);
    return st == CDDP_OK ? make_pipe(w, loop, 1, &fds[1], err) : st;
}

static int read_on(struct worker *w, int i)
{
    if (i == 0 && w->on_pty)
        return uv_poll_start(&w->master_poll, UV_READABLE, on_master);
    return uv_read_start((uv_stream_t *)&w->pipes[i], spawn_on_alloc, spawn_on_read);
}

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif

/*
 * The data of a child until it execs. The child shares the agent's memory (fork would copy page tables) and runs
 * concurrently (vfork would block the agent until the child has run on a busy node).
 */
struct spawn_child {
    uint32_t here; /* the kernel sets it to 0 when the child has left this memory, and wakes its waiters */
    const char *shim;
    char **argv, **env;
    long apart; /* the system call for its process group: setpgid, setsid; -1: it stays in the agent's */
    int fds[5];
    char own[ARGS_IN_NUMBERS + 2][24];
    _Alignas(16) char stack[CHILD_STACK];
};

/*
 * The child: system calls only, and no errno, which is the agent's. The five descriptors become 0 to 4. None is
 * overwritten before it is in its place, since the loop's first descriptors are 3 and 4 for the agent's whole life.
 */
static int become_shim(void *arg)
{
    struct spawn_child *c = arg;
    enum exec_failure what = EXEC_GROUP;
    long rc = c->apart < 0 ? 0 : sys(c->apart, 0, 0, 0, 0, 0);
    int word;

    for (int i = 0; i < 5 && rc >= 0; i++) {
        what = EXEC_FILES;
        if (i > STDERR_FILENO || c->fds[i] != i)
            rc = c->fds[i] >= 5 ? sys(SYS_dup3, c->fds[i], i, 0, 0, 0) : -EBADF;
    }
    if (rc >= 0) {
        what = EXEC_SHIM;
        rc = sys(SYS_execve, (long)c->shim, (long)c->argv, (long)c->env, 0, 0);
    }
    word = (int)what << EXEC_ERRNO_BITS | (int)-rc;
    if (c->fds[4] >= 5)
        (void)sys(SYS_write, c->fds[4], (long)&word, sizeof word, 0, 0);
    (void)sys(SYS_exit_group, 126, 0, 0, 0, 0);
    return 126;
}

/*
 * Blocks all signals meanwhile, and in the child until the shim restores them: none is lost, and none runs a handler in
 * the agent's memory. Returns errno.
 */
static int spawn_shim(struct worker *w)
{
    struct spawn_child *c = w->child;
    sigset_t all, before;
    int error = 0, flags = CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD;
    pid_t pid;

#if !defined(SYSCALLS_RAW)
    flags |= CLONE_VFORK; /* errno is shared: one at a time */
#endif
    c->here = 1;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before);
#ifdef THREAD_SANITIZER
    /* The sanitizer takes every clone() for a fork, and the child's memory for a separate one. */
    (void)flags;
    c->here = 0;
    pid = fork();
    if (pid == 0)
        _exit(become_shim(c));
#else
    pid = clone(become_shim, c->stack + sizeof c->stack, flags, c, NULL, NULL, &c->here);
#endif
    if (pid < 0) {
        error = errno;
        c->here = 0;
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid > 0)
        w->pid = pid;
    return error;
}

void worker_wait_exec(struct worker *w)
{
    struct spawn_child *c = w->child;

    if (c == NULL)
        return;
    while (__atomic_load_n(&c->here, __ATOMIC_ACQUIRE) != 0)
        (void)syscall(SYS_futex, &c->here, FUTEX_WAIT, 1, NULL, NULL, 0);
    free(c->argv);
    free(c);
    w->child = NULL;
}

/* Returns the shim's command line: its own words, those of preflight, then the worker's. Only the array is allocated.
 */
static char **shim_args(const struct spawn_context *ctx, char own[ARGS_IN_NUMBERS + 2][24], uint32_t local_rank,
                        const char *cpus, char *const *args)
{
    size_t n = 0, at = ARGS_OF_SHIM;
    char **v;

    while (args[n] != NULL)
        n++;
    v = calloc(n + ARGS_OF_SHIM + ARGS_OF_PREFLIGHT + 1, sizeof *v);
    if (v == NULL)
        return NULL;
    (void)snprintf(own[0], 24, "%d", (int)getpid());
    (void)snprintf(own[1], 24, "%" PRIx64, ctx->mask);
    (void)snprintf(own[2], 24, "%" PRIx64, ctx->ignored);
    if (ctx->nofile >= 0)
        (void)snprintf(own[3], 24, "%" PRId64, ctx->nofile);
    else
        (void)snprintf(own[3], 24, "-");
    v[ARGS_OF_SHIM - 2] = (char *)(uintptr_t)(cpus == NULL ? "-" : cpus);
    v[ARGS_OF_SHIM - 1] = (char *)(uintptr_t)ctx->program;
    v[0] = (char *)(uintptr_t)ctx->shim;
    for (int i = 0; i < ARGS_IN_NUMBERS; i++)
        v[i + 1] = own[i];
    if (ctx->preflight != NULL) {
        v[ARGS_OF_SHIM - 1] = (char *)(uintptr_t)ctx->preflight_program;
        v[at++] = (char *)(uintptr_t)PREFLIGHT;
        v[at++] = (char *)(uintptr_t)ctx->preflight;
        (void)snprintf(own[ARGS_IN_NUMBERS], 24, "%d", (int)getppid());
        v[at++] = own[ARGS_IN_NUMBERS];
        v[at++] = (char *)(uintptr_t)ctx->host;
        (void)snprintf(own[ARGS_IN_NUMBERS + 1], 24, "%u", local_rank); /* LOCAL_RANK may be 0 for all */
        v[at++] = own[ARGS_IN_NUMBERS + 1];
        v[at++] = (char *)(uintptr_t)ctx->program;
    }
    memcpy(v + at, args, n * sizeof *args);
    return v;
}

/* Then the workers may share it: it has no terminal, and only processes below this one. */
static bool leads_session(void)
{
    return getsid(0) == getpid();
}

static struct spawn_child *make_child(const struct spawn_context *ctx, uint32_t local_rank, const char *cpus,
                                      char *const *args, char **env)
{
    struct spawn_child *c = malloc(sizeof *c);

    if (c == NULL)
        return NULL;
    c->here = 0;
    c->shim = ctx->shim;
    c->env = env;
    c->argv = shim_args(ctx, c->own, local_rank, cpus, args);
    if (c->argv != NULL)
        return c;
    free(c);
    return NULL;
}

cddp_status worker_start(struct worker *w, const struct spawn_context *ctx, char *const *args, char **env, int stdin_fd,
                         struct cdi_error *err)
{
    int outs[2] = {-1, -1}, exec_pair[2] = {-1, -1}, rc = 0;
    cddp_status st = CDDP_OK;

    w->ctx = ctx;
    w->child = make_child(ctx, w->local_rank, w->cpus, args, env);
    if (w->child == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    else if (!w->interactive)
        st = make_streams(w, ctx->loop, outs, err);
    if (st == CDDP_OK && pipe2(exec_pair, O_CLOEXEC) != 0)
        st = cdi_fail_errno(err, errno, "pipe");
    if (st == CDDP_OK) {
        const int fds[5] = {stdin_fd >= 0 ? stdin_fd : ctx->null_fd, w->interactive ? STDOUT_FILENO : outs[0],
                            w->interactive ? STDERR_FILENO : outs[1], w->flight_fd, exec_pair[1]};

        memcpy(w->child->fds, fds, sizeof fds);
        w->child->apart = w->interactive ? -1 : leads_session() ? SYS_setpgid : SYS_setsid;
        w->started_ms = cdi_now_ms();
        w->started_wall_ms = cdi_wall_ms();
        w->exec_fd = cdi_steal_fd(&exec_pair[0]);
        rc = spawn_shim(w);
        if (rc != 0)
            st = cdi_fail_errno(err, rc, "cannot start its process");
    }
    for (int i = 0; i < 2; i++) {
        if (outs[i] >= 0)
            (void)close(outs[i]);
        if (exec_pair[i] >= 0)
            (void)close(exec_pair[i]);
    }
    for (int i = 0; i < 2 && st == CDDP_OK && !w->interactive; i++)
        if ((rc = read_on(w, i)) != 0)
            st = cdi_fail_errno(err, -rc, "cannot read its output");
    return st;
}

/* ---------------------------------------------------------------------------------------------------- living ---- */

void worker_kill(struct worker *w, int signal)
{
    if (w->pid <= 0 || w->exited)
        return;
    /* A worker with the agent's terminal is in the agent's group. */
    (void)kill(w->interactive ? w->pid : -w->pid, signal);
}

void worker_pause(struct worker *w, bool pause)
{
    for (int i = 0; i < 2; i++) {
        if (!w->piped[i])
            continue;
        if (!pause)
            (void)read_on(w, i);
        else if (i == 0 && w->on_pty)
            (void)uv_poll_stop(&w->master_poll);
        else
            (void)uv_read_stop((uv_stream_t *)&w->pipes[i]);
    }
}

void worker_resize(struct worker *w)
{
    if (w->master < 0)
        return;
    pty_resize(w->master, w->front);
    worker_kill(w, SIGWINCH);
}

void worker_drain(struct worker *w)
{
    uv_os_fd_t fd;
    ssize_t n = 1;

    if (!w->piped[1] || uv_fileno((uv_handle_t *)&w->pipes[1], &fd) != 0)
        return;
    for (int i = 0; n > 0 && i < DRAIN_READS && w->piped[1]; i++) {
        n = read(fd, w->ctx->read_buf, SPAWN_READ);
        if (n > 0)
            w->on->output(w, 2, w->ctx->read_buf, (size_t)n);
    }
}

bool worker_left_nobody(const struct worker *w)
{
    return w->exited && w->pid > 0 && !w->interactive && kill(-w->pid, 0) != 0 && errno == ESRCH;
}

bool worker_has_output(const struct worker *w)
{
    return w->piped[0] || w->piped[1];
}

static void spawn_on_signal(uv_signal_t *h, int signum)
{
    struct spawn_watch *watch = (struct spawn_watch *)h;

    (void)signum;
    watch->children(watch->arg);
}

cddp_status spawn_watch_start(struct spawn_watch *w, uv_loop_t *loop, struct cdi_error *err)
{
    int rc = uv_signal_init(loop, &w->handle);

    if (rc == 0)
        rc = uv_signal_start(&w->handle, spawn_on_signal, SIGCHLD);
    return rc == 0 ? CDDP_OK : cdi_fail_errno(err, -rc, "cannot watch for SIGCHLD");
}

static void spawn_note_end(struct worker *w, const siginfo_t *info)
{
    bool by_exit = info->si_code == CLD_EXITED;

    w->exited = true;
    w->exit_code = by_exit ? info->si_status : 0;
    w->exit_signal = by_exit ? 0 : info->si_status;
    w->dumped = info->si_code == CLD_DUMPED;
    w->ended_ms = cdi_now_ms();
    read_exec_errno(w);
}

bool spawn_reap(struct worker *workers, uint32_t n, struct worker **worker)
{
    siginfo_t info = {.si_pid = 0};

    *worker = NULL;
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
        return false;
    /* Also the stop of a thread that another thread here traces, for its stack (stack.h): not an end. */
    if (info.si_code == CLD_TRAPPED || info.si_code == CLD_STOPPED)
        return true;
    for (uint32_t i = 0; i < n && *worker == NULL; i++)
        if (workers[i].pid == info.si_pid && !workers[i].exited)
            *worker = &workers[i];
    if (*worker != NULL)
        spawn_note_end(*worker, &info);
    return true;
}

void worker_close(struct worker *w, void (*closed)(struct worker *w))
{
    w->closed = closed;
    worker_wait_exec(w);
    end_stream(w, 0);
    end_stream(w, 1);
    if (w->exec_fd >= 0)
        (void)close(w->exec_fd);
    if (w->flight_fd >= 0)
        (void)close(w->flight_fd);
    cdi_flight_release(w->flight);
    w->exec_fd = -1;
    w->flight_fd = -1;
    w->flight = NULL;
    if (w->open_handles == 0)
        closed(w);
}
