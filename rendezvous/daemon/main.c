/* SPDX-License-Identifier: Apache-2.0 */
/* cddp-rendezvous: the rendezvous server as a daemon, for several jobs. */
#include "common/clock.h"
#include "common/env.h"
#include "common/log.h"
#include "rendezvous/daemon/options.h"
#include "watch/views.h"

#include <cddp/version.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct rdzv_server *server;
static uv_signal_t on_term, on_int, on_hup;
static const char *secret_path; /* NULL: none */
static bool draining;

/* Sends a state such as "READY=1" to systemd, if systemd started the daemon. Errors are ignored. */
static void notify(const char *state)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = cdi_env_str("NOTIFY_SOCKET");
    size_t len = path == NULL ? 0 : strlen(path);
    int fd;

    if (len == 0 || len >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, path, len);
    if (path[0] == '@')
        to.sun_path[0] = '\0'; /* an abstract name */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
    (void)close(fd);
}

static void stop_watching(void)
{
    uv_signal_t *const all[] = {&on_term, &on_int, &on_hup};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!uv_is_closing((uv_handle_t *)all[i]))
            uv_close((uv_handle_t *)all[i], NULL);
}

static void on_server_closed(void *arg)
{
    (void)arg;
    stop_watching();
}

/* SIGTERM waits for the present jobs; a second one, or SIGINT, does not. */
static void on_end_signal(uv_signal_t *handle, int number)
{
    const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";
    size_t n_jobs = rdzv_server_jobs(server);

    (void)handle;
    notify("STOPPING=1");
    if (number == SIGTERM && !draining && n_jobs > 0) {
        draining = true;
        cdi_log(CDI_LOG_WARN, "RDZV-DRAIN",
                "%s: rejecting new jobs, and exiting after the last of %zu (send it again to exit now)", name, n_jobs);
        rdzv_server_drain(server, on_server_closed, NULL);
        return;
    }
    cdi_log(CDI_LOG_INFO, "RDZV-SIGNAL", "ended by signal %d (%s)", number, name);
    stop_watching();
    rdzv_server_close(server, NULL, NULL);
}

static void on_reload(uv_signal_t *handle, int number)
{
    struct cdi_secret secret = {.key = {0}};
    struct cdi_error err = {0};
    char state[64];

    (void)handle;
    (void)number;
    (void)snprintf(state, sizeof state, "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)(cdi_now_ns() / 1000));
    notify(state);
    if (secret_path == NULL) {
        cdi_log(CDI_LOG_WARN, "RDZV-RELOAD", "SIGHUP: there is no --auth_token_file to reload");
    } else if (cdi_secret_load(&secret, secret_path, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "RDZV-RELOAD", "SIGHUP: keeping the old auth token: %s", err.msg);
    } else {
        rdzv_server_set_secret(server, &secret);
        cdi_log(CDI_LOG_WARN, "RDZV-RELOAD", "SIGHUP: auth token reloaded; new connections must prove it");
    }
    cdi_secret_release(&secret);
    notify("READY=1");
}

static cddp_status watch_signals(uv_loop_t *loop, struct cdi_error *err)
{
    struct sigaction before;
    bool takes_int = sigaction(SIGINT, NULL, &before) != 0 || before.sa_handler != SIG_IGN; /* a script's background */
    int rc;

    (void)uv_signal_init(loop, &on_term);
    (void)uv_signal_init(loop, &on_int);
    (void)uv_signal_init(loop, &on_hup);
    rc = uv_signal_start(&on_term, on_end_signal, SIGTERM);
    if (rc == 0 && takes_int)
        rc = uv_signal_start(&on_int, on_end_signal, SIGINT);
    if (rc == 0)
        rc = uv_signal_start(&on_hup, on_reload, SIGHUP);
    if (rc == 0)
        return CDDP_OK;
    stop_watching();
    rdzv_server_close(server, NULL, NULL);
    return cdi_fail_errno(err, -rc, "cannot watch signals");
}

/* Raises the limit of descriptors, since each rank needs a connection. */
static void raise_descriptor_limit(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max)
        return;
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

static cddp_status daemon_serve(uv_loop_t *loop, const struct daemon_options *o, const struct cdi_secret *secret,
                                struct cdi_error *err)
{
    const struct rdzv_server_options opt = {.host = o->bind,
                                            .port = o->port,
                                            .host_flag = "--bind",
                                            .port_flag = "--port",
                                            .max_jobs = o->max_jobs,
                                            .first_job_port = o->first_job_port,
                                            .last_job_port = o->last_job_port,
                                            .secret = secret,
                                            .plain_store = o->plain_store,
                                            .http = o->http,
                                            .max_connections = o->max_connections,
                                            .max_buffered = o->max_buffered,
                                            .store = o->store,
                                            .views = &watch_views};
    bool six = strchr(o->bind, ':') != NULL;
    cddp_status st = rdzv_server_start(&server, loop, &opt, err);

    if (st == CDDP_OK)
        st = watch_signals(loop, err);
    (void)signal(SIGPIPE, SIG_IGN); /* a client may disconnect during a reply */
    (void)signal(SIGXFSZ, SIG_IGN); /* its log may reach the limit of file sizes (ulimit -f) */
    if (st == CDDP_OK) {
        if (secret == NULL)
            cdi_log(CDI_LOG_WARN, "RDZV-OPEN",
                    "no --auth_token_file: any client that reaches this port can read and modify jobs");
        (void)printf("listening %s%s%s:%u\n", six ? "[" : "", o->bind, six ? "]" : "", rdzv_server_port(server));
        (void)fflush(stdout);
        notify("READY=1");
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
    return st;
}

static int daemon_run(const struct daemon_options *o)
{
    const char *path = o->auth_token_file != NULL ? o->auth_token_file : cdi_env_str(CDI_SECRET_ENV);
    struct cdi_secret secret = {.key = {0}};
    struct cdi_error err = {0};
    uv_loop_t loop;
    cddp_status st = path == NULL ? CDDP_OK : cdi_secret_load(&secret, path, &err);
    int rc = 0;

    secret_path = path;
    raise_descriptor_limit();
    if (st == CDDP_OK && (rc = uv_loop_init(&loop)) != 0)
        st = cdi_fail_errno(&err, -rc, "cannot start the event loop");
    if (st == CDDP_OK) {
        st = daemon_serve(&loop, o, path == NULL ? NULL : &secret, &err);
        (void)uv_loop_close(&loop);
    }
    cdi_secret_release(&secret);
    if (st != CDDP_OK)
        cdi_log(CDI_LOG_ERROR, "RDZV-START", "%s", err.msg);
    return st == CDDP_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct daemon_options o;
    struct cdi_error err;

    cdi_log_set_name("cddp-rendezvous");
    if (daemon_options_parse(&o, argc, argv, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "RDZV-OPTIONS", "%s", err.msg);
        return 2;
    }
    switch (o.what) {
    case DAEMON_HELP:
        daemon_options_usage(stdout);
        return fflush(stdout) == 0 ? 0 : 1;
    case DAEMON_VERSION:
        (void)printf("cddp-rendezvous %s\n", CDDP_VERSION);
        return fflush(stdout) == 0 ? 0 : 1;
    case DAEMON_RUN:
        break;
    }
    return daemon_run(&o);
}
