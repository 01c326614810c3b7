/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/proc_state.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

CDI_SUITE(proc_state);

#define PID 77
#define SECOND_NS INT64_C(1000000000)

static char root[64];

/* Writes a file below root, and creates its directories. */
static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = strchr(full + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    f = fopen(full, "we");
    cr_assert_not_null(f, "%s", full);
    (void)fputs(text, f);
    (void)fclose(f);
}

/* Plants a process with this state and name; the signal that has stopped it; its number of major faults. */
static void put_stat(char state, int stop, int major)
{
    char text[512];

    (void)snprintf(
        text, sizeof text,
        "77 (a) b (c) %c 1 77 77 0 -1 4194304 132 0 %d 0 5 5 0 0 20 0 1 0 6976 2990080 408 18446744073709551615 1 "
        "1 1 0 0 0 0 6 0 1 0 0 17 0 0 0 0 0 0 1 1 1 1 1 1 1 %d\n",
        state, major, stop);
    put("/proc/77/stat", text);
}

static void put_status(int swap_kb, int yielded, int threads)
{
    char text[512];

    (void)snprintf(text, sizeof text,
                   "Name:\ta\nTracerPid:\t0\nVmSwap:\t%8d kB\nThreads:\t%d\n"
                   "voluntary_ctxt_switches:\t%d\nnonvoluntary_ctxt_switches:\t1\n",
                   swap_kb, threads, yielded);
    put("/proc/77/status", text);
}

static int drop(const char *path, const struct stat *sb, int type, struct FTW *where)
{
    (void)sb, (void)type, (void)where;
    return remove(path);
}

static void make_root(void)
{
    (void)snprintf(root, sizeof root, "/tmp/cdi-proc-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    put_stat('S', 0, 0);
    put_status(0, 5, 1);
    put("/proc/77/schedstat", "1000000000 500 3\n");
}

static void remove_root(void)
{
    (void)nftw(root, drop, 8, FTW_DEPTH | FTW_PHYS);
}

static struct proc_sample look(void)
{
    struct proc_sample s;

    cr_assert_eq(proc_sample_take_below(root, PID, &s), 0);
    return s;
}

static const char *text_of(const struct proc_sample *before, const struct proc_sample *now)
{
    static char text[PROC_STATE_TEXT];

    proc_state_text(before, now, text, sizeof text);
    return text;
}

/* The text for the planted files of now, seconds after `before`. */
static const char *text_after(const struct proc_sample *before, int seconds)
{
    struct proc_sample now = look();

    now.at_ns = before->at_ns + seconds * SECOND_NS;
    return text_of(before, &now);
}

Test(proc_state, names_what_a_process_sleeps_in)
{
    struct proc_sample s;

    make_root();
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "sleeping");
    put("/proc/77/wchan", "pipe_read");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "sleeping (pipe_read)");
    put("/proc/77/syscall", "-1 0x7ffd 0x7fff\n");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "sleeping (pipe_read)");
    put("/proc/77/wchan", "0");
    put("/proc/77/syscall", "running\n");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "sleeping");
    put("/proc/77/wchan", "do_syscall_64"); /* only that it is in the kernel */
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "sleeping");
    put("/proc/77/wchan", "el0_svc_common.constprop.0");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "sleeping");
    put("/proc/77/wchan", "x\x1b[2Jevil");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "sleeping", "%s", s.wchan);
    remove_root();
}

Test(proc_state, tells_a_running_process_from_one_without_a_core)
{
    struct proc_sample before;

    make_root();
    put_stat('R', 0, 0);
    before = look();
    cr_assert_str_eq(text_of(NULL, &before), "running");
    put("/proc/77/schedstat", "10900000000 500 3\n");
    cr_assert_str_eq(text_after(&before, 10), "running, 99 % of a core");
    put("/proc/77/schedstat", "33000000000 500 3\n");
    cr_assert_str_eq(text_after(&before, 10), "running, 3.2 cores");
    put("/proc/77/schedstat", "1100000000 9500000500 3\n");
    cr_assert_str_eq(text_after(&before, 10), "ready to run, but gets 1 % of a core");
    put_stat('S', 0, 0);
    put("/proc/77/schedstat", "11000000000 500 3\n"); /* its other threads run */
    cr_assert_str_eq(text_after(&before, 10), "running, 100 % of a core");
    put("/proc/77/schedstat", "1000100000 500 3\n");
    cr_assert_str_eq(text_after(&before, 10), "sleeping");
    remove_root();
}

