/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/agent/progress.h"
#include "launcher/agent/report.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

CDI_SUITE(report);

static struct cdi_failure failure(enum cdi_end_kind kind, int code)
{
    return (struct cdi_failure){
        .kind = kind, .code = code, .rank = 3, .local_rank = 1, .node_rank = 0, .pid = 77, .host = "node1"};
}

static const char *headline_of(struct cdi_failure f)
{
    static char text[600];

    report_headline(&f, text, sizeof text);
    return text;
}

/* The message that report_error_file finds in a file of this content; NULL: none. */
static const char *message_of(const char *content)
{
    static char text[64];
    char path[] = "/tmp/cdi-report-XXXXXX";
    int fd = mkstemp(path);
    bool found;

    cr_assert_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    (void)close(fd);
    found = report_error_file(path, text, sizeof text);
    (void)unlink(path);
    return found ? text : NULL;
}

Test(report, headline_names_rank_pid_host_and_cause)
{
    struct cdi_failure f = failure(CDI_END_SIGNAL, SIGSEGV);

    cr_assert_str_eq(headline_of(failure(CDI_END_EXIT, 7)), "rank 3 (pid 77 on node1) exited with status 7");
    cr_assert_str_eq(headline_of(failure(CDI_END_SIGNAL, SIGKILL)),
                     "rank 3 (pid 77 on node1) was killed by signal 9 (SIGKILL)");
    f.core_dumped = 1;
    cr_assert_str_eq(headline_of(f), "rank 3 (pid 77 on node1) was killed by signal 11 (SIGSEGV), core dumped");
    cr_assert_str_eq(headline_of(failure(CDI_END_SPAWN, ENOENT)),
                     "rank 3 on node1 could not be started: No such file or directory");
    cr_assert_str_eq(headline_of(failure(CDI_END_NODE, 0)), "node 0 (node1) was lost");
    f = failure(CDI_END_HANG, 0);
    cr_assert_str_eq(headline_of(f), "the workers stood still");
    (void)snprintf(f.text, sizeof f.text, "no progress for 60 s: rank 3\n    ranks 0-2 wait");
    cr_assert_str_eq(headline_of(f), "no progress for 60 s: rank 3");
}

Test(report, long_host_name_does_not_overflow)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 1);
    char small[40];

    memset(f.host, 'h', sizeof f.host - 1);
    report_headline(&f, small, sizeof small);
    cr_assert_eq(strlen(small), sizeof small - 1);
}

Test(report, reads_error_message_in_both_formats)
{
    cr_assert_str_eq(message_of("{\"message\":{\"message\":\"ValueError: bad\",\"extraInfo\":{}}}"), "ValueError: bad");
    cr_assert_str_eq(message_of("{\"message\":\"plain\",\"timestamp\":12}"), "plain");
    cr_assert_str_eq(
        message_of("{\"message\":\"0123456789012345678901234567890123456789012345678901234567890123456789\"}"),
        "012345678901234567890123456789012345678901234567890123456789012", "cut to what fits");
}

static int status_of(const char *json)
{
    char path[] = "/tmp/cddp-report-XXXXXX";
    int fd = mkstemp(path), status;

    cr_assert_geq(fd, 0);
    (void)dprintf(fd, "%s", json);
    (void)close(fd);
    status = report_error_status(path, 99);
    (void)unlink(path);
    return status;
}

Test(report, reads_status_noted_by_libcddp)
{
    cr_assert_eq(status_of("{\"message\":{\"message\":\"m\",\"extraInfo\":{\"exitStatus\":3}}}"), 3);
    cr_assert_eq(status_of("{\"message\":{\"message\":\"m\",\"extraInfo\":{\"exitStatus\":0}}}"), 99);
    cr_assert_eq(status_of("{\"message\":{\"message\":\"m\",\"extraInfo\":{\"exitStatus\":256}}}"), 99);
    cr_assert_eq(status_of("{\"message\":{\"message\":\"m\",\"extraInfo\":{\"exitStatus\":\"3\"}}}"), 99);
    cr_assert_eq(status_of("{\"message\":\"m\"}"), 99);
    cr_assert_eq(status_of(""), 99);
    cr_assert_eq(report_error_status("/nonexistent/file", 99), 99);
}

