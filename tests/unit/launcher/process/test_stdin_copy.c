/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/stdin_copy.h"

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
