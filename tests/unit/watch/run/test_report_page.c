/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/run/report_page.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(report_page);

#define T0 1700000000000

static struct machine machine = {.n_cores = 8, .host = "node1"};

static struct report_page_about about_of(char *const *command)
{
    return (struct report_page_about){.version = "1.0",
                                      .run_id = "train",
                                      .directory = "/home",
                                      .command = command,
                                      .why = "",
                                      .ended_ms = T0 + 5000,
                                      .exit_status = 1,
                                      .n_local = 2,
                                      .machine = &machine,
                                      .memory_bytes = 1 << 30,
                                      .processor = "",
                                      .system = "Linux",
                                      .libc = "glibc"};
}

/* The JSON between the head and the tail of the page; NULL: there is none, or it is not JSON. */
static json_t *data_of(const struct cdi_buf *page)
{
    static const char begin[] = "<script type=\"application/json\" id=\"data\">";
    const char *text = (const char *)cdi_buf_data(page), *from = memmem(text, page->len, begin, strlen(begin)), *to;

    if (from == NULL)
        return NULL;
    from += strlen(begin);
    to = memmem(from, page->len - (size_t)(from - text), "</script>", 9);
    return to == NULL ? NULL : json_loadb(from, (size_t)(to - from), 0, NULL);
}

Test(report_page, text_of_a_rank_stays_data)
{
    static const char evil[] = "</script><script>alert(1)</script><!--<script \xff\x01\x1b[31m & \xe2\x80\xa8";
    char *const command[] = {(char *)(uintptr_t) "train", (char *)(uintptr_t)evil, NULL};
    struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 1, .time_ms = T0 + 1000};
    struct run_record *rr = run_record_new(T0);
    struct report_page_about about = about_of(command);
    struct cdi_buf page;
    json_t *data, *failure;
    const char *text, *at;
    unsigned n = 0;

    (void)snprintf(f.text, sizeof f.text, "rank 0 exited\n%s", evil);
    run_record_time(rr, T0 + 5000);
    run_record_event(rr, evil, evil, T0 + 10);
    run_record_failure(rr, &f);
    cdi_buf_init(&page, 0);
    cr_assert_eq(report_page_make(rr, &about, &page), CDDP_OK);
    data = data_of(&page);
    cr_assert_not_null(data, "the data ends where it should");
    failure = json_array_get(json_object_get(data, "failures"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(failure, "headline")), "rank 0 exited");
    cr_assert_eq(strncmp(json_string_value(json_object_get(failure, "details")), "</script><script>alert(1)", 25), 0);
    text = (const char *)cdi_buf_data(&page);
    for (at = text; (at = memmem(at, page.len - (size_t)(at - text), "<script", 7)) != NULL; at++)
        n++;
    cr_assert_eq(n, 2, "the page's own two");
    cr_assert_null(memmem(text, page.len, "alert(1)</", 10));
    for (size_t i = 0; i < page.len; i++)
        cr_assert(text[i] == '\n' || (unsigned char)text[i] >= ' ');
    json_decref(data);
    cdi_buf_release(&page);
    run_record_free(rr);
}

Test(report_page, a_full_record_fits)
{
    char *const command[] = {(char *)(uintptr_t) "train", NULL};
    struct cdi_msg_assign a = {.n_nodes = 100, .world_size = 1000};
    struct run_record *rr = run_record_new(T0);
    struct report_page_about about = about_of(command);
    struct cdi_flight_step s = {.comm_ns = 20000000, .late_rank = 999, .late_ns = 1000000};
    struct cdi_buf page;
    json_t *data;

    run_record_time(rr, T0 + 100000000);
    run_record_round(rr, &a, T0);
    for (uint32_t i = 0; i < 20000; i++) {
        s.step = i / 1000;
        s.end_ns = s.begun_ns + 50000000;
        run_record_step(rr, i % 1000, &s, T0 + 5000 * (int64_t)i);
    }
    for (int i = 0; i < RUN_RECORD_ROUNDS; i++)
        run_record_round(rr, &a, T0 + 1000 * i);
    about.ended_ms = T0 + 100000000;
    cdi_buf_init(&page, 0);
    cr_assert_eq(report_page_make(rr, &about, &page), CDDP_OK);
    cr_assert_lt(page.len, 1 << 20);
    data = data_of(&page);
    cr_assert_eq(json_array_size(json_object_get(data, "ranks")), 1000);
    cr_assert_eq(json_array_size(json_object_get(data, "rounds")), RUN_RECORD_ROUNDS);
    cr_assert_leq(json_array_size(json_object_get(json_object_get(data, "spans"), "steps")), RUN_RECORD_SPANS);
    json_decref(data);
    cdi_buf_release(&page);
    run_record_free(rr);
}

