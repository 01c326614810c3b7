/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a trace: complete at its end, readable before it, bounded by a second one, and a disk that is full. */
#include "watch/trace/trace_file.h"

#include "hygiene.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(trace_file);

static uv_loop_t loop;
static struct cdi_records r;
static struct trace_file *file;
static char folder[64], path[128];
static int n_lost, lost_error;
static bool closed, flushed, was_broken, was_gone;

static void on_lost(void *arg, const char *name, int error)
{
    cr_assert_eq(arg, &loop);
    cr_assert_not_null(name);
    n_lost++;
    lost_error = error;
}

static void on_closed(void *arg, bool all)
{
    cr_assert_eq(arg, &loop);
    closed = true;
    flushed = all;
    was_broken = trace_file_is_broken(file);
    was_gone = trace_file_is_gone(file);
}

static cddp_status open_at(const char *where, uint64_t max, struct cdi_error *err)
{
    const struct trace_file_options opt = {
        .path = where, .job = "job", .max_bytes = max, .lost = on_lost, .arg = &loop};

    return trace_file_open(&file, &loop, &opt, err);
}

static void begin(uint64_t max)
{
    (void)snprintf(folder, sizeof folder, "/tmp/trace_file.XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/t.json", folder);
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(cdi_records_init(&r, NULL), CDDP_OK);
    (void)snprintf(r.host, sizeof r.host, "h");
    r.node_rank = 0;
    n_lost = 0;
    closed = flushed = false;
    if (max > 0)
        cr_assert_eq(open_at(path, max, NULL), CDDP_OK);
}

static void add(int first, int n)
{
    const struct trace_clock same = {.known = true};

    r.n_colls = 0;
    for (int i = first; i < first + n; i++)
        r.colls[r.n_colls++] = (struct cdi_record_coll){
            .rank = 0,
            .name = -1,
            .e = {.seq = (uint64_t)i, .op = CDI_FLIGHT_BARRIER, .enqueued_ns = i * 1000, .done_ns = i * 1000 + 500}};
    trace_file_add(file, &r, &same);
    r.n_before += r.n_colls;
}

static void finish(void)
{
    trace_file_close(file, on_closed, &loop);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert(closed);
}

static void end(void)
{
    char command[160];

    cr_assert_eq(uv_loop_close(&loop), 0);
    uv_library_shutdown(); /* its signal pipe */
    cdi_records_release(&r);
    (void)snprintf(command, sizeof command, "%s.old", path);
    (void)unlink(command);
    (void)unlink(path);
    cr_assert_eq(rmdir(folder), 0);
}

/* Returns the seq of the first and the last barrier in a complete file. */
static void read_back(const char *name, int *first, int *last)
{
    json_error_t why;
    json_t *root = json_load_file(name, 0, &why);

    cr_assert_not_null(root, "%s: %s", name, why.text);
    *first = *last = 0;
    for (size_t i = 0; i < json_array_size(root); i++) {
        json_t *seq = json_object_get(json_object_get(json_array_get(root, i), "args"), "seq");

        if (seq == NULL)
            continue;
        *last = (int)json_integer_value(seq);
        *first = *first == 0 ? *last : *first;
    }
    json_decref(root);
}

Test(trace_file, is_complete_at_its_end)
{
    int first, last;

    begin(1 << 20);
    add(1, 100);
    add(101, 100);
    finish();
    cr_assert(flushed && n_lost == 0 && !was_broken && !was_gone);
    read_back(path, &first, &last);
    cr_assert(first == 1 && last == 200);
    end();
}

Test(trace_file, is_written_while_the_job_runs)
{
    char text[8192];
    size_t n = 0;
    FILE *f;

    begin(1 << 20);
    add(1, 3);
    for (int i = 0; i < 1000 && n == 0; i++) {
        struct stat about;

        (void)usleep(10000);
        n = stat(path, &about) == 0 && about.st_size > 600 ? (size_t)about.st_size : 0;
    }
    f = fopen(path, "r");
    cr_assert_not_null(f);
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    (void)fclose(f);
    cr_assert_not_null(strstr(text, "\"seq\":3"));
    cr_assert_str_eq(text + n - 2, ",\n", "whole lines, without the end");
    finish();
    end();
}

