/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/output/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each test replaces its stdout by a pipe. */
static struct {
    uv_loop_t loop;
    struct writer *w;
    int pipe_read, saved;
    unsigned n_room, n_lost;
    int lost_error;
    bool closed, flushed;
    unsigned n_unwritten[2];
    int unwritten;
} t;

static void on_room(void *arg)
{
    (void)arg;
    t.n_room++;
}

static void on_lost(void *arg, const char *path, int error)
{
    (void)arg;
    cr_assert(strlen(path) > 0);
    t.n_lost++;
    t.lost_error = error;
}

static void on_unwritten(void *arg, int fd, int error)
{
    (void)arg;
    t.n_unwritten[fd - 1]++;
    t.unwritten = error;
}

static const struct writer_events events = {.room = on_room, .lost = on_lost, .unwritten = on_unwritten};

static void push(uint32_t source, const void *bytes, size_t n)
{
    writer_push(t.w, writer_std(t.w, 1), source, bytes, n);
}

static void on_closed(void *arg, bool flushed)
{
    (void)arg;
    t.closed = true;
    t.flushed = flushed;
}

static void begin(void)
{
    int pair[2];

    hygiene_begin();
    memset(&t, 0, sizeof t);
    (void)signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(pipe2(pair, O_CLOEXEC), 0);
    t.saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    cr_assert_eq(dup2(pair[1], STDOUT_FILENO), STDOUT_FILENO);
    (void)close(pair[1]);
    t.pipe_read = pair[0];
    cr_assert_eq(uv_loop_init(&t.loop), 0);
    cr_assert_eq(writer_start(&t.w, &t.loop, 3, &events, NULL, NULL), CDDP_OK);
}

static void end(void)
{
    (void)dup2(t.saved, STDOUT_FILENO);
    (void)close(t.saved);
    if (t.pipe_read >= 0)
        (void)close(t.pipe_read);
    if (uv_loop_close(&t.loop) != 0)
        abort();
    uv_library_shutdown(); /* its signal pipe */
    hygiene_end();
}

TestSuite(writer, .init = begin, .fini = end);

static void finish(bool flushed)
{
    writer_close(t.w, on_closed, NULL);
    (void)uv_run(&t.loop, UV_RUN_DEFAULT);
    cr_assert(t.closed);
    cr_assert_eq(t.flushed, flushed);
}

static void expect_read(const char *text)
{
    char buf[64] = "";
    size_t n = 0;

    while (n < strlen(text)) {
        ssize_t got = read(t.pipe_read, buf + n, sizeof buf - 1 - n);

        cr_assert_gt(got, 0);
        n += (size_t)got;
    }
    cr_assert_str_eq(buf, text);
}

Test(writer, writes_whole_and_in_order)
{
    push(0, "one\n", 4);
    push(0, "", 0);
    push(0, "two\n", 4);
    finish(true);
    expect_read("one\ntwo\n");
}