Test(report, ignores_invalid_error_file)
{
    static const char *const bad[] = {"",      "{",  "[]",       "{\"message\":3}", "{\"message\":{}}",
                                      "\"x\"", "{}", "\xff\xfe", "{\"a\":\"b\"}",   "{\"message\":\"\"}"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_null(message_of(bad[i]), "%s", bad[i]);
    cr_assert_not(report_error_file("/nonexistent", (char[8]){0}, 8));
    cr_assert_not(report_error_file("/tmp", (char[8]){0}, 8));
}

Test(report, fifo_as_error_file_does_not_block)
{
    char dir[] = "/tmp/cdi-report-XXXXXX", path[64];

    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/error.json", dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_not(report_error_file(path, (char[8]){0}, 8));
    (void)unlink(path);
    (void)rmdir(dir);
}

static const char *written(const struct report *r)
{
    static char text[8192];
    struct cdi_buf out;

    cdi_buf_init(&out, 0);
    cr_assert_eq(report_write(r, &out), CDDP_OK);
    cr_assert_lt(out.len, sizeof text);
    memcpy(text, cdi_buf_data(&out), out.len);
    text[out.len] = '\0';
    cdi_buf_release(&out);
    return text;
}

Test(report, full_report_fits_on_screen)
{
    static const char *const lines[] = {"step 811", "NaN in layer 3"};
    struct report r = {
        .first = failure(CDI_END_EXIT, 7),
        .program = "./train",
        .after_ms = 12345,
        .n_others = 3,
        .n_succeeded = 1,
        .n_ended_after = 2,
        .restart_count = 1,
        .max_restarts = 1,
        .others = {{.rank = 4, .code = 1, .later_ms = 12}, {.rank = 5, .signal = SIGABRT, .later_ms = -1}},
        .n_other_failures = 2,
        .progress = "rank 2 after barrier #7; ranks 3, 4, 5 in all_reduce #8"};

    (void)setenv("TZ", "UTC", 1);
    r.first.time_ms = 1795222662000;
    report_headline(&r.first, r.first.text, sizeof r.first.text);
    report_details(&r.first, NULL, lines, 2);
    cr_assert_str_eq(written(&r),
                     "cddprun: rank 3 (pid 77 on node1) exited with status 7 after 12.3 s, after 1 restart\n"
                     "    local rank 1 of ./train, at 2026-11-21 00:57:42 +0000\n"
                     "    the last of its stderr:\n"
                     "    | step 811\n"
                     "    | NaN in layer 3\n"
                     "    rank 4: exited with status 1, 0.012 s later\n"
                     "    rank 5: killed by signal 6 (SIGABRT)\n"
                     "    this node's other 3 workers: 2 were stopped or failed after it, 1 succeeded\n"
                     "    at that moment: rank 2 after barrier #7; ranks 3, 4, 5 in all_reduce #8\n");
}

#define FORTY "0123456789012345678901234567890123456789"

Test(report, cause_is_first_message_line_or_last_of_stderr)
{
    const struct {
        struct cdi_failure f;
        const char *cause;
    } cases[] = {
        {{.kind = CDI_END_EXIT, .code = 1, .text = "rank 0 exited"}, ""},
        {{.kind = CDI_END_EXIT, .code = 1, .text = "s\na note\nthe last of its stderr:\n| a\n| b\n"},
         "the last of its stderr: b"},
        {{.kind = CDI_END_EXIT, .code = 0, .text = "s\nthe last of its stderr:\n| a\n"}, ""},
        {{.kind = CDI_END_SIGNAL, .code = 9, .text = "s\nthe last of its stderr:\n| a\n"}, ""},
        {{.kind = CDI_END_SIGNAL, .code = 6, .text = "s\nits message:\n| m\n| n\nthe last of its stderr:\n| a\n"}, "m"},
        {{.kind = CDI_END_EXIT, .code = 1, .text = "s\nits message:\n| " FORTY "0123456\n"}, FORTY "0123456"},
        {{.kind = CDI_END_EXIT, .code = 1, .text = "s\nits message:\n| " FORTY "01234567\n"}, FORTY "0123456"},
        {{.kind = CDI_END_EXIT, .code = 1, .text = "s\nits message:\n| " FORTY "012345\xc3\xbc\n"}, FORTY "012345"},
        {{.kind = CDI_END_NODE, .text = "s\nits message:\n| m\n"}, ""},
    };
    char cause[sizeof FORTY + 7];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        report_cause(&cases[i].f, cause, sizeof cause);
        cr_assert_str_eq(cause, cases[i].cause, "case %zu: %s", i, cause);
    }
}