Test(trace_file, keeps_the_newest_records)
{
    char old[140];
    struct stat about;
    int first, last, old_first, old_last;

    begin(100000);
    (void)snprintf(old, sizeof old, "%s.old", path);
    for (int i = 0; i < 40; i++) {
        add(1 + i * 50, 50);
        (void)usleep(5000); /* the thread must keep up */
    }
    finish();
    cr_assert_eq(n_lost, 0);
    read_back(path, &first, &last);
    read_back(old, &old_first, &old_last);
    cr_assert(last == 2000 && first == old_last + 1 && old_first > 1, "%d to %d, %d to %d", old_first, old_last, first,
              last);
    cr_assert(stat(path, &about) == 0 && about.st_size < 60000);
    cr_assert(stat(old, &about) == 0 && about.st_size < 60000);
    end();
}

Test(trace_file, full_disk_is_reported_once)
{
    begin(0);
    cr_assert_eq(open_at("/dev/full", 10000, NULL), CDDP_OK);
    for (int i = 0; i < 100 && n_lost == 0; i++) {
        add(1 + i * 50, 50);
        (void)usleep(5000);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    }
    cr_assert(n_lost == 1 && lost_error == ENOSPC);
    add(1, 10);
    finish();
    cr_assert(n_lost == 1 && access("/dev/full", F_OK) == 0, "a device is not renamed");
    cr_assert(was_broken && !was_gone);
    end();
}

Test(trace_file, a_disk_that_is_full_at_the_end_is_known_when_it_is_closed)
{
    begin(0);
    cr_assert_eq(open_at("/dev/full", 10000, NULL), CDDP_OK);
    finish();
    cr_assert(n_lost == 1 && lost_error == ENOSPC && was_broken);
    end();
}

Test(trace_file, a_file_that_was_removed_is_known)
{
    begin(1 << 20);
    add(1, 10);
    cr_assert_eq(unlink(path), 0);
    finish();
    cr_assert(n_lost == 0 && was_gone && access(path, F_OK) != 0);
    end();
}

Test(trace_file, anothers_file_at_the_same_place_stays_there)
{
    char mine[140], others[16] = "";
    FILE *f;

    begin(100000);
    (void)snprintf(mine, sizeof mine, "%s.mine", path);
    add(1, 10);
    cr_assert_eq(rename(path, mine), 0);
    f = fopen(path, "w");
    cr_assert(f != NULL && fputs("others", f) >= 0 && fclose(f) == 0);
    for (int i = 0; i < 40; i++)
        add(11 + i * 50, 50);
    finish();
    cr_assert(n_lost == 1 && lost_error == ESTALE && was_broken && was_gone);
    f = fopen(path, "r");
    cr_assert(f != NULL && fgets(others, sizeof others, f) != NULL && fclose(f) == 0);
    cr_assert_str_eq(others, "others");
    (void)unlink(mine);
    end();
}

Test(trace_file, link_of_another_user_is_not_followed)
{
    struct cdi_error err;
    struct stat kept;
    char precious[140];
    FILE *f;

    if (geteuid() != 0)
        cr_skip("only root can give a link away");
    begin(0);
    (void)snprintf(precious, sizeof precious, "%s.precious", path);
    f = fopen(precious, "w");
    cr_assert(f != NULL && fputs("kept", f) >= 0 && fclose(f) == 0);
    cr_assert(symlink(precious, path) == 0 && lchown(path, 12345, 12345) == 0 && chmod(folder, 01777) == 0);
    cr_assert_eq(open_at(path, 10000, &err), CDDP_E_SYSTEM);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_not_null(strstr(err.msg, "it is a symbolic link of another user"), "%s", err.msg);
    cr_assert(stat(precious, &kept) == 0 && kept.st_size == 4, "the file at the end of the link was emptied");
    (void)unlink(precious);
    end();
}

Test(trace_file, file_that_cannot_be_created)
{
    struct cdi_error err;

    begin(0);
    cr_assert_eq(open_at("/nonexistent/t.json", 10000, &err), CDDP_E_SYSTEM);
    cr_assert_str_eq(err.msg, "cannot write the trace '/nonexistent/t.json': No such file or directory");
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    end();
}
