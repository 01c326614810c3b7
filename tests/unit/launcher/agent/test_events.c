/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/agent/events.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define LINES_MAX 8192

/* Each test has its own writer, which writes to a pipe. */
static struct {
    uv_loop_t loop;
    struct writer *w;
    struct event_log *s;
    int pipe[2];
    char text[LINES_MAX];
} t;

static void on_closed(void *arg, bool flushed)
{
    (void)arg;
    cr_assert(flushed);
}

static void begin(void)
{
    static const struct writer_events events = {.room = NULL};

    hygiene_begin();
    memset(&t, 0, sizeof t);
    cr_assert_eq(pipe2(t.pipe, O_CLOEXEC), 0);
    cr_assert_eq(uv_loop_init(&t.loop), 0);
    cr_assert_eq(writer_start(&t.w, &t.loop, 1, &events, NULL, NULL), CDDP_OK);
}

static void end(void)
{
    if (t.pipe[1] >= 0)
        (void)close(t.pipe[1]);
    (void)close(t.pipe[0]);
    if (uv_loop_close(&t.loop) != 0)
        abort();
    uv_library_shutdown();
    hygiene_end();
}

TestSuite(event_log, .init = begin, .fini = end);

static void start(void)
{
    cr_assert_eq(event_log_start(&t.s, t.w, 0, t.pipe[1], NULL), CDDP_OK);
}

static void close_writer(void)
{
    writer_close(t.w, on_closed, NULL);
    (void)uv_run(&t.loop, UV_RUN_DEFAULT);
}

/* Returns all that was written, as text. */
static const char *finish(void)
{
    size_t n = 0;
    ssize_t got;

    event_log_free(t.s);
    close_writer();
    (void)close(t.pipe[1]); /* the descriptor is the caller's, and still open */
    t.pipe[1] = -1;
    while ((got = read(t.pipe[0], t.text + n, sizeof t.text - 1 - n)) > 0)
        n += (size_t)got;
    t.text[n] = '\0';
    return t.text;
}

/* Returns the only line, without its time, which must be the present; release it. */
static json_t *only_line(void)
{
    const char *text = finish();
    json_t *o = json_loads(text, 0, NULL);
    json_int_t time_ms = json_integer_value(json_object_get(o, "time_ms"));

    cr_assert_not_null(o, "not JSON: %s", text);
    cr_assert_eq(strcspn(text, "\n"), strlen(text) - 1, "not one line: %s", text);
    cr_assert(time_ms > 1500000000000 && time_ms < 10000000000000, "Unix time in ms: %s", text);
    (void)json_object_del(o, "time_ms");
    return o;
}

/* EXPECT("{...}"): exactly this was written, in any order. */
static void expect(const char *json, int line)
{
    json_t *is = only_line(), *wanted = json_loads(json, 0, NULL);
    char *text = json_dumps(is, JSON_COMPACT);

    cr_assert_not_null(wanted, "line %d", line);
    cr_assert(json_equal(is, wanted), "line %d: %s", line, text);
    free(text);
    json_decref(is);
    json_decref(wanted);
}
#define EXPECT(json) expect(json, __LINE__)

static struct cdi_failure failure(enum cdi_end_kind kind, int32_t code)
{
    return (struct cdi_failure){.kind = kind,
                                .code = code,
                                .rank = 5,
                                .local_rank = 1,
                                .node_rank = 2,
                                .pid = 4711,
                                .host = "node2",
                                .text = "rank 5 (pid 4711 on node2) exited\nits message:\n| \"no\" more"};
}

static void expect_end(enum cdi_end_kind kind, int32_t code, const char *json)
{
    struct cdi_failure f = failure(kind, code);

    f.core_dumped = kind == CDI_END_SIGNAL;
    f.pid = kind == CDI_END_SPAWN ? 0 : f.pid;
    start();
    event_log_ended(t.s, &f);
    EXPECT(json);
}

Test(event_log, exited_worker_has_status)
{
    expect_end(CDI_END_EXIT, 7, "{\"event\":\"ended\",\"rank\":5,\"local_rank\":1,\"pid\":4711,\"status\":7}");
}

Test(event_log, killed_worker_has_signal_name)
{
    expect_end(CDI_END_SIGNAL, SIGSEGV,
               "{\"event\":\"ended\",\"rank\":5,\"local_rank\":1,\"pid\":4711,\"status\":139,\"signal\":\"SIGSEGV\","
               "\"core_dumped\":true}");
}

Test(event_log, unstarted_worker_has_shell_status)
{
    expect_end(CDI_END_SPAWN, ENOENT, "{\"event\":\"ended\",\"rank\":5,\"local_rank\":1,\"pid\":0,\"status\":127}");
}

