/* SPDX-License-Identifier: Apache-2.0 */
/* A program named py-spy on PATH that is not py-spy; then py-spy itself, with every Python that is found here. */
#include "freezer.h"
#include "hygiene.h"
#include "launcher/process/py_spy.h"

#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PYTHONS_MAX 32
#define WAIT_MS 60000

static char dir[64], file[128], path_before[4096];
static struct python_stacks stacks;
static struct cdi_error err;

static void begin(void)
{
    hygiene_begin();
    (void)snprintf(path_before, sizeof path_before, "%s", getenv("PATH"));
    (void)snprintf(dir, sizeof dir, "/tmp/cdi-py-spy-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(file, sizeof file, "%s/py-spy", dir);
}

static void end(void)
{
    python_stacks_release(&stacks);
    (void)unlink(file);
    (void)rmdir(dir);
    hygiene_end();
}

TestSuite(py_spy, .init = begin, .fini = end);

static cddp_status collect(const char *script, uint32_t timeout_ms)
{
    const struct python_stack_limits limits = {.timeout_ms = timeout_ms};
    char path[256];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s:/usr/bin:/bin", dir);
    (void)setenv("PATH", script == NULL ? dir : path, 1);
    if (script != NULL) {
        f = fopen(file, "we");
        cr_assert_not_null(f);
        (void)fprintf(f, "#!/bin/sh\n%s\n", script);
        (void)fclose(f);
        (void)chmod(file, 0700);
    }
    return py_spy_collect(getpid(), &limits, &stacks, &err);
}

Test(py_spy, reads_what_it_prints_of_the_process)
{
    cr_assert_eq(
        collect("echo 'WARN: something' >&2; [ \"$1 $2 $4 $5\" = 'dump --pid --nonblocking --json' ] && "
                "echo \"[{'os_thread_id': $3, 'frames': [{'name': 'f', 'line': 7, 'short_filename': 'x.py'}]}]\""
                " | tr \\' \\\"",
                60000),
        CDDP_OK, "%s", err.msg);
    cr_assert(stacks.n == 1 && stacks.threads[0].is_main);
    cr_assert_str_eq(stacks.threads[0].frames[0].function, "f");
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0, "no child is left");
}

Test(py_spy, a_missing_one_is_named_with_its_package)
{
    cr_assert_eq(collect(NULL, 60000), CDDP_E_UNSUPPORTED);
    cr_assert_str_eq(err.msg, "py-spy is missing: install it with `pip install py-spy`");
}

Test(py_spy, shows_why_it_fails)
{
    cr_assert_eq(collect("printf 'Error: no\\033 such\\n\\nStack\\n' >&2; exit 1", 60000), CDDP_E_PROTOCOL);
    cr_assert_str_eq(err.msg, "py-spy: no\\x1b such");
    cr_assert_eq(collect("exit 1", 60000), CDDP_E_PROTOCOL);
    cr_assert_str_eq(err.msg, "py-spy: it has printed nothing");
    cr_assert_eq(collect("echo 'Permission Denied: Try running again with elevated permissions' >&2", 60000),
                 CDDP_E_DENIED);
    cr_assert_not_null(strstr(err.msg, "ptrace_scope"), "%s", err.msg);
}

Test(py_spy, one_that_hangs_is_killed)
{
    cr_assert_eq(collect("echo something; exec sleep 1000", 200), CDDP_E_TIMEOUT);
    cr_assert_str_eq(err.msg, "py-spy did not end in 0.2 s");
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0, "no child is left");
    cr_assert_eq(collect("echo Error: all; exec >&- 2>&-; exec sleep 1000", 60000), CDDP_E_PROTOCOL);
    cr_assert_str_eq(err.msg, "py-spy: all");
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0, "no child is left");
}

Test(py_spy, says_that_the_node_is_busy)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    cr_assert_eq(collect("for i in 1 2 3 4 5 6; do timeout 2 sh -c 'while :; do :; done' >&- 2>&- & done; "
                         "while :; do :; done",
                         1000),
                 CDDP_E_TIMEOUT);
    cr_assert_str_eq(err.msg, "py-spy did not end in 1.0 s, since this node's processors are busy");
}

