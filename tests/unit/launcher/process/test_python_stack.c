/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every Python that is found here runs a program whose threads wait at known places and that prints its own stacks by
 * the module faulthandler. Reading them from outside must give the same.
 */
#include "freezer.h"
#include "hygiene.h"
#include "launcher/process/python_stack.h"
#include "launcher/process/python_symbols.h"

#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(python_stack);

#define PYTHONS_MAX 32
#define THREADS 5
#define DUMP_MAX 32768
#define WAIT_MS 60000

static const char program[] = "import faulthandler, os, sys, threading, time\n"
                              "def planted_function(n, name='\\u00e9\\u4e2d'):\n"
                              "    if n > 0:\n"
                              "        return planted_function(n - 1)\n"
                              "    time.sleep(\n"
                              "        1000\n"
                              "    )\n"
                              "class Net:\n"
                              "    def f\\u00f6rward\\u4e2d(self):\n"
                              "        x = [1,\n"
                              "             2]\n"
                              "        threading.Event().wait()\n"
                              "def worker():\n"
                              "    threading.Event().wait()\n"
                              "def generate():\n"
                              "    yield 1\n"
                              "    planted_function(3)\n"
                              "for target in [worker, worker, worker, Net().f\\u00f6rward\\u4e2d]:\n"
                              "    threading.Thread(target=target, daemon=True).start()\n"
                              "faulthandler.dump_traceback_later(0.5, file=sys.stdout)\n"
                              "for item in generate():\n"
                              "    pass\n";

static const char spinning[] = "def leaf(x):\n"
                               "    return x + 1\n"
                               "def planted_spin():\n"
                               "    x = 0\n"
                               "    print('<module>', flush=True)\n"
                               "    while True:\n"
                               "        x = leaf(x)\n"
                               "def main():\n"
                               "    planted_spin()\n"
                               "main()\n";

struct python {
    char path[PATH_MAX];
    pid_t pid;
    int out;
    char dump[DUMP_MAX]; /* what it printed */
    size_t n;
};

/* Starts a Python that runs a text; its stderr is dropped. The kernel kills it if this test dies. */
static bool start(struct python *p, const char *path, const char *text)
{
    char *argv[] = {(char *)(uintptr_t)path, (char *)(uintptr_t) "-c", NULL, NULL};
    char code[4096];
    int fds[2];

    (void)snprintf(code, sizeof code, "text = '''%s'''\nexec(compile(text, 'planted.py', 'exec'))\n", text);
    argv[2] = code;
    cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
    p->pid = fork();
    cr_assert_geq(p->pid, 0);
    if (p->pid == 0) {
        int null = open("/dev/null", O_RDWR);

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(null, STDIN_FILENO);
        (void)dup2(fds[1], STDOUT_FILENO);
        (void)dup2(null, STDERR_FILENO);
        (void)execv(path, argv);
        _exit(127);
    }
    (void)close(fds[1]);
    p->out = fds[0];
    return true;
}

/* Reads what it prints until it has printed this text so many times; false: it has ended. */
static bool wait_for(struct python *p, const char *text, int times)
{
    p->n = 0;
    for (;;) {
        struct pollfd f = {.fd = p->out, .events = POLLIN};
        const char *at = p->dump;
        ssize_t n;
        int seen = 0;

        cr_assert_eq(poll(&f, 1, WAIT_MS), 1, "%s is silent", p->path);
        n = read(p->out, p->dump + p->n, sizeof p->dump - 1 - p->n);
        if (n <= 0)
            return false;
        p->n += (size_t)n;
        p->dump[p->n] = '\0';
        while ((at = strstr(at, text)) != NULL) {
            seen++;
            at++;
        }
        if (seen >= times && p->dump[p->n - 1] == '\n')
            return true;
    }
}

