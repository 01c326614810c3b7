/* SPDX-License-Identifier: Apache-2.0 */
/* What a disk, a directory and a reader can do to ranks' files; tests/integration/test_logs.py has their layout. */
#include "common/log.h"
#include "hygiene.h"
#include "launcher/output/logs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCAL_RANKS 12

/* Pipes instead of stdout and stderr, a directory, and the logged messages. */
static struct {
    uv_loop_t loop;
    struct writer *console;
    struct logs *logs;
    struct options o;
    struct plan plan;
    int pipe[2], saved[2]; /* the pipes' read ends, and the former stdout and stderr */
    char dir[64], log_dir[96], run_dir[96];
    char said[1024];
    unsigned n_said, n_room;
    int n_closed, lost;
} t;

static void note(enum cdi_log_level level, const char *id, const char *text, void *arg)
{
    (void)level;
    (void)arg;
    t.n_said++;
    (void)snprintf(t.said, sizeof t.said, "%s %s", id, text);
}

static void on_room(void *arg)
{
    (void)arg;
    t.n_room++;
}

static void on_lost(void *arg, int error)
{
    (void)arg;
    t.lost = error;
}

static const struct writer_events events = {.room = on_room};

static void begin(void)
{
    hygiene_begin();
    memset(&t, 0, sizeof t);
    (void)snprintf(t.dir, sizeof t.dir, "/tmp/cdi-logs-XXXXXX");
    cr_assert_not_null(mkdtemp(t.dir));
    (void)snprintf(t.log_dir, sizeof t.log_dir, "%s/a/b", t.dir);
    (void)snprintf(t.run_dir, sizeof t.run_dir, "%s/run", t.dir);
    cr_assert_eq(mkdir(t.run_dir, 0700), 0);
    for (int i = 0; i < 2; i++) {
        int pair[2];

        cr_assert_eq(pipe2(pair, O_CLOEXEC), 0);
        t.saved[i] = fcntl(i + 1, F_DUPFD_CLOEXEC, 10);
        cr_assert_eq(dup2(pair[1], i + 1), i + 1);
        (void)close(pair[1]);
        t.pipe[i] = pair[0];
    }
    cr_assert_eq(uv_loop_init(&t.loop), 0);
    cr_assert_eq(writer_start(&t.console, &t.loop, LOCAL_RANKS, &events, NULL, NULL), CDDP_OK);
    cdi_log_set_sink(note, NULL);
    t.o = (struct options){.redirects = "0", .tee = "0", .role = "default"};
    t.plan = (struct plan){.n_procs = LOCAL_RANKS, .role = "default", .run_id = "job", .options = &t.o};
}

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        char below[PATH_MAX];

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        (void)snprintf(below, sizeof below, "%s/%s", path, e->d_name);
        if (unlink(below) != 0)
            remove_tree(below);
    }
    if (d != NULL)
        (void)closedir(d);
    (void)rmdir(path);
}

static void end(void)
{
    cdi_log_set_sink(NULL, NULL);
    for (int i = 0; i < 2; i++) {
        (void)dup2(t.saved[i], i + 1);
        (void)close(t.saved[i]);
        (void)close(t.pipe[i]);
    }
    remove_tree(t.dir);
    if (uv_loop_close(&t.loop) != 0)
        abort();
    uv_library_shutdown();
    hygiene_end();
}

TestSuite(logs, .init = begin, .fini = end);

static void start(void)
{
    struct logs_options opt = {
        .plan = &t.plan, .console = t.console, .run_dir = t.run_dir, .room = on_room, .lost = on_lost};

    cr_assert_eq(logs_start(&t.logs, &t.loop, &opt, NULL), CDDP_OK);
    logs_begin(t.logs, 0);
}

static void on_closed(void *arg, bool flushed)
{
    (void)arg;
    cr_assert(flushed);
    t.n_closed++;
}

