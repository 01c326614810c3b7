/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/stdin_copy.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

CDI_SUITE(stdin_copy);

#define N 3

/* Reads what comes next; "": nothing for a moment, or the end. */
static void read_next(int fd, int timeout_ms, char text[16])
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t n = poll(&p, 1, timeout_ms) == 1 ? read(fd, text, 15) : 0;

    text[n > 0 ? n : 0] = '\0';
}

static void say(int to, const char *text)
{
    cr_assert_eq(write(to, text, strlen(text)), (ssize_t)strlen(text));
}

static void begin_round(struct stdin_copy *c, int out[N], uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        if (out[i] >= 0)
            (void)close(out[i]);
        out[i] = stdin_copy_pipe(c, i);
        cr_assert_geq(out[i], 0);
    }
}

Test(stdin_copy, ranks_of_a_round_get_the_same)
{
    struct stdin_copy *c;
    char text[N][16];
    int in[2], out[N] = {-1, -1, -1};

    cr_assert(pipe(in) == 0 && dup2(in[0], STDIN_FILENO) == STDIN_FILENO);
    cr_assert_eq(stdin_copy_start(&c, N, NULL), CDDP_OK);
    begin_round(c, out, 0, N);
    say(in[1], "first");
    for (int i = 0; i < N; i++) {
        read_next(out[i], 10000, text[i]);
        cr_assert_str_eq(text[i], "first");
    }
    begin_round(c, out, 0, 1); /* while the thread waits for more */
    say(in[1], "second");
    read_next(out[0], 200, text[0]);
    cr_assert_str_empty(text[0], "the others could not have it");
    begin_round(c, out, 1, N);
    for (int i = 0; i < N; i++) {
        read_next(out[i], 10000, text[i]);
        cr_assert_str_eq(text[i], "second");
    }
    for (int i = 0; i < N; i++) {
        (void)close(out[i]);
        out[i] = -1;
    }
    say(in[1], "for nobody"); /* or for all of the next round */
    begin_round(c, out, 0, N);
    (void)close(in[0]);
    (void)close(in[1]);
    for (int i = 0; i < N; i++)
        read_next(out[i], 10000, text[i]);
    for (int i = 1; i < N; i++)
        cr_assert_str_eq(text[i], text[0]);
    for (int i = 0; i < N; i++) {
        while (text[i][0] != '\0') /* until the end, after which the thread needs nothing more */
            read_next(out[i], 10000, text[i]);
        (void)close(out[i]);
    }
    stdin_copy_end(c);
}

/* Reads all that comes until `ms` without any, and checks that it goes on counting from *next. Returns its bytes. */
static size_t drain(int fd, uint8_t *next, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint8_t bytes[65536];
    size_t sum = 0;
    ssize_t n;

    while (poll(&p, 1, ms) == 1 && (n = read(fd, bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < n; i++, (*next)++)
            cr_assert_eq(bytes[i], *next, "after %zu bytes", sum + (size_t)i);
        sum += (size_t)n;
    }
    return sum;
}

/* Place 2 does not read. The others get all that may wait for it, and it all of that, later. */
Test(stdin_copy, one_that_does_not_read_holds_up_nobody_for_long)
{
    struct stdin_copy *c;
    uint8_t block[65536], next[N] = {0};
    int in[2], out[N] = {-1, -1, -1};
    size_t said = 0, got[N] = {0}, before = 0;

    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (uint8_t)i;
    cr_assert(pipe(in) == 0 && dup2(in[0], STDIN_FILENO) == STDIN_FILENO);
    (void)fcntl(in[1], F_SETFL, O_NONBLOCK);
    cr_assert_eq(stdin_copy_start(&c, N, NULL), CDDP_OK);
    begin_round(c, out, 0, N);
    for (int still = 0; still < 500; still++, before = got[0]) { /* until nothing moves any more */
        ssize_t n = write(in[1], block + said % 256, sizeof block - 256);

        said += n > 0 ? (size_t)n : 0;
        got[0] += drain(out[0], &next[0], 1);
        got[1] += drain(out[1], &next[1], 1);
        still = n > 0 || got[0] != before ? 0 : still;
    }
    cr_assert_geq(got[0], STDIN_COPY_MAX - sizeof block);
    cr_assert_leq(said, STDIN_COPY_MAX + 4 * sizeof block, "%zu bytes were read for one that takes none", said);
    (void)close(in[1]);
    (void)close(in[0]);
    for (int i = N - 1; i >= 0; i--)
        got[i] += drain(out[i], &next[i], 1000);
    for (int i = 0; i < 2; i++)
        got[i] += drain(out[i], &next[i], 1000);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(got[i], said, "place %d got %zu of %zu bytes", i, got[i], said);
        (void)close(out[i]);
    }
    stdin_copy_end(c);
}
