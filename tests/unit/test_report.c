/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/report.h"

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

static const char *sentence(struct cdi_failure f)
{
    static char text[600];

    report_sentence(&f, text, sizeof text);
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

Test(report, a_sentence_names_rank_pid_host_and_cause)
{
    struct cdi_failure f = failure(CDI_END_SIGNAL, SIGSEGV);

    cr_assert_str_eq(sentence(failure(CDI_END_EXIT, 7)), "rank 3 (pid 77 on node1) exited with status 7");
    cr_assert_str_eq(sentence(failure(CDI_END_SIGNAL, SIGKILL)),
                     "rank 3 (pid 77 on node1) was killed by signal 9 (SIGKILL)");
    f.core_dumped = 1;
    cr_assert_str_eq(sentence(f), "rank 3 (pid 77 on node1) was killed by signal 11 (SIGSEGV), core dumped");
    cr_assert_str_eq(sentence(failure(CDI_END_SPAWN, ENOENT)),
                     "rank 3 on node1 could not be started: No such file or directory");
    cr_assert_str_eq(sentence(failure(CDI_END_NODE, 0)), "node 0 (node1) was lost");
}

Test(report, a_long_host_name_does_not_overflow)
{
    struct cdi_failure f = failure(CDI_END_EXIT, 1);
    char small[40];

    memset(f.host, 'h', sizeof f.host - 1);
    report_sentence(&f, small, sizeof small);
    cr_assert_eq(strlen(small), sizeof small - 1);
}

Test(report, the_message_of_an_error_file_is_found_in_both_forms)
{
    cr_assert_str_eq(message_of("{\"message\":{\"message\":\"ValueError: bad\",\"extraInfo\":{}}}"), "ValueError: bad");
    cr_assert_str_eq(message_of("{\"message\":\"plain\",\"timestamp\":12}"), "plain");
    cr_assert_str_eq(
        message_of("{\"message\":\"0123456789012345678901234567890123456789012345678901234567890123456789\"}"),
        "012345678901234567890123456789012345678901234567890123456789012", "cut to what fits");
}

Test(report, an_error_file_that_is_no_such_thing_is_passed_over)
{
    static const char *const bad[] = {"",      "{",  "[]",       "{\"message\":3}", "{\"message\":{}}",
                                      "\"x\"", "{}", "\xff\xfe", "{\"a\":\"b\"}",   "{\"message\":\"\"}"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_null(message_of(bad[i]), "%s", bad[i]);
    cr_assert_not(report_error_file("/nonexistent", (char[8]){0}, 8));
    cr_assert_not(report_error_file("/tmp", (char[8]){0}, 8));
}

Test(report, a_fifo_in_place_of_the_error_file_blocks_nobody)
{
    char dir[] = "/tmp/cdi-report-XXXXXX", path[64];

    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/error.json", dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_not(report_error_file(path, (char[8]){0}, 8));
    (void)unlink(path);
    (void)rmdir(dir);
}

Test(report, the_whole_report_fits_on_a_screen_and_names_everything)
{
    static const char *const lines[] = {"step 811", "NaN in layer 3"};
    struct report r = {.first = failure(CDI_END_EXIT, 7),
                       .program = "./train",
                       .after_ms = 12345,
                       .lines = lines,
                       .n_lines = 2,
                       .n_others = 3,
                       .n_ended_well = 1,
                       .n_ended_after = 2,
                       .restart_count = 1,
                       .max_restarts = 1};
    struct cdi_buf out;

    cdi_buf_init(&out, 0);
    cr_assert_eq(report_write(&r, &out), CDDP_OK);
    cr_assert_eq(cdi_buf_append(&out, "", 1), CDDP_OK);
    cr_assert_str_eq((const char *)cdi_buf_data(&out),
                     "cddprun: rank 3 (pid 77 on node1) exited with status 7 after 12.3 s, after 1 restart\n"
                     "    local rank 1 of ./train\n"
                     "    the last of its stderr:\n"
                     "    | step 811\n"
                     "    | NaN in layer 3\n"
                     "    of the other 3 workers of this node 2 were stopped or failed after it, 1 ended well\n");
    cdi_buf_release(&out);
}
