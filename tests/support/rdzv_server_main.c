/* SPDX-License-Identifier: Apache-2.0 */
/* A bare rendezvous server for tests: prints its port, serves until its standard input ends. */
#include "common/log.h"
#include "rendezvous/server.h"
#include "watch/views.h"

#include <signal.h>
#include <stdio.h>

static struct rdzv_server *server;

static void alloc_some(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    static char bytes[256];

    (void)handle;
    (void)suggested;
    *buf = uv_buf_init(bytes, sizeof bytes);
}

static void on_stdin(uv_stream_t *in, ssize_t n, const uv_buf_t *buf)
{
    (void)buf;
    if (n >= 0)
        return;
    uv_close((uv_handle_t *)in, NULL);
    rdzv_server_close(server, NULL, NULL);
}

int main(void)
{
    const struct rdzv_server_options opt = {
        .host = "*", .run_id = "test", .join_timeout_ms = 86400000, .views = &watch_views};
    struct cdi_error err;
    uv_loop_t loop;
    uv_pipe_t in;

    cdi_log_set_name("rdzv_server");
    (void)signal(SIGPIPE, SIG_IGN);
    if (uv_loop_init(&loop) != 0 || uv_pipe_init(&loop, &in, 0) != 0 || uv_pipe_open(&in, 0) != 0)
        return 1;
    if (rdzv_server_start(&server, &loop, &opt, &err) != CDDP_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("%u\n", rdzv_server_port(server));
    (void)fflush(stdout);
    (void)uv_read_start((uv_stream_t *)&in, alloc_some, on_stdin);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    return uv_loop_close(&loop) == 0 ? 0 : 1;
}