Test(report, details_fit_field_and_keep_newest_lines)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 7);
    const char *lines[10];
    char long_line[400], path[] = "/tmp/cdi-report-XXXXXX";
    int fd = mkstemp(path);

    memset(long_line, 'y', sizeof long_line - 1);
    long_line[sizeof long_line - 1] = '\0';
    for (int i = 0; i < 9; i++)
        lines[i] = long_line;
    lines[9] = "the newest";
    (void)dprintf(fd, "{\"message\":\"%s%s%s\"}", long_line, long_line, long_line);
    report_headline(&f, f.text, sizeof f.text);
    report_details(&f, path, lines, 10);
    cr_assert_lt(strlen(f.text), sizeof f.text);
    cr_assert_eq(strcspn(f.text, "\n"), strlen("rank 3 (pid 77 on node1) exited with status 7"));
    cr_assert_not_null(strstr(f.text, "\nits message:\n| yyy"));
    cr_assert_not_null(strstr(f.text, "| the newest\n"));
    cr_assert_str_eq(headline_of(f), "rank 3 (pid 77 on node1) exited with status 7");
    (void)close(fd);
    (void)unlink(path);
}

Test(report, status_0_is_failure_only_during_job)
{
    cr_assert_str_eq(headline_of(failure(CDI_END_EXIT, 0)),
                     "rank 3 (pid 77 on node1) exited with status 0 in the middle of the job, without cddp_finalize");
}

Test(report, drops_stderr_lines_that_repeat_message)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 7);
    const char *lines[] = {"warming up", "train: all_reduce(mean) of 4 float32: rank 1 (pid 78) died",
                           "all_reduce(mean) of 4 float32: rank 1 (pid 78) died", "died", "leaving after 12 steps"};
    char path[] = "/tmp/cdi-report-XXXXXX";
    int fd = mkstemp(path);

    (void)dprintf(fd, "{\"message\":\"CDDP_E_PEER: all_reduce(mean) of 4 float32: rank 1 (pid 78) died\"}");
    report_headline(&f, f.text, sizeof f.text);
    report_details(&f, path, lines, 5);
    cr_assert_str_eq(strchr(f.text, '\n'), "\nits message:\n"
                                           "| CDDP_E_PEER: all_reduce(mean) of 4 float32: rank 1 (pid 78) died\n"
                                           "the last of its stderr:\n"
                                           "| warming up\n"
                                           "| died\n"
                                           "| leaving after 12 steps\n");
    report_headline(&f, f.text, sizeof f.text);
    report_details(&f, path, &lines[1], 2);
    cr_assert_null(strstr(f.text, "stderr"), "nothing is left to show");
    (void)close(fd);
    (void)unlink(path);
}

Test(report, keeps_stderr_lines_of_cut_message)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 7);
    const char *lines[] = {"ValueError: the last line of a long traceback"};
    char long_line[600], path[] = "/tmp/cdi-report-XXXXXX";
    int fd = mkstemp(path);

    memset(long_line, 'y', sizeof long_line - 1);
    long_line[sizeof long_line - 1] = '\0';
    (void)dprintf(fd, "{\"message\":\"%s\\n%s\"}", long_line, lines[0]);
    report_headline(&f, f.text, sizeof f.text);
    report_details(&f, path, lines, 1);
    cr_assert_not_null(strstr(f.text, "the last of its stderr:\n| ValueError: the last line of a long traceback\n"));
    (void)close(fd);
    (void)unlink(path);
}

/* Rows of a terminal of 80 columns. */
static unsigned rows(const char *text)
{
    unsigned n = 0;

    for (size_t len; *text != '\0'; text += len + 1) {
        len = strcspn(text, "\n");
        n += 1 + (len == 0 ? 0 : (unsigned)(len - 1) / 80);
    }
    return n;
}

