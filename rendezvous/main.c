/* SPDX-License-Identifier: Apache-2.0 */
/* cddp-rendezvous: the rendezvous server as a daemon, for many jobs. */
#include "common/env.h"
#include "common/log.h"
#include "rendezvous/daemon_options.h"

#include <cddp/version.h>
#include <signal.h>
#include <string.h>

static struct rdzv_server *server;
static uv_signal_t on_term, on_int;

static void on_signal(uv_signal_t *handle, int number)
{
    (void)handle;
    cdi_log(CDI_LOG_INFO, "RDZV-SIGNAL", "ended by signal %d (%s)", number, number == SIGTERM ? "SIGTERM" : "SIGINT");
    uv_close((uv_handle_t *)&on_term, NULL);
    uv_close((uv_handle_t *)&on_int, NULL);
    rdzv_server_close(server, NULL, NULL);
}

static cddp_status watch_signals(uv_loop_t *loop, struct cdi_error *err)
{
    int rc;

    (void)uv_signal_init(loop, &on_term);
    (void)uv_signal_init(loop, &on_int);
    rc = uv_signal_start(&on_term, on_signal, SIGTERM);
    if (rc == 0)
        rc = uv_signal_start(&on_int, on_signal, SIGINT);
    if (rc == 0)
        return CDDP_OK;
    uv_close((uv_handle_t *)&on_term, NULL);
    uv_close((uv_handle_t *)&on_int, NULL);
    rdzv_server_close(server, NULL, NULL);
    return cdi_fail_errno(err, -rc, "cannot watch signals");
}

static cddp_status serve(uv_loop_t *loop, const struct daemon_options *o, const struct cdi_secret *secret,
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
                                            .plain_store = o->plain_store};
    bool six = strchr(o->bind, ':') != NULL;
    cddp_status st = rdzv_server_start(&server, loop, &opt, err);

    if (st == CDDP_OK)
        st = watch_signals(loop, err);
    if (st == CDDP_OK) {
        if (secret == NULL)
            cdi_log(CDI_LOG_WARN, "RDZV-OPEN",
                    "no --auth_token_file: whoever reaches this port can use and disturb jobs");
        (void)printf("listening %s%s%s:%u\n", six ? "[" : "", o->bind, six ? "]" : "", rdzv_server_port(server));
        (void)fflush(stdout);
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
    return st;
}

static int run(const struct daemon_options *o)
{
    const char *path = o->auth_token_file != NULL ? o->auth_token_file : cdi_env_str(CDI_SECRET_ENV);
    struct cdi_secret secret = {.key = {0}};
    struct cdi_error err = {0};
    uv_loop_t loop;
    cddp_status st = path == NULL ? CDDP_OK : cdi_secret_load(&secret, path, &err);
    int rc = 0;

    if (st == CDDP_OK && (rc = uv_loop_init(&loop)) != 0)
        st = cdi_fail_errno(&err, -rc, "cannot start the event loop");
    if (st == CDDP_OK) {
        st = serve(&loop, o, path == NULL ? NULL : &secret, &err);
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
    return run(&o);
}