static void stop(struct python *p)
{
    (void)kill(p->pid, SIGKILL);
    (void)waitpid(p->pid, NULL, 0);
    (void)close(p->out);
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

/* Writes "name:line<name:line<" of each thread that faulthandler has printed; the names end before a blank. */
static size_t places_printed(const char *dump, char places[THREADS][2048])
{
    size_t n = 0, used = 0;

    for (const char *line = dump; line != NULL && *line != '\0'; line = strchr(line, '\n'), line += line != NULL) {
        const char *number = strstr(line, "\", line "), *end = strchr(line, '\n');

        if (strncmp(line, "Thread ", 7) == 0 || strncmp(line, "Current thread ", 15) == 0) {
            cr_assert_lt(n, THREADS);
            n++;
            used = 0;
            places[n - 1][0] = '\0';
        } else if (n > 0 && number != NULL && end != NULL && number < end) {
            int at = atoi(number + 8);
            const char *name = strstr(number, " in ") + 4;

            used += (size_t)snprintf(places[n - 1] + used, 2048 - used, "%.*s:%d<", (int)(end - name), name, at);
        }
    }
    return n;
}

/* The same of a thread that was read; faulthandler shows names without their class, and writes \xe9 for an accent. */
static void places_read(const struct python_thread *t, char places[2048])
{
    size_t used = 0;

    places[0] = '\0';
    for (uint32_t i = 0; i < t->n_frames; i++) {
        const char *name = strrchr(t->frames[i].function, '.');

        name = name == NULL ? t->frames[i].function : name + 1;
        if (strncmp(name, "f\303\266rward", 7) == 0)
            name = "f\\xf6rward\\u4e2d";
        used += (size_t)snprintf(places + used, 2048 - used, "%s:%d<", name, t->frames[i].line);
    }
}

static void check_stacks(const struct python *p)
{
    char printed[THREADS][2048], places[2048];
    struct python_stacks s;
    struct cdi_error err = {.status = CDDP_OK};

    cr_assert_eq(python_stack_collect(p->pid, NULL, &s, &err), CDDP_OK, "%s: %s", p->path, err.msg);
    cr_assert_eq(s.n, THREADS, "%s", p->path);
    cr_assert(s.threads[0].is_main && s.threads[0].native_id == (uint64_t)p->pid, "%s", p->path);
    cr_assert_eq(places_printed(p->dump, printed), THREADS, "%s: %s", p->path, p->dump);
    for (size_t i = 0; i < THREADS; i++) {
        bool found = false;

        places_read(&s.threads[i], places);
        for (size_t k = 0; k < THREADS && !found; k++) {
            found = strcmp(printed[k], places) == 0;
            if (found)
                printed[k][0] = '\0'; /* each once */
        }
        cr_assert(found, "%s: read '%s', but it printed\n%s", p->path, places, p->dump);
        cr_assert(s.threads[i].native_id != 0 && !s.threads[i].cut);
    }
    python_stacks_release(&s);
}

static void check_text(const struct python *p, uint32_t minor)
{
    const struct python_stack_limits few = {.max_frames = 2, .no_py_spy = true};
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_buf out;
    char text[8192];

    cdi_buf_init(&out, sizeof text - 1);
    cr_assert_eq(python_stack_read(p->pid, &few, &out, &err), CDDP_OK, "%s", err.msg);
    (void)snprintf(text, sizeof text, "%.*s", (int)out.len, (const char *)cdi_buf_data(&out));
    cr_assert_eq(strncmp(text, "main thread:\n    planted_function (planted.py:", 46), 0, "%s: %s", p->path, text);
    cr_assert_not_null(strstr(text, ")\n    planted_function (planted.py:4)\n    ...\n"), "%s: %s", p->path, text);
    cr_assert_not_null(strstr(text, minor >= 11 ? "    Event.wait (threading.py:" : "    wait (threading.py:"), "%s",
                       text);
    cdi_buf_release(&out);
    cdi_buf_init(&out, 64); /* too small for the text */
    cr_assert_eq(python_stack_read(p->pid, &few, &out, &err), CDDP_E_LIMIT);
    cdi_buf_release(&out);
}

/* Returns the minor version of the interpreter that runs as p. */
static uint32_t minor_of(const struct python *p)
{
    static struct python_image image;

    cr_assert(python_stack_is_python(p->pid), "%s", p->path);
    cr_assert(python_image_find(p->pid, &image));
    return python_image_minor(image.path);
}

Test(python_stack, reads_what_every_python_here_prints_of_itself, .timeout = 110)
{
    static char paths[PYTHONS_MAX][PATH_MAX];
    static struct python p;
    size_t n = find_pythons(paths), n_read = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t minor;

        (void)snprintf(p.path, sizeof p.path, "%s", paths[i]);
        if (!start(&p, paths[i], program) || !wait_for(&p, " in <module>", 2)) {
            stop(&p);
            continue; /* not a Python that runs here */
        }
        minor = minor_of(&p);
        if (minor >= 9 && minor <= 15) {
            check_stacks(&p);
            check_text(&p, minor);
            n_read++;
        }
        stop(&p);
    }
    cr_log_info("%zu interpreters", n_read);
    if (n > 0)
        cr_assert_gt(n_read, 0, "none of %zu files is a Python from 3.9 on", n);
}

