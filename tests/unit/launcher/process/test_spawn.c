/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"
#include "launcher/process/spawn.h"
#include "launcher/process/tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A directory with: runs, plain (not executable), dir/, a/same, b/same. */
static char dir[64];

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static unsigned n;

    n = (n + 1) % 4;
    (void)snprintf(path[n], sizeof path[n], "%s/%s", dir, name);
    return path[n];
}

static void make_file(const char *name, mode_t mode)
{
    int fd = open(in_dir(name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    cr_assert_geq(fd, 0);
    cr_assert_eq(fchmod(fd, mode), 0);
    (void)close(fd);
}

static void begin(void)
{
    hygiene_begin();
    (void)snprintf(dir, sizeof dir, "/tmp/cdi-spawn-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    cr_assert(mkdir(in_dir("dir"), 0700) == 0 && mkdir(in_dir("a"), 0700) == 0 && mkdir(in_dir("b"), 0700) == 0);
    make_file("runs", 0700);
    make_file("plain", 0600);
    make_file("a/same", 0600);
    make_file("b/same", 0700);
}

static void end(void)
{
    const char *const files[] = {"runs", "plain", "a/same", "b/same"}, *const dirs[] = {"dir", "a", "b", "."};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        (void)unlink(in_dir(files[i]));
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        (void)rmdir(in_dir(dirs[i]));
    (void)rmdir(dir);
    hygiene_end();
}

TestSuite(spawn, .init = begin, .fini = end);

static char path[PATH_MAX];
static int status;
static struct cdi_error err;

static cddp_status find(const char *program)
{
    status = 0;
    err.msg[0] = '\0';
    return spawn_find_program(program, path, &status, &err);
}

static void set_path(const char *first, const char *second)
{
    char value[256];

    (void)snprintf(value, sizeof value, "%s%s%s", first, second != NULL ? ":" : "", second != NULL ? second : "");
    (void)setenv("PATH", value, 1);
}

Test(spawn, uses_path_with_slash_unchanged)
{
    cr_assert_eq(find(in_dir("runs")), CDDP_OK);
    cr_assert_str_eq(path, in_dir("runs"));
    cr_assert_eq(chdir(dir), 0);
    cr_assert_eq(find("./runs"), CDDP_OK);
    cr_assert_str_eq(path, "./runs");
}

Test(spawn, finds_first_executable_in_path)
{
    set_path(in_dir("a"), in_dir("b"));
    cr_assert_eq(find("same"), CDDP_OK);
    cr_assert_str_eq(path, in_dir("b/same"));
}

Test(spawn, treats_empty_and_missing_path_as_shell_does)
{
    cr_assert_eq(chdir(dir), 0);
    set_path("/nowhere", "");
    cr_assert_eq(find("runs"), CDDP_OK);
    cr_assert_str_eq(path, "runs");
    (void)unsetenv("PATH");
    cr_assert_eq(find("sh"), CDDP_OK);
    cr_assert_str_eq(path, "/bin/sh");
}

Test(spawn, missing_program_is_127_and_names_path)
{
    set_path(in_dir("a"), NULL);
    cr_assert_eq(find("no-such"), CDDP_E_NOT_FOUND);
    cr_assert_eq(status, 127);
    cr_assert_str_eq(err.msg, "program 'no-such' is not in PATH");
    cr_assert_eq(find("/no/such"), CDDP_E_NOT_FOUND);
    cr_assert_eq(status, 127);
    cr_assert_str_eq(err.msg, "cannot run program '/no/such': No such file or directory");
    cr_assert_eq(find(in_dir("runs/below")), CDDP_E_NOT_FOUND);
    cr_assert_eq(status, 127, "a file is not a directory: %s", err.msg);
    cr_assert_eq(chdir(dir), 0);
    cr_assert_eq(find("runs"), CDDP_E_NOT_FOUND);
    cr_assert_str_eq(err.msg, "program 'runs' is not in PATH; did you mean ./runs?");
}

Test(spawn, not_executable_is_126)
{
    cr_assert_neq(find(in_dir("plain")), CDDP_OK);
    cr_assert_eq(status, 126);
    cr_assert_not_null(strstr(err.msg, "is not executable (run a script with its interpreter"), "%s", err.msg);
    cr_assert_neq(find(in_dir("dir")), CDDP_OK);
    cr_assert_eq(status, 126);
    cr_assert_not_null(strstr(err.msg, "Is a directory"), "%s", err.msg);
    set_path(in_dir("a"), NULL);
    cr_assert_neq(find("same"), CDDP_OK);
    cr_assert_eq(status, 126, "it is there, and may not be executed: %s", err.msg);
}

Test(spawn, rejects_too_long_name)
{
    char name[PATH_MAX + 2];

    memset(name, 'x', sizeof name - 1);
    name[0] = '/';
    name[sizeof name - 1] = '\0';
    cr_assert_neq(find(name), CDDP_OK);
    cr_assert_eq(status, 126);
    cr_assert_not_null(strstr(err.msg, "File name too long"), "%s", err.msg);
    set_path(in_dir("a"), in_dir("b"));
    cr_assert_neq(find(name + 1), CDDP_OK);
    cr_assert_eq(status, 127, "%s", err.msg);
}

/* Another thread of the agent holds a thread of a worker for its stack, and the agent's waits then see the stop. */
struct hold {
    pid_t pid;
    int failed;
    _Atomic int state; /* 1: held; 2: let go */
};

static void *hold_worker(void *arg)
{
    struct hold *h = arg;
    int signal = 0;

    h->failed = task_hold(h->pid, h->pid, cdi_now_ns() + INT64_C(60000000000), &signal);
    atomic_store(&h->state, 1);
    while (atomic_load(&h->state) != 2)
        (void)usleep(1000);
    task_let_go(h->pid, signal);
    return NULL;
}

Test(spawn, does_not_take_a_worker_whose_stack_is_read_for_one_that_has_ended)
{
    struct worker w = {.exec_fd = -1}, *found;
    struct hold h = {.pid = fork()};
    pthread_t thread;

    if (h.pid == 0)
        for (;;)
            (void)pause();
    w.pid = (int)h.pid;
    cr_assert_eq(pthread_create(&thread, NULL, hold_worker, &h), 0);
    while (atomic_load(&h.state) != 1)
        (void)usleep(1000);
    while (spawn_reap(&w, 1, &found))
        cr_assert_null(found);
    cr_assert_not(w.exited);
    atomic_store(&h.state, 2);
    (void)pthread_join(thread, NULL);
    cr_assert_eq(kill(h.pid, SIGKILL), 0);
    while (!w.exited)
        (void)spawn_reap(&w, 1, &found);
    cr_assert(w.exit_signal == SIGKILL);
    if (h.failed != 0)
        cr_skip_test("the kernel allows no tracing");
}
