/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "freezer.h"
#include "hygiene.h"
#include "launcher/process/stack.h"
#include "launcher/process/stack_text.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(stack);

static const struct stack_limits all = {.threads = 16, .frames = 32};
static volatile int never_ends = 1;

/* The planted functions: neither inlined nor ended by a tail call, so that each has its frame. */
static __attribute__((noinline)) void planted_inner(int ready)
{
    (void)!write(ready, "x", 1);
    while (never_ends)
        (void)pause();
}

/* As a compiler of C++ would name it. */
static __attribute__((noinline)) void planted_middle(int ready) __asm__("_ZN7planted6middleEi");
static __attribute__((noinline)) void planted_middle(int ready)
{
    planted_inner(ready);
    never_ends = 0;
}

/* As a compiler names the part of a function that it has moved away. */
static __attribute__((noinline)) void planted_moved(int ready) __asm__("planted_moved.cold");
static __attribute__((noinline)) void planted_moved(int ready)
{
    planted_middle(ready);
    never_ends = 0;
}

static __attribute__((noinline)) void planted_outer(int ready)
{
    planted_moved(ready);
    never_ends = 0;
}

static inline __attribute__((always_inline)) void planted_inlined(int ready)
{
    planted_inner(ready);
    never_ends = 0;
}

static __attribute__((noinline)) void *planted_in_thread(void *arg)
{
    planted_inlined(*(int *)arg);
    never_ends = 0;
    return NULL;
}

/* Waits in D state for a child that has a copy of this process: no debugger can stop it. */
static void become_stuck(int ready)
{
    long child;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    child = syscall(SYS_clone, CLONE_VFORK | SIGCHLD, NULL, NULL, NULL, NULL);

    while (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)!write(ready, "x", 1);
        (void)pause();
    }
}

/* A child that waits in the planted functions, in two threads if asked; returns when all have reached them. */
/* The letter of a process's state, from /proc. */
static char state_of(pid_t pid)
{
    char path[64], state = '?';
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%*d (test_stack) %c", &state), 1);
    (void)fclose(f);
    return state;
}