/* The stack changes millions of times a second. */
Test(python_stack, reads_spinning_program, .timeout = 110)
{
    static char paths[PYTHONS_MAX][PATH_MAX];
    static struct python p;
    size_t n = find_pythons(paths);

    for (size_t i = 0; i < n; i++) {
        int named = 0;

        (void)snprintf(p.path, sizeof p.path, "%s", paths[i]);
        if (!start(&p, paths[i], spinning) || !wait_for(&p, "<module>", 1) || minor_of(&p) < 9 || minor_of(&p) > 15) {
            stop(&p);
            continue;
        }
        for (int k = 0; k < 20; k++) {
            struct python_stacks s;
            struct cdi_error err = {.status = CDDP_OK};

            if (python_stack_collect(p.pid, NULL, &s, &err) == CDDP_OK)
                for (uint32_t f = 0; f < s.threads[0].n_frames; f++)
                    if (strcmp(s.threads[0].frames[f].function, "planted_spin") == 0) {
                        named++;
                        break;
                    }
            python_stacks_release(&s);
        }
        stop(&p);
        cr_assert_geq(named, 18, "%s: planted_spin was found %d times in 20", paths[i], named);
    }
}

/* Its threads are in D state then, but none holds the lock of its memory. */
Test(python_stack, reads_a_frozen_program, .timeout = 110)
{
    static char paths[PYTHONS_MAX][PATH_MAX];
    static struct python p;
    size_t n = find_pythons(paths);
    struct freezer freezer;

    for (size_t i = 0; i < n; i++) {
        struct python_stacks s;
        struct cdi_error err = {.status = CDDP_OK};
        bool is_frozen;

        (void)snprintf(p.path, sizeof p.path, "%s", paths[i]);
        if (!start(&p, paths[i], program) || !wait_for(&p, " in <module>", 2) || minor_of(&p) < 9 ||
            minor_of(&p) > 15) {
            stop(&p);
            continue;
        }
        is_frozen = freezer_freeze(&freezer, p.pid);
        if (is_frozen) {
            cr_assert(python_stack_is_python(p.pid), "%s", p.path);
            cr_assert_eq(python_stack_collect(p.pid, NULL, &s, &err), CDDP_OK, "%s: %s", p.path, err.msg);
            cr_assert_str_eq(s.threads[0].frames[0].function, "planted_function");
            python_stacks_release(&s);
        }
        freezer_thaw(&freezer);
        stop(&p);
        freezer_release(&freezer);
        if (!is_frozen)
            cr_skip_test("no cgroup of version 1 can be made");
    }
}

Test(python_stack, says_why_there_is_no_stack)
{
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_buf out;
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0) {
        for (;;)
            (void)pause();
    }
    cdi_buf_init(&out, 0);
    cr_assert_not(python_stack_is_python(child));
    cr_assert_eq(python_stack_read(child, NULL, &out, &err), CDDP_E_NOT_FOUND);
    cr_assert_not_null(strstr(err.msg, "does not run Python"), "%s", err.msg);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    cr_assert_not(python_stack_is_python(child));
    cr_assert_eq(python_stack_read(child, NULL, &out, &err), CDDP_E_NOT_FOUND);
    cr_assert_eq(out.len, 0);
}

Test(python_stack, takes_version_from_name)
{
    cr_assert_eq(python_image_minor("/usr/lib/libpython3.11.so.1.0"), 11);
    cr_assert_eq(python_image_minor("/opt/python3.9/bin/python3.12"), 12);
    cr_assert_eq(python_image_minor("/opt/python3.9/bin/python"), 0);
    cr_assert_eq(python_image_minor("python3."), 0);
    cr_assert_eq(python_image_minor("libpython3.99999999999999999999.so"), 0);
    cr_assert_eq(python_image_minor(""), 0);
}