Test(report, longest_report_fits_in_24_rows)
{
    static char endless[601], lines[10][400], where[PROGRESS_TEXT];
    const char *const messages[] = {"short", "1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n10", endless};
    char path[] = "/tmp/cdi-report-XXXXXX";
    const char *tail[10], *text;
    int fd = mkstemp(path);

    memset(endless, 'm', sizeof endless - 1);
    memset(where, 'w', sizeof where - 1);
    for (size_t m = 0; m < sizeof messages / sizeof messages[0]; m++) {
        cr_assert_eq(ftruncate(fd, 0), 0);
        cr_assert_eq(lseek(fd, 0, SEEK_SET), 0);
        (void)dprintf(fd, "{\"message\":\"%s\"}", messages[m]);
        for (size_t len = 1; len < sizeof lines[0]; len += 7) {
            struct report r = {.first = failure(CDI_END_SIGNAL, SIGSEGV),
                               .program = "./train",
                               .after_ms = 1234567,
                               .restart_count = 99,
                               .max_restarts = 100,
                               .n_others = 4095,
                               .n_ended_after = 4000,
                               .n_succeeded = 95,
                               .n_other_failures = 4000,
                               .progress = m > 0 ? where : "rank 2 after barrier #7; ranks 0, 1, 3 in all_reduce #8"};

            for (int i = 0; i < 10; i++) {
                memset(lines[i], 'a' + i, len);
                lines[i][len] = '\0';
                tail[i] = lines[i];
            }
            report_headline(&r.first, r.first.text, sizeof r.first.text);
            report_details(&r.first, path, tail, 10);
            text = written(&r);
            cr_assert_leq(rows(text), 23, "%u rows with lines of %zu: %s", rows(text), len, text);
            cr_assert(m > 0 || strstr(text, "    | j") != NULL, "the newest line: %s", text);
            cr_assert_not_null(strstr(text, "    and 3995 more failures\n"), "%s", text);
        }
    }
    (void)close(fd);
    (void)unlink(path);
}

Test(report, cuts_message_between_characters)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 7);
    char path[] = "/tmp/cdi-report-XXXXXX";
    int fd = mkstemp(path);

    (void)dprintf(fd, "{\"message\":\"x");
    for (int i = 0; i < 400; i++)
        (void)dprintf(fd, "\xc3\xa9");
    (void)dprintf(fd, "\"}");
    (void)close(fd);
    report_headline(&f, f.text, sizeof f.text);
    report_details(&f, path, NULL, 0);
    (void)unlink(path);
    cr_assert_eq(strlen(strstr(f.text, "| x")), strlen("| x") + 498 + 1, "%zu", strlen(strstr(f.text, "| x")));
}

Test(report, escapes_control_characters)
{
    const char *const lines[] = {"\033[2J\033[1;1Hall is well\a", "10%\r20%\r", "tab\tand \xc3\xa9 stay\x7f",
                                 "\xc2\x9b\x33\x31mred\xc2"}; /* 31mred */
    struct cdi_failure f = failure(CDI_END_EXIT, 7);
    char path[] = "/tmp/cdi-report-XXXXXX";
    int fd = mkstemp(path);

    (void)dprintf(fd, "{\"message\":\"\\u001b[31mred\\u001b[0m\\r\\nnext\"}");
    (void)close(fd);
    report_headline(&f, f.text, sizeof f.text);
    report_details(&f, path, lines, 4);
    (void)unlink(path);
    cr_assert_str_eq(strchr(f.text, '\n'),
                     "\nits message:\n| \\x1b[31mred\\x1b[0m\n| next\nthe last of its stderr:\n"
                     "| \\x1b[2J\\x1b[1;1Hall is well\\x07\n| 10%\\x0d20%\n"
                     "| tab\tand \xc3\xa9 stay\\x7f\n| \\x9b31mred\\xc2\n",
                     "%s", f.text);
}

Test(report, keeps_newest_lines_with_escapes)
{
    char line[400];
    const char *lines[10];
    struct cdi_failure f = failure(CDI_END_EXIT, 7);

    memset(line, '\033', sizeof line - 1); /* four columns each */
    line[sizeof line - 1] = '\0';
    for (int i = 0; i < 10; i++)
        lines[i] = line;
    lines[9] = "the newest\033";
    report_headline(&f, f.text, sizeof f.text);
    report_details(&f, NULL, lines, 10);
    cr_assert_not_null(strstr(f.text, "| the newest\\x1b\n"), "%s", f.text);
    cr_assert_null(strchr(f.text, '\033'));
}

static const char *content(const char *path)
{
    static char text[1024];
    FILE *f = fopen(path, "re");
    size_t n = fread(text, 1, sizeof text - 1, f);

    text[n] = '\0';
    (void)fclose(f);
    return text;
}