/* Returns a process that sleeps in planted_inner(). */
static pid_t plant(bool two_threads)
{
    int ready[2];
    char byte;
    pid_t pid;

    cr_assert_eq(pipe(ready), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        pthread_t thread;

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (two_threads && pthread_create(&thread, NULL, planted_in_thread, &ready[1]) != 0)
            _exit(1);
        planted_outer(ready[1]);
        _exit(0);
    }
    (void)close(ready[1]);
    for (int i = 0; i < (two_threads ? 2 : 1); i++)
        cr_assert_eq(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    while (state_of(pid) != 'S') /* it may still be in the write */
        (void)usleep(1000);
    return pid;
}

static void reap(pid_t pid)
{
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

/* The text of a reading that must work; skips the test where the kernel allows no tracing or libdw is missing. */
static void read_text(pid_t pid, const struct stack_limits *limits, char *text, size_t size)
{
    struct cdi_buf out;
    struct cdi_error err;
    cddp_status st;

    cdi_buf_init(&out, 1 << 20);
    st = stack_read(pid, limits, &out, &err);
    if (st == CDDP_E_UNSUPPORTED || st == CDDP_E_DENIED) {
        reap(pid);
        cr_skip_test("%s", err.msg);
    }
    cr_assert_eq(st, CDDP_OK, "%s", err.msg);
    cr_assert_lt(out.len, size);
    memcpy(text, cdi_buf_data(&out), out.len);
    text[out.len] = '\0';
    cdi_buf_release(&out);
}

Test(stack, shows_functions_and_lines_of_a_sleeping_process)
{
    const pid_t pid = plant(false);
    char text[1 << 16];
    const char *inner, *outer;

    read_text(pid, &all, text, sizeof text);
    inner = strstr(text, "planted_inner()");
    outer = strstr(text, "planted_outer()");
    cr_assert(inner != NULL && outer != NULL && inner < outer, "the innermost frame is first:\n%s", text);
#ifdef CDI_TEST_LINES
    cr_assert_not_null(strstr(outer, "at test_stack.c:"), "%s", text);
#endif
    cr_assert_not_null(strstr(text, "sleeping:\n  #0 "), "%s", text);
    reap(pid);
}

Test(stack, shows_names_of_functions_in_cxx_as_in_their_source)
{
    const pid_t pid = plant(false);
    char text[1 << 16];
    void *demangler;

    read_text(pid, &all, text, sizeof text);
    demangler = dlopen("libstdc++.so.6", RTLD_LAZY);
    cr_assert_not_null(strstr(text, demangler != NULL ? " planted::middle(int) " : " _ZN7planted6middleEi() "), "%s",
                       text);
    if (demangler != NULL)
        (void)dlclose(demangler);
    reap(pid);
}

Test(stack, shows_every_thread)
{
    const pid_t pid = plant(true);
    char text[1 << 16];

    read_text(pid, &all, text, sizeof text);
    cr_assert(strstr(text, "planted_in_thread()") != NULL && strstr(text, "planted_outer()") != NULL, "%s", text);
    reap(pid);
}

Test(stack, counts_threads_and_cuts_frames_beyond_the_limits)
{
    const pid_t pid = plant(true);
    char text[1 << 16];

    read_text(pid, &(struct stack_limits){.threads = 1, .frames = 1, .timeout_ms = 0}, text, sizeof text);
    cr_assert_not_null(strstr(text, "and 1 more thread\n"), "%s", text);
    cr_assert_null(strstr(text, "#1 "), "%s", text);
    reap(pid);
}

Test(stack, leaves_a_stopped_process_stopped)
{
    const pid_t pid = plant(false);
    char text[1 << 16];
    int status;

    cr_assert_eq(kill(pid, SIGSTOP), 0);
    cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
    read_text(pid, &all, text, sizeof text);
    cr_assert(strstr(text, "planted_inner()") != NULL && strstr(text, "stopped by a signal") != NULL, "%s", text);
    for (int i = 0; state_of(pid) != 'T' && i < 500; i++) /* the kernel stops it again in its own time */
        (void)usleep(10000);
    cr_assert_eq(state_of(pid), 'T');
    reap(pid);
}

Test(stack, lets_a_running_process_go_on)
{
    const pid_t pid = plant(false);
    char text[1 << 16];
    int status;

    read_text(pid, &all, text, sizeof text);
    cr_assert_eq(waitpid(pid, &status, WNOHANG | WUNTRACED), 0, "neither ended nor stopped");
    cr_assert_eq(kill(pid, SIGTERM), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

Test(stack, names_a_process_that_is_gone)
{
    const pid_t pid = fork();
    struct cdi_buf out;
    struct cdi_error err;
    cddp_status st;

    if (pid == 0)
        _exit(0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    cdi_buf_init(&out, 1 << 20);
    st = stack_read(pid, &all, &out, &err);
    cr_assert(st == CDDP_E_NOT_FOUND || st == CDDP_E_UNSUPPORTED, "%s", err.msg);
    cr_assert_eq(out.len, 0);
    cdi_buf_release(&out);
}

Test(stack, reports_a_process_that_a_debugger_has)
{
    int ready[2], status;
    struct cdi_buf out;
    struct cdi_error err;
    cddp_status st;
    char byte;
    pid_t traced = plant(false), debugger;

    cr_assert_eq(pipe(ready), 0);
    debugger = fork();
    if (debugger == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_SEIZE, traced, NULL, NULL) != 0)
            _exit(1);
        (void)!write(ready[1], "x", 1);
        for (;;)
            (void)pause();
    }
    (void)close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) {
        (void)close(ready[0]);
        (void)waitpid(debugger, &status, 0);
        reap(traced);
        cr_skip_test("the kernel allows no tracing");
    }
    (void)close(ready[0]);
    cdi_buf_init(&out, 1 << 20);
    st = stack_read(traced, &all, &out, &err);
    cr_assert(st == CDDP_E_DENIED || st == CDDP_E_UNSUPPORTED, "%d %s", st, err.msg);
    cdi_buf_release(&out);
    reap(debugger);
    reap(traced);
}

Test(stack, shows_the_wait_of_a_thread_that_cannot_be_stopped)
{
    int ready[2];
    char byte, text[1 << 16];
    pid_t pid;

    cr_assert_eq(pipe(ready), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0)
        become_stuck(ready[1]);
    (void)close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    for (int i = 0; state_of(pid) != 'D' && i < 500; i++)
        (void)usleep(10000);
    read_text(pid, &all, text, sizeof text);
    reap(pid);
    cr_assert_not_null(strstr(text, "in D state:\n  no stack: it cannot be stopped"), "%s", text);
    cr_assert_null(strstr(text, "#0"), "%s", text);
}

Test(stack, shows_the_wait_of_a_frozen_process)
{
    const pid_t pid = plant(true);
    struct freezer freezer;
    char text[1 << 16];

    if (!freezer_freeze(&freezer, pid)) {
        reap(pid);
        freezer_release(&freezer);
        cr_skip_test("no cgroup of version 1 can be made");
    }
    read_text(pid, &all, text, sizeof text);
    cr_assert_eq(state_of(pid), 'D');
    freezer_thaw(&freezer);
    reap(pid);
    freezer_release(&freezer);
    cr_assert_not_null(strstr(text, ", frozen by its cgroup:\n  no stack: it cannot be stopped"), "%s", text);
}

Test(stack, names_the_whole_of_a_moved_part)
{
    const pid_t pid = plant(false);
    char text[1 << 16];

    read_text(pid, &all, text, sizeof text);
    reap(pid);
    cr_assert_not_null(strstr(text, " planted_moved() "), "%s", text);
    cr_assert_null(strstr(text, ".cold"), "%s", text);
}

#ifdef CDI_TEST_LINES
/* A line belongs to the function that is named before it. */
Test(stack, gives_an_inlined_function_its_own_line)
{
    const pid_t pid = plant(true);
    char text[1 << 16];
    const char *outer;
    int call = 0, inner = 0;

    read_text(pid, &all, text, sizeof text);
    reap(pid);
    outer = strstr(text, "planted_in_thread() at test_stack.c:");
    cr_assert_not_null(outer, "%s", text);
    cr_assert_eq(sscanf(outer, "planted_in_thread() at test_stack.c:%d, inlined planted_inlined() at test_stack.c:%d",
                        &call, &inner),
                 2, "%s", outer);
    cr_assert_lt(inner, call, "%s", outer); /* as in this file */
}
#endif

struct repeated {
    pid_t pid;
    atomic_bool over;
};

static void *read_again(void *arg)
{
    struct repeated *r = arg;
    struct cdi_buf out;
    struct cdi_error err;

    cdi_buf_init(&out, 1 << 20);
    while (!atomic_load(&r->over) && stack_read(r->pid, &all, &out, &err) == CDDP_OK)
        cdi_buf_consume(&out, out.len);
    cdi_buf_release(&out);
    return NULL;
}

/* Its parent must get the end of the process, at any moment of a reading. */
Test(stack, leaves_the_end_of_a_process_to_its_parent)
{
    for (int i = 0; i < 20; i++) {
        struct repeated r = {.pid = plant(true)};
        pthread_t thread;
        int status;

        cr_assert_eq(pthread_create(&thread, NULL, read_again, &r), 0);
        (void)usleep((unsigned)i * 997);
        cr_assert_eq(kill(r.pid, i % 2 == 0 ? SIGKILL : SIGTERM), 0);
        do /* a wait here also gets the stops that the reading causes */
            cr_assert_eq(waitpid(r.pid, &status, 0), r.pid);
        while (WIFSTOPPED(status));
        cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == (i % 2 == 0 ? SIGKILL : SIGTERM), "%x", (unsigned)status);
        atomic_store(&r.over, true);
        (void)pthread_join(thread, NULL);
    }
}

Test(stack, says_that_registers_are_not_known)
{
    const struct stack_registers none = {.n = 0};
    struct cdi_buf out;
    struct cdi_error err;

    cdi_buf_init(&out, 1 << 20);
    cr_assert_eq(stack_read_waiting(getpid(), getpid(), &none, &all, &out, &err), CDDP_E_UNSUPPORTED);
    cdi_buf_release(&out);
}

Test(stack, fails_for_a_waiting_process_that_is_gone)
{
    const struct stack_registers regs = {.n = 17};
    struct cdi_buf out;
    struct cdi_error err;
    const pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    cdi_buf_init(&out, 1 << 20);
    cr_assert_neq(stack_read_waiting(pid, pid, &regs, &all, &out, &err), CDDP_OK);
    cr_assert_eq(out.len, 0);
    cdi_buf_release(&out);
}

/* ------------------------------------------------------------------------------------------------- as text ---- */

static cddp_status name_by_number(void *arg, uint64_t pc, struct cdi_buf *out)
{
    (void)arg;
    return cdi_buf_printf(out, " f%d()", (int)pc);
}

static void check_text(const struct stack_thread *threads, int n, int unread, const char *expected)
{
    struct cdi_buf out;

    cdi_buf_init(&out, 1 << 16);
    cr_assert_eq(stack_text(threads, n, unread, name_by_number, NULL, &out), CDDP_OK);
    cr_assert_eq(cdi_buf_append(&out, "", 1), CDDP_OK);
    cr_assert_str_eq((const char *)cdi_buf_data(&out), expected);
    cdi_buf_release(&out);
}

Test(stack, puts_threads_in_equal_stacks_together)
{
    uint64_t here[] = {1, 2}, there[] = {1, 3};
    struct stack_thread threads[12];

    for (int i = 0; i < 12; i++)
        threads[i] =
            (struct stack_thread){.tid = 10 + i, .name = "w", .state = 'S', .n = 2, .pc = i == 1 ? there : here};
    check_text(threads, 3, 0,
               "threads 10 (w), 12 (w), sleeping:\n  #0 f1()\n  #1 f2()\nthread 11 (w), sleeping:\n  #0 f1()\n"
               "  #1 f3()\n");
    check_text(threads, 1, 1, "thread 10 (w), sleeping:\n  #0 f1()\n  #1 f2()\nand 1 more thread\n");
    threads[1].pc = here;
    threads[2].state = 'R';
    threads[3].cut = true;
    check_text(threads, 12, 7,
               "threads 10 (w), 11 (w), 14 (w), 15 (w), 16 (w), 17 (w) and 4 more, sleeping:\n  #0 f1()\n  #1 f2()\n"
               "thread 12 (w), running:\n  #0 f1()\n  #1 f2()\nthread 13 (w), sleeping:\n  #0 f1()\n  #1 f2()\n"
               "  (its outer frames are left out)\nand 7 more threads\n");
    threads[0] = (struct stack_thread){
        .tid = 10, .name = "w", .state = 'R', .n = 5, .cut = true, .pc = (uint64_t[]){9, 4, 4, 4, 5}};
    check_text(threads, 1, 0,
               "thread 10 (w), running:\n  #0 f9()\n  #1 to #3 f4()\n  #4 f5()\n  (its outer frames are left out)\n");
    threads[0] = (struct stack_thread){.tid = 10, .name = "w", .state = 'D', .why_none = "it waits"};
    threads[1] = (struct stack_thread){.tid = 11, .name = "v", .state = 'D', .why_none = "it waits"};
    check_text(threads, 2, 0, "threads 10 (w), 11 (v), in D state:\n  no stack: it waits\n");
}