Test(report_page, reports_a_buffer_that_is_too_small)
{
    char *const command[] = {(char *)(uintptr_t) "train", NULL};
    struct run_record *rr = run_record_new(T0);
    struct report_page_about about = about_of(command);
    struct cdi_buf page;

    cdi_buf_init(&page, 1000);
    cr_assert_neq(report_page_make(rr, &about, &page), CDDP_OK);
    cdi_buf_release(&page);
    run_record_free(rr);
}

static void write_text(const char *target, const char *text)
{
    struct cdi_error err;
    struct cdi_buf page;

    cdi_buf_init(&page, 0);
    cr_assert_eq(cdi_buf_append(&page, text, strlen(text)), CDDP_OK);
    cr_assert_eq(report_page_write(target, &page, &err), CDDP_OK);
    cdi_buf_release(&page);
}

Test(report_page, file_is_replaced_as_a_whole)
{
    char dir[] = "/tmp/cddp-report-XXXXXX", path[64], link[64], read[16] = "", *target;
    struct cdi_error err;
    struct stat st;
    FILE *f;

    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/r.html", dir);
    (void)snprintf(link, sizeof link, "%s/l.html", dir);
    cr_assert_eq(report_page_check(path, &target, &err), CDDP_OK);
    cr_assert_str_eq(target, path);
    cr_assert_neq(stat(path, &st), 0, "nothing is written before the run");
    write_text(target, "first");
    free(target);
    cr_assert_eq(symlink("r.html", link), 0);
    cr_assert_eq(report_page_check(link, &target, &err), CDDP_OK);
    cr_assert_str_eq(target, path, "a link stays a link");
    write_text(target, "second");
    free(target);
    f = fopen(path, "re");
    cr_assert_not_null(f);
    cr_assert_not_null(fgets(read, sizeof read, f));
    (void)fclose(f);
    cr_assert_str_eq(read, "second");
    (void)unlink(link);
    (void)unlink(path);
    cr_assert_eq(rmdir(dir), 0, "no temporary file is left");
}

Test(report_page, link_of_another_user_is_not_followed)
{
    char dir[] = "/tmp/cddp-report-XXXXXX", path[64], link[64], *target = NULL;
    struct cdi_error err;

    if (geteuid() != 0)
        cr_skip("only root can give a link away");
    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/precious", dir);
    (void)snprintf(link, sizeof link, "%s/l.html", dir);
    write_text(path, "kept");
    cr_assert(symlink(path, link) == 0 && lchown(link, 12345, 12345) == 0 && chmod(dir, 01777) == 0);
    cr_assert_eq(report_page_check(link, &target, &err), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "is a symbolic link of another user"), "%s", err.msg);
    cr_assert(target == NULL && unlink(link) == 0 && unlink(path) == 0 && rmdir(dir) == 0);
}

Test(report_page, rejects_what_is_not_a_file)
{
    static const char *const bad[] = {"/dev/null", "/tmp", "/no/such/directory/r.html",
                                      "/tmp/",     "",     "/proc/self/r.html"};
    struct cdi_error err;
    char *target = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(report_page_check(bad[i], &target, &err), CDDP_E_INVALID, "'%s'", bad[i]);
        cr_assert_not_null(strstr(err.msg, "--report"));
    }
    cr_assert_null(target);
}
