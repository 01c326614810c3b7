/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/writer.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* The writer knows descriptors 1 and 2 only: each test puts a pipe in the place of its own stdout. */
static struct {
    uv_loop_t loop;
    struct writer *w;
    int pipe_read, saved;
    unsigned n_room;
    bool closed, flushed;
} t;

static void on_room(void *arg)
{
    (void)arg;
    t.n_room++;
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
    cr_assert_eq(writer_start(&t.w, &t.loop, on_room, NULL, NULL), CDDP_OK);
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

Test(writer, what_is_pushed_comes_out_whole_and_in_order)
{
    writer_push(t.w, 1, "one\n", 4);
    writer_push(t.w, 1, "", 0);
    writer_push(t.w, 1, "two\n", 4);
    finish(true);
    expect_read("one\ntwo\n");
}

Test(writer, a_reader_that_stands_still_fills_the_queue_and_room_is_told)
{
    static char block[65536];
    size_t pushed = 0, got = 0;

    while (!writer_full(t.w)) {
        writer_push(t.w, 1, block, sizeof block);
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
    cr_assert_not(writer_full(t.w));
    finish(true);
}

Test(writer, a_closed_reader_loses_the_output_and_nothing_else)
{
    static char block[65536];

    (void)close(t.pipe_read);
    t.pipe_read = -1;
    for (int i = 0; i < 100; i++)
        writer_push(t.w, 1, block, sizeof block);
    finish(true);
}

Test(writer, a_shared_descriptor_that_somebody_made_non_blocking_loses_nothing)
{
    static char block[65536];
    size_t got = 0;

    cr_assert_eq(fcntl(STDOUT_FILENO, F_SETFL, O_WRONLY | O_NONBLOCK), 0);
    for (int i = 0; i < 4; i++)
        writer_push(t.w, 1, block, sizeof block);
    while (got < 4 * sizeof block) {
        ssize_t n = read(t.pipe_read, block, sizeof block);

        cr_assert_gt(n, 0);
        got += (size_t)n;
    }
    finish(true);
}

Test(writer, memory_is_bounded_whatever_is_pushed)
{
    static char block[65536];
    size_t got = 0;
    ssize_t n;

    for (size_t i = 0; i < 4 * WRITER_MAX / sizeof block; i++)
        writer_push(t.w, 1, block, sizeof block);
    writer_close(t.w, on_closed, NULL);
    /* What was taken comes out; the end of it is seen when the last writer of the pipe goes. */
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