static void finish(void)
{
    logs_close(t.logs, on_closed, NULL);
    (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    writer_close(t.console, on_closed, NULL);
    (void)uv_run(&t.loop, UV_RUN_DEFAULT);
    cr_assert_eq(t.n_closed, 2);
}

/* What one worker prints on one stream, from beginning to end; its global rank is 100 more than its local one. */
static void print(uint32_t local_rank, int number, const char *text)
{
    struct logs_stream s;

    logs_open(t.logs, &s, local_rank, 100 + local_rank, number);
    logs_feed(&s, text, strlen(text));
    logs_feed(&s, NULL, 0);
    logs_release(&s);
}

/* Returns the text shown on stdout (1) or stderr (2); after finish(). */
static const char *shown(int number)
{
    static char text[2][4096];
    char *to = text[number - 1];
    ssize_t n;

    cr_assert_eq(fcntl(t.pipe[number - 1], F_SETFL, O_NONBLOCK), 0);
    n = read(t.pipe[number - 1], to, sizeof text[0] - 1);
    to[n > 0 ? n : 0] = '\0';
    return to;
}

/* The only name in a directory. */
static const char *only_entry(const char *path)
{
    static char name[256];
    DIR *d = opendir(path);
    const struct dirent *e;

    name[0] = '\0';
    cr_assert_not_null(d, "%s", path);
    while ((e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        cr_assert_str_empty(name, "%s and %s", name, e->d_name);
        (void)snprintf(name, sizeof name, "%s", e->d_name);
    }
    (void)closedir(d);
    return name;
}

/* A file below the run's directory. */
static const char *content(const char *path)
{
    static char text[4096];
    char full[PATH_MAX];
    ssize_t n;
    int fd;

    (void)snprintf(full, sizeof full, "%s/%s/%s", t.log_dir, only_entry(t.log_dir), path);
    fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    (void)close(fd);
    return text;
}

Test(logs, each_round_has_its_own_directory)
{
    char path[PATH_MAX];

    t.o.log_dir = t.log_dir;
    t.o.redirects = "1";
    t.o.duplicate_stdout_filters = "x";
    start();
    print(0, 1, "x0\n");
    logs_begin(t.logs, 1);
    print(0, 1, "x1\n");
    logs_begin(t.logs, 1); /* a node has joined: the count stays */
    print(0, 1, "x2\n");
    logs_error_file(t.logs, 0, path);
    finish();
    cr_assert_str_eq(content("attempt_0/0/stdout.log"), "x0\n");
    cr_assert_str_eq(content("attempt_1/0/stdout.log"), "x1\nx2\n");
    cr_assert_str_eq(content("attempt_0/filtered_stdout.log"), "[100] x0\n");
    cr_assert_str_eq(content("attempt_1/filtered_stdout.log"), "[100] x1\n[100] x2\n");
    cr_assert_str_eq(strstr(path, "/attempt_1/"), "/attempt_1/0/error.json");
}

Test(logs, slash_in_job_name_makes_no_directory)
{
    (void)snprintf(t.plan.run_id, sizeof t.plan.run_id, "../team/job");
    t.o.log_dir = t.log_dir;
    start();
    finish();
    cr_assert_eq(strncmp(only_entry(t.log_dir), ".._team_job_", 12), 0, "%s", only_entry(t.log_dir));
}

Test(logs, rejects_directory_that_cannot_be_created)
{
    struct logs_options opt = {
        .plan = &t.plan, .console = t.console, .run_dir = t.run_dir, .room = on_room, .lost = on_lost};
    struct cdi_error err = {.status = CDDP_OK};
    char file[128];

    (void)snprintf(file, sizeof file, "%s/a", t.dir);
    (void)close(open(file, O_CREAT | O_CLOEXEC, 0600));
    t.o.log_dir = t.log_dir;
    cr_assert_eq(logs_start(&t.logs, &t.loop, &opt, &err), CDDP_E_SYSTEM);
    cr_assert_null(t.logs);
    cr_assert_not_null(strstr(err.msg, "--log_dir '"), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, "cannot create a directory there: Not a directory"), "%s", err.msg);
    cr_assert_eq(t.n_said, 0);
    writer_close(t.console, on_closed, NULL);
    (void)uv_run(&t.loop, UV_RUN_DEFAULT);
}

Test(logs, vanished_directory_warns_once_and_shows_output)
{
    t.o.log_dir = t.log_dir;
    t.o.redirects = "3";
    start();
    remove_tree(t.log_dir);
    print(0, 1, "out\n");
    print(1, 1, "out\n");
    logs_begin(t.logs, 1);
    print(0, 2, "err\n");
    finish();
    cr_assert_str_eq(shown(1), "[100] out\n[101] out\n");
    cr_assert_str_eq(shown(2), "[100] err\n");
    cr_assert_eq(t.n_said, 1);
}

Test(logs, full_disk_warns_once_and_keeps_other_files)
{
    char path[PATH_MAX];

    t.o.log_dir = t.log_dir;
    t.o.tee = "3";
    start();
    (void)snprintf(path, sizeof path, "%s/%s/attempt_0/0", t.log_dir, only_entry(t.log_dir));
    cr_assert_eq(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/%s/attempt_0/0/stdout.log", t.log_dir, only_entry(t.log_dir));
    cr_assert_eq(symlink("/dev/full", path), 0);
    print(0, 1, "out\n");
    while (t.n_said == 0)
        (void)uv_run(&t.loop, UV_RUN_ONCE);
    print(0, 1, "more\n");
    print(0, 2, "err\n");
    finish();
    cr_assert_str_eq(shown(1), "[100] out\n[100] more\n");
    cr_assert_str_eq(content("attempt_0/0/stderr.log"), "err\n");
    cr_assert_eq(t.n_said, 1);
    cr_assert_not_null(strstr(t.said, "No space left on device"), "%s", t.said);
    cr_assert_eq(t.lost, ENOSPC);
}

Test(logs, stalled_reader_fills_one_workers_queue_only)
{
    static char lines[65536], taken[1 << 16];
    struct logs_stream s;
    size_t left = 0;

    memset(lines, 'x', sizeof lines);
    for (size_t i = 99; i < sizeof lines; i += 100)
        lines[i] = '\n';
    start();
    logs_open(t.logs, &s, 0, 0, 1);
    while (!logs_full(t.logs, 0) && left < 4 * WRITER_HIGH) {
        logs_feed(&s, lines, sizeof lines);
        left += sizeof lines;
    }
    cr_assert(logs_full(t.logs, 0));
    cr_assert_not(logs_full(t.logs, 1));
    (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    cr_assert_eq(t.n_room, 0);
    cr_assert_eq(fcntl(t.pipe[0], F_SETFL, O_NONBLOCK), 0);
    while (t.n_room == 0) {
        (void)!read(t.pipe[0], taken, sizeof taken);
        (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    }
    cr_assert_not(logs_full(t.logs, 0));
    logs_release(&s);
    (void)fcntl(t.pipe[0], F_SETFL, 0);
    logs_close(t.logs, on_closed, NULL);
    writer_close(t.console, on_closed, NULL);
    while (t.n_closed < 2) {
        (void)fcntl(t.pipe[0], F_SETFL, O_NONBLOCK);
        (void)!read(t.pipe[0], taken, sizeof taken);
        (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    }
    (void)uv_run(&t.loop, UV_RUN_DEFAULT);
}