Test(report, copies_workers_error_file_with_status)
{
    char from[] = "/tmp/cdi-report-XXXXXX", to[] = "/tmp/cdi-report-XXXXXX";
    int a = mkstemp(from), b = mkstemp(to);
    struct report r = {.first = failure(CDI_END_EXIT, 7), .error_file = from};

    (void)dprintf(a, "{\"message\":{\"message\":\"bad\",\"extraInfo\":{\"x\":1}}}");
    cr_assert_eq(report_copy_error_file(&r, 7, to), 0);
    cr_assert_str_eq(content(to), "{\"message\":{\"message\":\"bad\",\"extraInfo\":{\"x\":1},\"errorCode\":7}}");
    r.error_file = NULL;
    cr_assert_eq(report_copy_error_file(&r, 7, to), 0);
    cr_assert_not_null(
        strstr(content(to), "{\"message\":{\"message\":\"rank 3 (pid 77 on node1) exited with status 7\""));
    cr_assert_not_null(strstr(content(to), "\"errorCode\":7"));
    cr_assert_eq(report_copy_error_file(&r, 7, "/dev/null/file"), ENOTDIR);
    (void)close(a);
    (void)close(b);
    (void)unlink(from);
    (void)unlink(to);
}

/* A stack of n frames with names of this length. */
static void make_stack(char *text, size_t cap, int n, int length)
{
    size_t at = (size_t)snprintf(text, cap, "its stack (thread 'w'):\n");

    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, cap - at, "  #%d %0*d() at file.c:%d\n", i, length, i, i);
}

Test(report, shows_a_stack_in_few_rows_before_the_stderr)
{
    static const char *const lines[] = {"last words"};
    struct cdi_failure f = failure(CDI_END_SIGNAL, SIGSEGV);
    char text[8192];

    report_headline(&f, f.text, sizeof f.text);
    make_stack(text, sizeof text, 3, 4);
    report_stack(&f, text);
    report_details(&f, NULL, lines, 1);
    cr_assert_not_null(strstr(f.text,
                              "(SIGSEGV)\nits stack (thread 'w'):\n| #0 0000() at file.c:0\n| #1 0001() at file.c:1\n"
                              "| #2 0002() at file.c:2\nthe last of its stderr:\n| last words\n"),
                       "%s", f.text);
}

Test(report, cuts_a_stack_that_is_too_deep_or_too_wide)
{
    static const char *const lines[] = {"last words"};

    for (int length = 1; length < 150; length++) {
        struct cdi_failure f = failure(CDI_END_SIGNAL, SIGSEGV);
        char text[16384];
        int rows = 0;

        report_headline(&f, f.text, sizeof f.text);
        make_stack(text, sizeof text, 40, length);
        report_stack(&f, text);
        report_details(&f, NULL, lines, 1);
        cr_assert_not_null(strstr(f.text, "| (its outer frames are left out)\nthe last of its stderr:\n| last words\n"),
                           "%s", f.text);
        cr_assert_not_null(strstr(f.text, " at file.c:0\n"), "the place stays: %s", f.text);
        for (const char *p = f.text; (p = strchr(p, '\n')) != NULL; p++, rows++)
            cr_assert_leq(strcspn(p + 1, "\n"), 76, "%s", f.text);
        cr_assert_leq(rows, REPORT_STACK_ROWS + 4, "%s", f.text);
    }
}

Test(report, a_line_that_is_cut_keeps_each_place_with_its_function)
{
    for (int outer = 1; outer < 100; outer++)
        for (int inner = 1; inner < 100; inner += 7) {
            struct cdi_failure f = failure(CDI_END_SIGNAL, SIGSEGV);
            char text[512];

            (void)snprintf(text, sizeof text, "its stack:\n  #0 %0*d() at own.c:8, inlined %0*d() at inner.c:9\n",
                           outer, 0, inner, 1);
            report_stack(&f, text);
            cr_assert_not_null(strstr(f.text, " at own.c:8"), "%d, %d: %s", outer, inner, f.text);
            if (strstr(f.text, "inner.c:9") != NULL)
                cr_assert_not_null(strstr(f.text, " at own.c:8, inlined"), "%d, %d: %s", outer, inner, f.text);
        }
}

Test(report, has_one_line_for_a_stack_that_could_not_be_read)
{
    struct cdi_failure f = failure(CDI_END_SIGNAL, SIGSEGV);

    report_headline(&f, f.text, sizeof f.text);
    report_stack(&f, "no stack: a debugger had the process");
    cr_assert_not_null(strstr(f.text, "(SIGSEGV)\nno stack: a debugger had the process"), "%s", f.text);
    memset(f.text, 'x', sizeof f.text - 1); /* no room: it stays as it is */
    report_stack(&f, "no stack: a debugger had the process");
    cr_assert_eq(strlen(f.text), sizeof f.text - 1);
}