Test(py_spy, endless_output_is_an_error)
{
    cr_assert_eq(collect("exec cat /dev/zero", 60000), CDDP_E_LIMIT);
    cr_assert(waitpid(-1, NULL, WNOHANG) < 0, "no child is left");
}

/* ------------------------------------------------------------------------------------------------ py-spy itself ----
 */

static const char sleeping[] = "import os, threading, time\n"
                               "def planted_function(n):\n"
                               "    if n > 0:\n"
                               "        return planted_function(n - 1)\n"
                               "    os.write(1, b'x'); time.sleep(1000)\n"
                               "def f\\u00f6rward():\n"
                               "    threading.Event().wait()\n"
                               "threading.Thread(target=f\\u00f6rward, name='loader', daemon=True).start()\n"
                               "planted_function(3)\n";
static const char spinning[] = "import os\n"
                               "def leaf(x):\n"
                               "    return x + 1\n"
                               "def planted_spin():\n"
                               "    x = 0\n"
                               "    os.write(1, b'x')\n"
                               "    while True:\n"
                               "        x = leaf(x)\n"
                               "planted_spin()\n";

/* Starts a Python that runs a text, and returns when it has printed; -1: it does not run. */
static pid_t start(const char *path, const char *text)
{
    char *argv[] = {(char *)(uintptr_t)path, (char *)(uintptr_t) "-c", NULL, NULL};
    char code[2048], byte;
    struct pollfd f = {.events = POLLIN};
    int fds[2];
    pid_t pid;

    (void)snprintf(code, sizeof code, "text = '''%s'''\nexec(compile(text, 'planted.py', 'exec'))\n", text);
    argv[2] = code;
    cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(null, STDIN_FILENO);
        (void)dup2(fds[1], STDOUT_FILENO);
        (void)dup2(null, STDERR_FILENO);
        (void)execv(path, argv);
        _exit(127);
    }
    (void)close(fds[1]);
    f.fd = fds[0];
    cr_assert_eq(poll(&f, 1, WAIT_MS), 1, "%s is silent", path);
    if (read(fds[0], &byte, 1) != 1) {
        (void)waitpid(pid, NULL, 0);
        pid = -1;
    }
    (void)close(fds[0]);
    return pid;
}

/* Ends a child, if it still runs. */
static void stop(pid_t pid)
{
    if (pid <= 0 || waitpid(pid, NULL, WNOHANG) != 0)
        return;
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

/* Fills in the interpreters here, each file once; returns their number. */
static size_t find_pythons(char paths[PYTHONS_MAX][PATH_MAX])
{
    static const char *const places[] = {"/usr/bin/python3*", "/usr/local/bin/python3*",
                                         "~/.pyenv/versions/*/bin/python3"};
    size_t n = 0;

    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        glob_t found;

        if (glob(places[i], GLOB_TILDE, NULL, &found) == 0) {
            for (size_t k = 0; k < found.gl_pathc && n < PYTHONS_MAX; k++) {
                char path[PATH_MAX];
                bool known = realpath(found.gl_pathv[k], path) == NULL || strchr(strrchr(path, '/'), '-') != NULL;

                for (size_t j = 0; j < n; j++)
                    known = known || strcmp(paths[j], path) == 0;
                if (!known)
                    (void)snprintf(paths[n++], PATH_MAX, "%s", path);
            }
        }
        globfree(&found);
    }
    return n;
}

/* Runs a check with every Python here whose stacks py-spy can read; skips the test where there is none, or no py-spy.
 */