Test(proc_state, names_the_signal_that_stopped_it)
{
    struct proc_sample s;

    make_root();
    put_stat('T', SIGTTIN, 0);
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "stopped by SIGTTIN");
    put_stat('T', 0, 0);
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "stopped by a signal");
    put_stat('t', 0, 0);
    put("/proc/77/status", "TracerPid:\t99\n");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "stopped by a debugger (pid 99)");
    remove_root();
}

Test(proc_state, says_how_long_it_has_been_in_d_state_only_if_it_has_not_left_it)
{
    struct proc_sample before;

    make_root();
    put_stat('D', 0, 0);
    put("/proc/77/wchan", "nfs_wait_bit_killable");
    before = look();
    cr_assert_str_eq(text_of(NULL, &before), "in D state (nfs_wait_bit_killable)");
    cr_assert_str_eq(text_after(&before, 12), "in D state (nfs_wait_bit_killable) for 12 s");
    put_status(0, 6, 1); /* it ran meanwhile */
    cr_assert_str_eq(text_after(&before, 12), "in D state (nfs_wait_bit_killable)");
    remove_root();
}

Test(proc_state, finds_swapping_and_ends)
{
    struct proc_sample before, s;

    make_root();
    put_stat('D', 0, 100);
    put_status(4096, 5, 1);
    before = look();
    put_stat('D', 0, 1100);
    cr_assert_str_eq(text_after(&before, 10), "swapping, 100 pages a second from the disk");
    put_status(0, 5, 1);
    cr_assert_str_eq(text_after(&before, 10), "in D state for 10 s");
    put_stat('Z', 0, 100);
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "exited");
    put_status(0, 5, 3);
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "its main thread has exited, 2 other threads have not");
    cr_assert_eq(proc_sample_take_below(root, PID + 1, &s), ESRCH);
    cr_assert_str_eq(text_of(&before, &s), "exited");
    s = (struct proc_sample){.pid = 0};
    cr_assert_str_eq(text_of(NULL, &s), "not known");
    remove_root();
}

Test(proc_state, finds_a_frozen_cgroup_of_each_version)
{
    struct proc_sample s;

    make_root();
    put_stat('D', 0, 0);
    put("/proc/77/cgroup", "6:freezer:/job/one\n0::/\n");
    put("/sys/fs/cgroup/freezer/job/one/freezer.state", "THAWED\n");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "in D state");
    put("/sys/fs/cgroup/freezer/job/one/freezer.state", "FROZEN\n");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "frozen by its cgroup");
    put("/proc/77/cgroup", "0::/job/two\n");
    put("/sys/fs/cgroup/job/two/cgroup.events", "populated 1\nfrozen 0\n");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "in D state");
    put("/sys/fs/cgroup/job/two/cgroup.events", "populated 1\nfrozen 1\n");
    s = look();
    cr_assert_str_eq(text_of(NULL, &s), "frozen by its cgroup");
    remove_root();
}

Test(proc_state, finds_the_memory_limit_of_a_cgroup_around_it)
{
    struct proc_sample before;

    make_root();
    put_stat('D', 0, 0);
    put("/proc/77/cgroup", "0::/job/rank\n");
    put("/sys/fs/cgroup/job/rank/memory.max", "max\n");
    put("/sys/fs/cgroup/job/rank/memory.current", "2147000000\n");
    put("/sys/fs/cgroup/job/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/job/memory.current", "1000000000\n");
    put("/sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 7\noom 0\n");
    before = look();
    cr_assert_str_eq(text_of(NULL, &before), "in D state");
    put("/sys/fs/cgroup/job/memory.current", "2147000000\n");
    before = look();
    cr_assert_str_eq(text_of(NULL, &before), "at its memory limit of 2.0 GiB");
    put_stat('S', 0, 0); /* full of cached files only */
    cr_assert_str_eq(text_after(&before, 10), "sleeping");
    put_stat('R', 0, 0);
    put("/proc/77/schedstat", "6000000000 500 3\n");
    cr_assert_str_eq(text_after(&before, 10), "running, 50 % of a core");
    put("/sys/fs/cgroup/job/memory.events", "low 0\nhigh 0\nmax 9\noom 0\n");
    cr_assert_str_eq(text_after(&before, 10), "running, 50 % of a core, at its memory limit of 2.0 GiB");
    put_stat('D', 0, 0);
    put("/proc/77/cgroup", "4:cpu,memory:/job\n0::/\n");
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1048576\n");
    put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1048576\n");
    put("/sys/fs/cgroup/memory/job/memory.failcnt", "3\n");
    cr_assert_str_eq(text_after(&before, 10), "at its memory limit of 1.0 MiB");
    remove_root();
}

