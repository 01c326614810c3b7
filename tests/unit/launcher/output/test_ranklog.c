/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/output/ranklog.h"

#include <string.h>

CDI_SUITE(ranklog);

static void feed(struct ranklog *log, struct cdi_buf *out, const char *text)
{
    struct ranklog_out to = {.shown = out};

    cr_assert_eq(ranklog_feed(log, text, strlen(text), &to), CDDP_OK);
}

static void init(struct ranklog *log, uint32_t rank, bool keep_tail)
{
    char prefix[RANKLOG_PREFIX_MAX];
    struct ranklog_options opt = {
        .prefix = ranklog_prefix(prefix, NULL, "default", rank, 0), .rank = rank, .keep_tail = keep_tail};

    ranklog_init(log, &opt);
}

#define EXPECT(out, text)                                                                                         \
    do {                                                                                                          \
        cr_assert_eq((out)->len, strlen(text), "%.*s", (int)(out)->len, cdi_buf_data(out));                       \
        cr_assert_eq(memcmp(cdi_buf_data(out), text, (out)->len), 0, "%.*s", (int)(out)->len, cdi_buf_data(out)); \
    } while (0)

Test(ranklog, prefixes_whole_lines)
{
    struct ranklog log;
    struct cdi_buf out;

    cdi_buf_init(&out, 0);
    init(&log, 12, false);
    feed(&log, &out, "one\ntw");
    EXPECT(&out, "[12] one\n");
    feed(&log, &out, "o\n\nthree");
    EXPECT(&out, "[12] one\n[12] two\n[12] \n");
    cr_assert_eq(ranklog_end(&log, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    EXPECT(&out, "[12] one\n[12] two\n[12] \n[12] three\n");
    cr_assert_eq(ranklog_end(&log, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    EXPECT(&out, "[12] one\n[12] two\n[12] \n[12] three\n");
    ranklog_release(&log);
    cdi_buf_release(&out);
}

Test(ranklog, keeps_newlines_after_longest_prefix)
{
    static char newlines[65536];
    char template[2 * RANKLOG_PREFIX_MAX], prefix[RANKLOG_PREFIX_MAX];
    struct ranklog_options opt = {.colour = true};
    struct ranklog log;
    struct cdi_buf out;
    size_t lines = 0;

    memset(newlines, '\n', sizeof newlines);
    memset(template, 'x', sizeof template - 1);
    template[sizeof template - 1] = '\0';
    opt.prefix = ranklog_prefix(prefix, template, "default", 0, 0);
    cr_assert_eq(strlen(opt.prefix), RANKLOG_PREFIX_MAX - 1);
    ranklog_init(&log, &opt);
    cdi_buf_init(&out, RANKLOG_OUT_MAX(sizeof newlines));
    cr_assert_eq(ranklog_feed(&log, newlines, sizeof newlines, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    for (size_t i = 0; i < out.len; i++)
        lines += cdi_buf_data(&out)[i] == '\n';
    cr_assert_eq(lines, sizeof newlines);
    ranklog_release(&log);
    cdi_buf_release(&out);
}

Test(ranklog, input_cuts_change_nothing)
{
    static const char text[] = "a\nbb\n\nccc\nlast";

    for (size_t cut = 0; cut < sizeof text; cut++) {
        struct ranklog log;
        struct cdi_buf out;

        cdi_buf_init(&out, 0);
        init(&log, 0, false);
        cr_assert_eq(ranklog_feed(&log, text, cut, &(struct ranklog_out){.shown = &out}), CDDP_OK);
        cr_assert_eq(ranklog_feed(&log, text + cut, strlen(text + (cut < sizeof text - 1 ? cut : sizeof text - 1)),
                                  &(struct ranklog_out){.shown = &out}),
                     CDDP_OK);
        cr_assert_eq(ranklog_end(&log, &(struct ranklog_out){.shown = &out}), CDDP_OK);
        if (cut < sizeof text - 1)
            EXPECT(&out, "[0] a\n[0] bb\n[0] \n[0] ccc\n[0] last\n");
        ranklog_release(&log);
        cdi_buf_release(&out);
    }
}

Test(ranklog, marks_pieces_of_long_line)
{
    size_t n = 2 * RANKLOG_LINE_MAX + 10;
    char *line = malloc(n + 1);
    struct ranklog log;
    struct cdi_buf out;
    const char *p;

    memset(line, 'x', n);
    line[n] = '\n';
    cdi_buf_init(&out, 0);
    init(&log, 3, true);
    cr_assert_eq(ranklog_feed(&log, line, 100, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    cr_assert_eq(ranklog_feed(&log, line + 100, n + 1 - 100, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    cr_assert_eq(out.len, n + strlen("[3] \n[3]+ \n[3]+ \n"));
    p = (const char *)cdi_buf_data(&out);
    cr_assert_eq(strncmp(p, "[3] xxx", 7), 0);
    p += 4 + RANKLOG_LINE_MAX;
    cr_assert_eq(strncmp(p, "\n[3]+ xxx", 9), 0);
    p += 6 + RANKLOG_LINE_MAX;
    cr_assert_eq(strncmp(p, "\n[3]+ xxxxxxxxxx\n", 17), 0);
    cr_assert_eq(ranklog_tail_count(&log), 1, "one line, however long");
    cdi_buf_consume(&out, out.len);
    feed(&log, &out, "next\n");
    EXPECT(&out, "[3] next\n");
    ranklog_release(&log);
    cdi_buf_release(&out);
    free(line);
}

Test(ranklog, bounds_stream_without_newlines)
{
    char chunk[5000];
    struct ranklog log;
    struct cdi_buf out;

    memset(chunk, 'y', sizeof chunk);
    cdi_buf_init(&out, 0);
    init(&log, 0, false);
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(ranklog_feed(&log, chunk, sizeof chunk, &(struct ranklog_out){.shown = &out}), CDDP_OK);
        cr_assert_leq(log.part.len, RANKLOG_LINE_MAX);
        cr_assert_leq(log.part.cap, 2 * RANKLOG_LINE_MAX);
        cdi_buf_consume(&out, out.len);
    }
    ranklog_release(&log);
    cdi_buf_release(&out);
}

Test(ranklog, remembers_last_lines_oldest_first)
{
    struct ranklog log;
    struct cdi_buf out;
    char line[1000];

    cdi_buf_init(&out, 0);
    init(&log, 0, true);
    cr_assert_eq(ranklog_tail_count(&log), 0);
    for (int i = 0; i < RANKLOG_TAIL_LINES + 3; i++) {
        (void)snprintf(line, sizeof line, "line %d\n", i);
        feed(&log, &out, line);
    }
    cr_assert_eq(ranklog_tail_count(&log), RANKLOG_TAIL_LINES);
    cr_assert_str_eq(ranklog_tail_line(&log, 0), "line 3");
    cr_assert_str_eq(ranklog_tail_line(&log, RANKLOG_TAIL_LINES - 1), "line 12");
    memset(line, 'z', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    line[sizeof line - 2] = '\n';
    feed(&log, &out, line);
    cr_assert_eq(strlen(ranklog_tail_line(&log, RANKLOG_TAIL_LINES - 1)), RANKLOG_TAIL_BYTES - 1);
    ranklog_release(&log);
    cdi_buf_release(&out);
}

Test(ranklog, prefix_follows_torchruns_template)
{
    char buf[RANKLOG_PREFIX_MAX], longest[600];

    cr_assert_str_eq(ranklog_prefix(buf, NULL, "worker", 12, 3), "[12] ");
    cr_assert_str_eq(ranklog_prefix(buf, "[${role_name}${local_rank}]:", "worker", 12, 3), "[worker3]:");
    cr_assert_str_eq(ranklog_prefix(buf, "${rank}/${rank} ${other}|$", "worker", 12, 3), "12/12 ${other}|$");
    cr_assert_str_eq(ranklog_prefix(buf, "", "worker", 12, 3), "");
    cr_assert_str_eq(ranklog_prefix(buf, "a\nb", "worker", 12, 3), "a b", "a prefix is one line");
    memset(longest, 'p', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    cr_assert_eq(strlen(ranklog_prefix(buf, longest, "worker", 0, 0)), RANKLOG_PREFIX_MAX - 1);
    cr_assert_eq(strlen(ranklog_prefix(buf, "${role_name}${rank}", longest, 0, 0)), RANKLOG_PREFIX_MAX - 1);
}

Test(ranklog, matching_lines_are_duplicated_without_colour)
{
    static const char words[] = "loss\0acc";
    struct ranklog_options opt = {.prefix = "[1] ", .rank = 1, .colour = true, .filter = {.words = words, .n = 2}};
    struct cdi_buf shown, matched;
    struct ranklog_out out = {.shown = &shown, .matched = &matched};
    struct ranklog log;

    cdi_buf_init(&shown, 0);
    cdi_buf_init(&matched, 0);
    ranklog_init(&log, &opt);
    cr_assert_eq(ranklog_feed(&log, "loss 3\nother\nmy acc", 19, &out), CDDP_OK);
    cr_assert_eq(ranklog_end(&log, &out), CDDP_OK);
    EXPECT(&matched, "[1] loss 3\n[1] my acc\n");
    EXPECT(&shown, "\033[32m[1] \033[0mloss 3\n\033[32m[1] \033[0mother\n\033[32m[1] \033[0mmy acc\n");
    cdi_buf_consume(&matched, matched.len);
    out.shown = NULL;
    cr_assert_eq(ranklog_feed(&log, "loss\nx\n", 7, &out), CDDP_OK);
    EXPECT(&matched, "[1] loss\n");
    ranklog_release(&log);
    cdi_buf_release(&shown);
    cdi_buf_release(&matched);
}

static void init_drawn(struct ranklog *log, uint32_t rank, bool *drawn)
{
    char prefix[RANKLOG_PREFIX_MAX];
    struct ranklog_options opt = {
        .prefix = ranklog_prefix(prefix, NULL, "default", rank, 0), .rank = rank, .drawn = drawn, .keep_tail = true};

    ranklog_init(log, &opt);
}

Test(ranklog, terminal_overwrites_progress_bars)
{
    struct ranklog a, b;
    struct cdi_buf out;
    bool drawn = false;

    cdi_buf_init(&out, 0);
    init_drawn(&a, 0, &drawn);
    init_drawn(&b, 1, &drawn);
    feed(&a, &out, "\r10%");
    EXPECT(&out, ""); /* its end has not come */
    feed(&a, &out, "\r20%");
    EXPECT(&out, "[0] 10%\r");
    feed(&b, &out, "\r11%\r");
    EXPECT(&out, "[0] 10%\r");
    feed(&b, &out, "12%");
    EXPECT(&out, "[0] 10%\r\033[K[1] 11%\r");
    cr_assert(drawn);
    feed(&a, &out, "\r30%\n");
    EXPECT(&out, "[0] 10%\r\033[K[1] 11%\r\033[K[0] 20%\r\033[K[0] 30%\n");
    cr_assert_not(drawn);
    cr_assert_eq(ranklog_end(&b, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    EXPECT(&out, "[0] 10%\r\033[K[1] 11%\r\033[K[0] 20%\r\033[K[0] 30%\n[1] 12%\n");
    cr_assert_eq(ranklog_tail_count(&a), 1);
    cr_assert_str_eq(ranklog_tail_line(&a, 0), "30%");
    ranklog_release(&a);
    ranklog_release(&b);
    cdi_buf_release(&out);
}

Test(ranklog, terminal_keeps_carriage_return_before_newline)
{
    static const char text[] = "one\r\n\rtwo\r\r\n\r\nthree\r";

    for (size_t cut = 0; cut < sizeof text; cut++) {
        char first[sizeof text];
        struct ranklog log;
        struct cdi_buf out;
        bool drawn = false;

        memcpy(first, text, cut);
        first[cut] = '\0';
        cdi_buf_init(&out, 0);
        init_drawn(&log, 0, &drawn);
        feed(&log, &out, first);
        feed(&log, &out, text + cut);
        cr_assert_eq(ranklog_end(&log, &(struct ranklog_out){.shown = &out}), CDDP_OK);
        EXPECT(&out, "[0] one\r\n[0] two\r\033[K[0] \r\n[0] \r\n[0] three\r\n");
        ranklog_release(&log);
        cdi_buf_release(&out);
    }
}

Test(ranklog, terminal_output_fits_bound)
{
    static char bytes[65536];
    char template[2 * RANKLOG_PREFIX_MAX], prefix[RANKLOG_PREFIX_MAX];
    bool drawn = false;
    struct ranklog_options opt = {.colour = true, .drawn = &drawn};
    struct ranklog log;
    struct cdi_buf out;

    memset(template, 'x', sizeof template - 1);
    template[sizeof template - 1] = '\0';
    opt.prefix = ranklog_prefix(prefix, template, "r", 0, 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = i % 3 == 0 ? 'x' : i % 3 == 1 ? '\r' : '\n';
    cdi_buf_init(&out, RANKLOG_OUT_MAX(sizeof bytes));
    ranklog_init(&log, &opt);
    cr_assert_eq(ranklog_feed(&log, bytes, sizeof bytes, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    cdi_buf_consume(&out, out.len);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = i % 2 == 0 ? 'x' : '\r';
    cr_assert_eq(ranklog_feed(&log, bytes, sizeof bytes, &(struct ranklog_out){.shown = &out}), CDDP_OK);
    cr_assert_gt(out.len, sizeof bytes / 2 * strlen(prefix));
    ranklog_release(&log);
    cdi_buf_release(&out);
}