static void with_every_python(const char *text, void (*check)(const char *path, pid_t pid))
{
    static char paths[PYTHONS_MAX][PATH_MAX];
    const struct python_stack_limits limits = {.timeout_ms = WAIT_MS};
    const size_t n = find_pythons(paths);
    size_t n_read = 0;

    (void)setenv("PATH", path_before, 1);
    for (size_t i = 0; i < n; i++) {
        const pid_t pid = start(paths[i], text);
        cddp_status st;
        bool is_python;

        if (pid < 0)
            continue;
        is_python = python_stack_is_python(pid);
        st = py_spy_collect(pid, &limits, &stacks, &err);
        if (st == CDDP_OK) {
            cr_assert(is_python, "%s", paths[i]);
            check(paths[i], pid);
            n_read++;
        }
        python_stacks_release(&stacks);
        stop(pid);
        if (st == CDDP_E_UNSUPPORTED)
            cr_skip_test("%s", err.msg);
    }
    cr_log_info("%zu interpreters", n_read);
    if (n > 0)
        cr_assert_gt(n_read, 0, "py-spy can read none of %zu: %s", n, err.msg);
}

static void check_sleeping(const char *path, pid_t pid)
{
    const struct python_thread *t = &stacks.threads[0];

    cr_assert_eq(stacks.n, 2, "%s", path);
    cr_assert(t->is_main && t->n_frames >= 5 && (t->native_id == 0 || t->native_id == (uint64_t)pid), "%s", path);
    for (int i = 0; i < 4; i++)
        cr_assert_str_eq(t->frames[i].function, "planted_function", "%s", path);
    cr_assert(t->frames[0].line == 5 && t->frames[1].line == 4, "%s: %d, %d", path, t->frames[0].line,
              t->frames[1].line);
    cr_assert_str_eq(t->frames[0].file, "planted.py");
    cr_assert_not(stacks.threads[1].is_main);
    cr_assert_str_eq(stacks.threads[1].name, "loader", "%s", path);
}

Test(py_spy, reads_every_python_here, .timeout = 110)
{
    with_every_python(sleeping, check_sleeping);
}

/* The stack changes millions of times a second. */
static void check_spinning(const char *path, pid_t pid)
{
    int named = 0;

    for (int i = 0; i < 3; i++) {
        python_stacks_release(&stacks);
        if (py_spy_collect(pid, NULL, &stacks, &err) == CDDP_OK)
            for (uint32_t f = 0; f < stacks.threads[0].n_frames && named <= i; f++)
                named += strcmp(stacks.threads[0].frames[f].function, "planted_spin") == 0;
    }
    cr_assert_geq(named, 2, "%s: planted_spin was found %d times in 3", path, named);
}

Test(py_spy, reads_spinning_programs, .timeout = 110)
{
    with_every_python(spinning, check_spinning);
}

/* Its threads are in D state then, but none holds the lock of its memory. */
static void check_frozen(const char *path, pid_t pid)
{
    struct freezer freezer;

    python_stacks_release(&stacks);
    if (freezer_freeze(&freezer, pid)) {
        cr_assert(python_stack_is_python(pid), "%s", path);
        cr_assert_eq(py_spy_collect(pid, NULL, &stacks, &err), CDDP_OK, "%s: %s", path, err.msg);
        cr_assert_str_eq(stacks.threads[0].frames[0].function, "planted_function");
    }
    freezer_thaw(&freezer);
    stop(pid);
    freezer_release(&freezer);
}

Test(py_spy, reads_frozen_programs, .timeout = 110)
{
    with_every_python(sleeping, check_frozen);
}

Test(py_spy, says_why_there_is_no_stack)
{
    const pid_t child = fork();
    cddp_status st;

    cr_assert_geq(child, 0);
    if (child == 0) {
        for (;;)
            (void)pause();
    }
    cr_assert_not(python_stack_is_python(child));
    (void)setenv("PATH", path_before, 1);
    st = py_spy_collect(child, NULL, &stacks, &err);
    stop(child);
    if (st == CDDP_E_UNSUPPORTED)
        cr_skip_test("%s", err.msg);
    cr_assert(st == CDDP_E_PROTOCOL || st == CDDP_E_DENIED || st == CDDP_E_TIMEOUT, "%d %s", st, err.msg);
}