Test(event_log, lost_node_is_failure_without_rank)
{
    struct cdi_failure f = {
        .kind = CDI_END_NODE, .rank = -1, .local_rank = -1, .node_rank = 1, .host = "b", .text = "gone"};

    start();
    event_log_failure(t.s, &f);
    EXPECT("{\"event\":\"failure\",\"rank\":-1,\"local_rank\":-1,\"pid\":0,\"status\":1,\"node_rank\":1,\"host\":\"b\","
           "\"text\":\"gone\"}");
}

Test(event_log, any_worker_text_is_valid_json_line)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 3);
    json_t *o;

    (void)snprintf(f.text, sizeof f.text, "caf\xc3\xa9\nand a bell \a");
    start();
    event_log_failure(t.s, &f);
    o = only_line();
    cr_assert_str_eq(json_string_value(json_object_get(o, "text")), f.text);
    for (const char *p = t.text; *p != '\0'; p++)
        cr_assert(*p == '\n' || (*p >= ' ' && *p <= '~'), "byte %d", *p);
    json_decref(o);
}

Test(event_log, invalid_utf8_keeps_line)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 3);

    (void)snprintf(f.text, sizeof f.text, "rank 5 exited\nits stderr:\n| caf\xe9 \xff");
    (void)snprintf(f.host, sizeof f.host, "h\xf6st");
    start();
    event_log_failure(t.s, &f);
    EXPECT("{\"event\":\"failure\",\"rank\":5,\"local_rank\":1,\"pid\":4711,\"status\":3,\"node_rank\":2,"
           "\"host\":\"h?st\",\"text\":\"rank 5 exited\\nits stderr:\\n| caf? ?\"}");
}

Test(event_log, restart_signal_and_end)
{
    start();
    event_log_restart(t.s, 2, "why");
    event_log_signal(t.s, SIGTERM);
    event_log_end(t.s, 143);
    (void)finish();
    cr_assert_not_null(strstr(t.text, "\"restart_count\":2,\"text\":\"why\",\"event\":\"restart\""), "%s", t.text);
    cr_assert_not_null(strstr(t.text, "\"signal\":15,\"name\":\"SIGTERM\",\"event\":\"signal\""), "%s", t.text);
    cr_assert_not_null(strstr(t.text, "\"status\":143,\"event\":\"end\""), "%s", t.text);
    cr_assert(strstr(t.text, "restart") < strstr(t.text, "SIGTERM") &&
              strstr(t.text, "SIGTERM") < strstr(t.text, "143"));
}

static char heard[512];

static void hear(void *arg, const char *event, int32_t rank, const char *text)
{
    size_t n = strlen(heard);

    cr_assert_eq(arg, heard);
    (void)snprintf(heard + n, sizeof heard - n, "%s %d %s\n", event, (int)rank, text);
}

/* With a descriptor of -1 nothing is written. */
Test(event_log, listener_hears_a_line_about_each_event)
{
    const struct cdi_msg_assign assign = {.n_nodes = 2, .world_size = 8, .restart_count = 1, .master_addr = "h"};
    const struct cdi_failure killed = {.kind = CDI_END_SIGNAL, .code = 9, .rank = 3, .text = "rank 3 was killed"};
    const struct cdi_failure done = {.kind = CDI_END_EXIT, .code = 4, .rank = 2};

    cr_assert_eq(event_log_start(&t.s, t.w, 0, -1, NULL), CDDP_OK);
    event_log_listen(t.s, hear, heard);
    event_log_round(t.s, &assign, 4);
    event_log_started(t.s, 2, 0, 77);
    event_log_ended(t.s, &done);
    event_log_ended(t.s, &killed);
    event_log_failure(t.s, &killed);
    event_log_restart(t.s, 1, "rank 3");
    event_log_signal(t.s, 15);
    event_log_end(t.s, 1);
    cr_assert_str_eq(finish(), "");
    cr_assert_str_eq(heard, "round -1 nodes: 2, ranks: 8, restarts: 1\nstarted 2 pid 77\nended 2 exit status 4\n"
                            "ended 3 SIGKILL\nfailure 3 rank 3 was killed\nrestart -1 rank 3\nsignal -1 SIGTERM\n"
                            "end -1 exit status 1\n");
}

Test(event_log, null_log_does_nothing)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 1);
    struct cdi_msg_assign a = {.round = 0};

    event_log_round(NULL, &a, 1);
    event_log_started(NULL, 0, 0, 1);
    event_log_ended(NULL, &f);
    event_log_failure(NULL, &f);
    event_log_restart(NULL, 1, "");
    event_log_signal(NULL, SIGTERM);
    event_log_end(NULL, 0);
    event_log_free(NULL);
    close_writer();
}

Test(event_log, rejects_unwritable_descriptor_by_flag)
{
    struct cdi_error err;

    cr_assert_eq(event_log_check(t.pipe[1], &err), CDDP_OK);
    cr_assert_eq(event_log_check(t.pipe[0], &err), CDDP_E_INVALID);
    cr_assert_str_eq(strstr(err.msg, "is not open"), "is not open for writing");
    cr_assert_eq(event_log_check(987, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "--status_fd 987 is not an open descriptor");
    close_writer();
}