Test(proc_state, survives_texts_of_any_kind)
{
    static const char *const texts[] = {"",         "77",     "77 (", "77 (a)", "77 (a) ",
                                        "77 (a) S", "\n\n\n", ":::",  "0::",    "a:b"};
    struct proc_sample s;

    make_root();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        put("/proc/77/stat", texts[i][0] == '\0' ? "x" : texts[i]);
        put("/proc/77/status", texts[i]);
        put("/proc/77/cgroup", texts[i]);
        put("/proc/77/syscall", texts[i]);
        put("/proc/77/wchan", texts[i]);
        put("/proc/77/schedstat", texts[i]);
        (void)look();
        s = look();
        (void)text_of(&s, &s);
    }
    remove_root();
}

/* -------------------------------------------------------------------------------------------- real processes ---- */

/* A child that reads a pipe for ever, or spins. */
static pid_t start(bool spins, int ends[2])
{
    pid_t pid;

    cr_assert_eq(pipe(ends), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        char byte;

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (spins || read(ends[0], &byte, 1) != 1)
            ;
        _exit(0);
    }
    return pid;
}

static void reap(pid_t pid, const int ends[2])
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* Samples the process until its text begins so; returns the last text. */
static const char *wait_for(pid_t pid, const char *expected)
{
    const struct timespec moment = {.tv_nsec = 50000000};
    struct proc_sample before = {.pid = 0}, now = {.pid = 0};
    const char *text = "";

    for (int i = 0; i < 600 && strncmp(text, expected, strlen(expected)) != 0; i++) {
        before = now;
        (void)proc_sample_take(pid, &now);
        text = text_of(before.pid == 0 ? NULL : &before, &now);
        if (strncmp(text, expected, strlen(expected)) != 0)
            (void)nanosleep(&moment, NULL);
    }
    return text;
}

Test(proc_state, sees_a_process_that_reads_a_pipe)
{
    int ends[2];
    const pid_t pid = start(false, ends);
    const char *text = wait_for(pid, "sleeping");
    bool known = strcmp(text, "sleeping in read of a pipe") == 0;

    /* Without the right to trace it, or without the kernel's help, the call is not known. */
    cr_assert(known || access("/proc/self/syscall", R_OK) != 0 || geteuid() != 0, "%s", text);
    reap(pid, ends);
}

Test(proc_state, sees_a_process_that_spins)
{
    int ends[2];
    const pid_t pid = start(true, ends);
    const char *text = wait_for(pid, "running, ");

    cr_assert(strncmp(text, "running, ", 9) == 0 && strstr(text, "% of a core") != NULL, "%s", text);
    reap(pid, ends);
}

Test(proc_state, sees_a_process_that_a_signal_has_stopped)
{
    int ends[2];
    const pid_t pid = start(false, ends);
    const char *text;

    cr_assert_eq(kill(pid, SIGSTOP), 0);
    text = wait_for(pid, "stopped by ");
    cr_assert(strcmp(text, "stopped by SIGSTOP") == 0 || strcmp(text, "stopped by a signal") == 0, "%s", text);
    reap(pid, ends);
}

Test(proc_state, sees_a_process_that_has_exited)
{
    int ends[2];
    const pid_t pid = start(false, ends);

    (void)kill(pid, SIGKILL);
    cr_assert_str_eq(wait_for(pid, "exited"), "exited");
    reap(pid, ends);
    cr_assert_str_eq(wait_for(pid, "exited"), "exited");
}

/* Needs a version 1 freezer that root may use; elsewhere the planted files stand for it. */
Test(proc_state, sees_a_process_that_its_cgroup_has_frozen)
{
    char dir[128], path[160];
    int ends[2];
    pid_t pid;
    FILE *f;

    (void)snprintf(dir, sizeof dir, "/sys/fs/cgroup/freezer/cdi-test-%d", (int)getpid());
    if (mkdir(dir, 0700) != 0)
        cr_skip_test("no freezer that may be used");
    pid = start(false, ends);
    (void)snprintf(path, sizeof path, "%s/tasks", dir);
    f = fopen(path, "we");
    cr_assert_not_null(f);
    (void)fprintf(f, "%d\n", (int)pid);
    (void)fclose(f);
    (void)snprintf(path, sizeof path, "%s/freezer.state", dir);
    f = fopen(path, "we");
    cr_assert_not_null(f);
    (void)fputs("FROZEN\n", f);
    (void)fclose(f);
    cr_assert_str_eq(wait_for(pid, "frozen"), "frozen by its cgroup");
    f = fopen(path, "we");
    cr_assert_not_null(f);
    (void)fputs("THAWED\n", f);
    (void)fclose(f);
    reap(pid, ends);
    for (int i = 0; rmdir(dir) != 0 && i < 500; i++)
        (void)usleep(10000);
}