Test(writer, stalled_reader_fills_queue_and_room_is_reported)
{
    static char block[65536];
    size_t pushed = 0, got = 0;

    while (!writer_full(t.w, 0)) {
        push(0, block, sizeof block);
        pushed += sizeof block;
        cr_assert_leq(pushed, 4 * WRITER_HIGH);
    }
    cr_assert_geq(pushed, WRITER_HIGH);
    (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    cr_assert_eq(t.n_room, 0, "nobody has read anything");
    while (got < pushed) {
        ssize_t n = read(t.pipe_read, block, sizeof block);

        cr_assert_gt(n, 0);
        got += (size_t)n;
    }
    while (t.n_room == 0)
        (void)uv_run(&t.loop, UV_RUN_ONCE);
    cr_assert_not(writer_full(t.w, 0));
    finish(true);
}

Test(writer, closed_reader_loses_only_its_output)
{
    static char block[65536];

    (void)close(t.pipe_read);
    t.pipe_read = -1;
    for (int i = 0; i < 100; i++)
        push(0, block, sizeof block);
    finish(true);
    cr_assert_eq(t.n_unwritten[0], 1);
    cr_assert_eq(t.unwritten, EPIPE);
}

Test(writer, own_lost_output_is_not_an_event)
{
    (void)close(t.pipe_read);
    t.pipe_read = -1;
    push(2, "mine\n", 5);
    push(2, "mine\n", 5);
    while (writer_progress(t.w) < 2)
        (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    cr_assert_eq(t.n_unwritten[0], 0);
    push(0, "theirs\n", 7);
    push(0, "theirs\n", 7);
    finish(true);
    cr_assert_eq(t.n_unwritten[0], 1);
    cr_assert_eq(t.n_unwritten[1], 0);
    cr_assert_eq(t.unwritten, EPIPE);
}

/* stdout hangs with its pipe full; stderr is a pipe, too. */
Test(writer, skips_stalled_reader)
{
    static char block[65536];
    int err[2], saved = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10), full;
    char text[16] = "";
    uint64_t before;

    cr_assert_eq(pipe2(err, O_CLOEXEC), 0);
    cr_assert_eq(dup2(err[1], STDERR_FILENO), STDERR_FILENO);
    (void)close(err[1]);
    full = fcntl(STDOUT_FILENO, F_SETPIPE_SZ, 4096);
    cr_assert_eq(full, 4096);
    writer_skip_hung(t.w); /* nothing hangs yet */
    push(0, block, 4096);
    while (writer_progress(t.w) < 1)
        ;
    before = writer_progress(t.w);
    for (int i = 0; i < 8; i++)
        push(0, block, sizeof block);
    writer_push(t.w, writer_std(t.w, 2), 2, "report\n", 7);
    cr_assert_eq(writer_progress(t.w), before);
    do /* until the thread has taken the first of them */
        writer_skip_hung(t.w);
    while (poll(&(struct pollfd){.fd = err[0], .events = POLLIN}, 1, 1) == 0);
    cr_assert_eq(read(err[0], text, sizeof text), 7);
    cr_assert_str_eq(text, "report\n");
    push(0, "more\n", 5); /* dropped */
    /* The write that hung ends when the reader goes on, and the older thread with it. */
    for (size_t got = 0; got < 4096 + sizeof block;) {
        ssize_t n = read(t.pipe_read, block, sizeof block);

        cr_assert_gt(n, 0);
        got += (size_t)n;
    }
    (void)dup2(saved, STDERR_FILENO);
    (void)close(saved);
    (void)close(err[0]);
    finish(true);
    (void)fcntl(t.pipe_read, F_SETFL, O_NONBLOCK);
    cr_assert_eq(read(t.pipe_read, block, sizeof block), -1, "its queued output is dropped");
}

Test(writer, non_blocking_shared_descriptor_loses_nothing)
{
    static char block[65536];
    size_t got = 0;

    cr_assert_eq(fcntl(STDOUT_FILENO, F_SETFL, O_WRONLY | O_NONBLOCK), 0);
    for (int i = 0; i < 4; i++)
        push(0, block, sizeof block);
    while (got < 4 * sizeof block) {
        ssize_t n = read(t.pipe_read, block, sizeof block);

        cr_assert_gt(n, 0);
        got += (size_t)n;
    }
    finish(true);
}

Test(writer, bounds_memory)
{
    static char block[65536];
    size_t got = 0;
    ssize_t n;

    for (size_t i = 0; i < 2 * WRITER_MAX / sizeof block; i++)
        push(0, block, sizeof block);
    writer_close(t.w, on_closed, NULL);
    /* Accepted output is written; its end is visible after the last writer of the pipe has closed it. */
    (void)fcntl(t.pipe_read, F_SETFL, O_NONBLOCK);
    while (!t.closed) {
        while ((n = read(t.pipe_read, block, sizeof block)) > 0)
            got += (size_t)n;
        (void)uv_run(&t.loop, UV_RUN_NOWAIT);
    }
    while ((n = read(t.pipe_read, block, sizeof block)) > 0)
        got += (size_t)n;
    cr_assert_leq(got, WRITER_MAX + 2 * sizeof block);
    cr_assert_geq(got, WRITER_MAX / 2);
    cr_assert(t.flushed);
}

Test(writer, endless_source_fills_only_its_queue)
{
    static char block[65536];
    size_t pushed = 0, got = 0;

    while (!writer_full(t.w, 0)) {
        push(0, block, sizeof block);
        pushed += sizeof block;
    }
    cr_assert_not(writer_full(t.w, 1));
    push(1, block, 10);
    for (pushed += 10; got < pushed;) {
        ssize_t n = read(t.pipe_read, block, sizeof block);

        cr_assert_gt(n, 0);
        got += (size_t)n;
    }
    finish(true);
}

Test(writer, writes_and_closes_file)
{
    char path[] = "/tmp/cdi-writer-XXXXXX", text[16] = "";
    int fd = mkstemp(path);
    struct writer_sink *file;

    cr_assert_eq(writer_file(t.w, &file, path, false), 0);
    for (int i = 0; i < 3; i++)
        writer_push(t.w, file, 1, "abc", 3);
    writer_file_done(file);
    finish(true);
    cr_assert_eq(read(fd, text, sizeof text), 9);
    cr_assert_str_eq(text, "abcabcabc");
    (void)close(fd);
    (void)unlink(path);
}

Test(writer, file_goes_on_or_begins_anew)
{
    static const char *const expected[] = {"ab", "c"};
    char path[] = "/tmp/cdi-writer-XXXXXX";
    int fd = mkstemp(path);
    struct writer_sink *file;

    cr_assert_eq(write(fd, "a", 1), 1);
    for (int anew = 0; anew < 2; anew++) {
        char text[16] = "";

        cr_assert_eq(writer_file(t.w, &file, path, anew), 0);
        writer_push(t.w, file, 1, anew ? "c" : "b", 1);
        writer_file_done(file);
        for (int i = 0; i < 1000 && strcmp(text, expected[anew]) != 0; i++) {
            (void)uv_run(&t.loop, UV_RUN_NOWAIT);
            memset(text, 0, sizeof text);
            (void)pread(fd, text, sizeof text - 1, 0);
            (void)poll(NULL, 0, 1);
        }
        cr_assert_str_eq(text, expected[anew]);
    }
    finish(true);
    (void)close(fd);
    (void)unlink(path);
}

Test(writer, full_disk_is_reported_once_and_blocks_no_source)
{
    struct writer_sink *file, *other;

    cr_assert_eq(writer_file(t.w, &file, "/dev/full", false), 0);
    cr_assert_eq(writer_file(t.w, &other, "/dev/full", false), 0);
    for (int i = 0; i < 10; i++) {
        writer_push(t.w, file, 1, "abc", 3);
        writer_push(t.w, other, 0, "abc", 3);
    }
    while (t.n_lost == 0)
        (void)uv_run(&t.loop, UV_RUN_ONCE);
    cr_assert_eq(t.lost_error, ENOSPC);
    push(0, "still\n", 6);
    writer_file_done(file);
    writer_file_done(other);
    finish(true);
    cr_assert_eq(t.n_lost, 1);
    expect_read("still\n");
}

Test(writer, file_that_cannot_be_created_is_an_errno)
{
    struct writer_sink *file;

    cr_assert_eq(writer_file(t.w, &file, "/dev/null/file", false), ENOTDIR);
    writer_file_done(NULL);
    writer_push(t.w, NULL, 0, "x", 1);
    finish(true);
}
