/* SPDX-License-Identifier: Apache-2.0 */
/* The main program of cddprun: parses options, then runs the command or the job. */
#include "common/log.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/events.h"
#include "launcher/cli/help.h"
#include "launcher/cli/parse.h"
#include "launcher/cluster/hostlist.h"
#include "launcher/plan/dry_run.h"
#include "launcher/plan/inputs.h"
#include "launcher/process/guard.h"
#include "launcher/remote/remote_end.h"
#include "launcher/remote/ssh.h"
#include "watch/show.h"
#include "watch/top.h"
#include "watch/views.h"
#include "watch/watcher.h"

#include <cddp/version.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#define STACK_LEAST (256 * 1024)

/* Descriptors opened later must not become 0, 1 or 2. */
static void fill_standard_fds(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

static bool random_id(char *buf, size_t cap)
{
    unsigned char bytes[16];
    size_t n = 0;

    buf[0] = '\0';
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) /* a seccomp filter may forbid it */
        return false;
    for (size_t i = 0; i < sizeof bytes && n + 2 < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%02x", bytes[i]);
    return true;
}

/* Writes a new auth token to a file that does not exist: 32 random bytes in hex. */
static cddp_status make_secret_file(const char *path, struct cdi_error *err)
{
    char text[65];
    int fd, error;

    if (!random_id(text, 33) || !random_id(text + 32, 33))
        return cdi_fail_errno(err, errno, "cannot get random bytes for the job's auth token");
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    error = fd < 0 ? errno : 0;
    for (size_t at = 0; error == 0 && at < 64;) { /* a full disk may take a part of it, and refuse the rest */
        ssize_t n = write(fd, text + at, 64 - at);

        if (n < 0)
            error = errno;
        else
            at += (size_t)n;
    }
    explicit_bzero(text, sizeof text);
    if (fd >= 0 && close(fd) != 0 && error == 0)
        error = errno;
    if (error == 0)
        return CDDP_OK;
    if (fd >= 0)
        (void)unlink(path);
    return cdi_fail_errno(err, error, "cannot write the job's auth token to '%.300s'", path);
}

/* Loads the user's auth token before the fork, or makes one after it, when the run directory exists. */
static cddp_status start_guard(struct guard_link *link, const struct options *o, struct plan *plan,
                               struct cdi_secret *secret, struct cdi_error *err)
{
    static char path[PATH_MAX + 32];
    cddp_status st = CDDP_OK;

    if (o->auth_token_file != NULL) {
        st = cdi_secret_load(secret, o->auth_token_file, err);
        if (st == CDDP_OK && realpath(o->auth_token_file, path) == NULL) /* workers may change their directory */
            st = cdi_fail_errno(err, errno, "--auth_token_file '%.300s'", o->auth_token_file);
    }
    if (st == CDDP_OK)
        st = guard_start(link, o->tmpdir, options_ending(o), options_grace_ms(o), err);
    if (st == CDDP_OK && o->auth_token_file == NULL && o->standalone) {
        (void)snprintf(path, sizeof path, "%s/auth_token", link->run_dir);
        st = make_secret_file(path, err);
        if (st == CDDP_OK)
            st = cdi_secret_load(secret, path, err);
    }
    if (st == CDDP_OK && path[0] != '\0') {
        plan->secret = secret;
        plan->auth_token_file = path;
    }
    return st;
}

static int make_token(const char *path)
{
    struct cdi_error err;

    if (make_secret_file(path, &err) == CDDP_OK)
        return 0;
    cdi_log(CDI_LOG_ERROR, "MAIN-TOKEN", "%s", err.msg);
    return 1;
}

/* Returns the exit status. */
static int end_stdout(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    cdi_log(CDI_LOG_ERROR, "MAIN-STDOUT", "cannot write to stdout: %s", strerror(errno));
    return 1;
}

static int print_plan(const struct plan *plan, const struct machine *machine)
{
    char *text = dry_run_text(plan, machine, environ);

    if (text == NULL) {
        cdi_log(CDI_LOG_ERROR, "MAIN-PLAN", "out of memory for the plan");
        return 1;
    }
    (void)puts(text);
    free(text);
    return end_stdout();
}

static int main_run(const struct options *o)
{
    struct guard_link link = {.fd = -1};
    struct cdi_secret secret;
    int status;
    struct machine machine;
    struct cluster_env cluster = {.kind = NULL};
    struct endpoint endpoint;
    struct plan plan;
    struct cdi_error err = {.status = CDDP_OK};
    char id[40];

    machine_read(&machine, "", o->cuda_visible_devices);
    if (plan_inputs_cluster(&cluster, o, machine.host, &err) != CDDP_OK ||
        endpoint_decide(&endpoint, o, &cluster, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-OPTIONS", "%s", err.msg);
        return 2;
    }
    plan_inputs_log(&endpoint, o);
    if (!random_id(id, sizeof id)) {
        cdi_log(CDI_LOG_ERROR, "MAIN-START", "cannot get random bytes for the job's id: %s", strerror(errno));
        return 1;
    }
    if (plan_make(&plan, o, &endpoint, &machine, id, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-START", "%s", err.msg);
        return err.status == CDDP_E_INVALID ? 2 : 1;
    }
    plan_inputs_warn(&plan, o);
    /* Binding loads hwloc, which the guard does not need, so it follows the fork. */
    if ((!o->dry_run && start_guard(&link, o, &plan, &secret, &err) != CDDP_OK) ||
        plan_inputs_binding(&plan, o, &machine, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-START", "%s", err.msg);
        guard_leave(&link);
        return 1;
    }
    if (o->dry_run) {
        status = print_plan(&plan, &machine);
        if (status == 0)
            status = agent_check(&plan, &err);
        if (status != 0 && err.msg[0] != '\0')
            cdi_log(CDI_LOG_ERROR, "MAIN-START", "%s", err.msg);
    } else {
        status = agent_run(&plan, &link, &watch_views, &watch_watcher);
        guard_leave(&link);
        cdi_secret_release(&secret);
    }
    bind_free(plan.bind, plan.n_procs);
    free(plan.bind);
    return status;
}

/* A process whose stack overflows dies without a message. */
static bool has_stack(void)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_STACK, &lim) != 0 || lim.rlim_cur >= STACK_LEAST)
        return true;
    fprintf(stderr, "cddprun: the stack limit is %llu KiB, but cddprun needs %d; raise it (ulimit -s %d)\n",
            (unsigned long long)lim.rlim_cur / 1024, STACK_LEAST / 1024, 2 * STACK_LEAST / 1024);
    return false;
}

static int run_hosts(const struct options *o, char **argv)
{
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_buf file;
    int status = 2;

    cdi_buf_init(&file, HOSTLIST_MAX);
    if (o->hostfile == NULL || inputs_read_file(o->hostfile, &file, &err) == CDDP_OK) {
        if (cdi_buf_append(&file, "", 1) == CDDP_OK)
            status = ssh_run_hosts(o, (const char *)cdi_buf_data(&file), argv, &err);
        else
            (void)cdi_fail(&err, CDDP_E_LIMIT, "the list of hosts has no room in memory, or is too long");
    }
    cdi_buf_release(&file);

    if (err.msg[0] != '\0')
        cdi_log(CDI_LOG_ERROR, "MAIN-HOSTS", "%s", err.msg);
    return status;
}

static int run_top(const struct options *o)
{
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_secret secret;
    bool with_secret = o->auth_token_file != NULL;
    char host[sizeof(((struct endpoint *)0)->host)];
    uint16_t port = 0;
    cddp_status st = endpoint_parse(o->top, "--top", host, &port, &err);
    int signal = 0;

    if (st != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-TOP", "%s", err.msg);
        return 2;
    }
    if (with_secret)
        st = cdi_secret_load(&secret, o->auth_token_file, &err);
    if (st == CDDP_OK) {
        st = top_run(o->top, with_secret ? &secret : NULL, &signal, &err);
        if (with_secret)
            cdi_secret_release(&secret);
    }
    if (st != CDDP_OK)
        cdi_log(CDI_LOG_ERROR, "MAIN-TOP", "%s", err.msg);
    return signal != 0 ? 128 + signal : st == CDDP_OK ? 0 : 1;
}

__attribute__((noinline)) static int run_main(int argc, char **argv)
{
    struct options o;
    struct cdi_error err;
    int level;

    fill_standard_fds();
    guard_outlive_file_limit();
    cdi_log_set_name("cddprun");
    if (options_parse(&o, argc, argv, options_real_env, NULL, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-OPTIONS", "%s", err.msg);
        return 2;
    }
    if (o.what == OPTIONS_RUN && o.status_fd > STDERR_FILENO && (o.hosts != NULL || o.hostfile != NULL)) {
        cdi_log(CDI_LOG_ERROR, "MAIN-STATUS",
                "--status_fd=%lld: with --hosts it can be 1 or 2 only; the hosts have no other descriptor of this one",
                (long long)o.status_fd);
        return 2;
    }
    /* Check now: a descriptor opened later could pass for the caller's. */
    if (o.what == OPTIONS_RUN && o.status_fd >= 0 && event_log_check((int)o.status_fd, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-STATUS", "%s", err.msg);
        return 2;
    }
    level = o.log_level == NULL ? -1 : cdi_log_level_parse(o.log_level);
    if (level >= 0 && level <= CDI_LOG_ERROR)
        cdi_log_set_level((enum cdi_log_level)level);
    else if (level < 0 && o.log_level != NULL && *o.log_level != '\0' && !o.remote)
        cdi_log(CDI_LOG_WARN, "MAIN-LOGLEVEL", "LOGLEVEL '%.64s' is not debug, info, warning or error; using warning",
                o.log_level);
    if (o.remote && remote_end_start(&o, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-REMOTE", "%s", err.msg);
        return 1;
    }
    (void)unsetenv(OPTIONS_REMOTE_ENV); /* workers do not get it */
    switch (o.what) {
    case OPTIONS_HELP:
        help_usage(stdout);
        return end_stdout();
    case OPTIONS_VERSION:
        printf("cddprun %s\n", CDDP_VERSION);
        return end_stdout();
    case OPTIONS_WHERE:
        return show_where(&o, stdout);
    case OPTIONS_TOP:
        return run_top(&o);
    case OPTIONS_MAKE_TOKEN:
        return make_token(o.make_token);
    case OPTIONS_RUN:
        return o.hosts != NULL || o.hostfile != NULL ? run_hosts(&o, argv) : main_run(&o);
    }
    return 2;
}

/* Separate, so that functions that need a large stack run after the check. */
int main(int argc, char **argv)
{
    return has_stack() ? run_main(argc, argv) : 1;
}
