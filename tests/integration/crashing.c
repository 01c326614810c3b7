/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker whose last rank dies of a signal, for the integration tests: crashing SIGNAL [HOW...]
 *   SIGNAL   segv, bus, fpe, ill, abrt
 *   overflow SIGSEGV, since the stack is full
 *   null     a call of address 0
 * HOW:
 *   thread   in a second thread
 *   own      with a handler of the program's own, which prints a line and dies with the default action
 *   later    the same, installed after cddp_init
 *   chain    installed after cddp_init, and it calls the handler that was there
 *   kill     the signal comes from kill(2), not from a fault
 *   two      two threads crash at once
 *   all      every rank crashes
 *   child    a forked child crashes; the worker goes on and exits with status 7
 *   before   before cddp_init
 *   after    after cddp_finalize
 *   twice    after a second cddp_init and its cddp_finalize
 *   failed   after a cddp_init that has failed
 *   exit     in a function of atexit()
 *   file     when $TMPDIR/go exists
 *   traced   when a debugger has attached to it
 *   hidden   after prctl(PR_SET_DUMPABLE, 0), so that only root may trace it
 *   unload   after a library with libcddp.a in it was unloaded: the second argument is its path
 */
#include <cddp/cddp.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *mode;
static bool by_kill;
static struct sigaction before;
static volatile int zero;

static const struct {
    const char *name;
    int number;
} names[] = {{"segv", SIGSEGV}, {"bus", SIGBUS},       {"fpe", SIGFPE},  {"ill", SIGILL},
             {"abrt", SIGABRT}, {"overflow", SIGSEGV}, {"null", SIGSEGV}};

static int number_of(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].number;
    return 0;
}

/* A file of one byte, mapped for two pages: the second one has no memory. */
static volatile char *without_memory(void)
{
    FILE *f = tmpfile();
    char *p = MAP_FAILED;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);

    if (f != NULL && fputc(0, f) == 0 && fflush(f) == 0)
        p = mmap(NULL, 2 * page, PROT_READ, MAP_SHARED, fileno(f), 0);
    return p == MAP_FAILED ? NULL : p + page;
}

__attribute__((noinline)) int planted_recursion(int n);
__attribute__((noinline)) int planted_recursion(int n)
{
    volatile char room[512];

    room[n % 512] = (char)n;
    return n < 0 ? 0 : planted_recursion(n + 1) + room[n % 512];
}

__attribute__((noinline)) void planted_crash(void);
__attribute__((noinline)) void planted_crash(void)
{
    int *volatile nowhere = (int *)8;
    void (*volatile no_function)(void) = NULL;

    if (by_kill)
        (void)kill(getpid(), number_of(mode));
    else if (strcmp(mode, "segv") == 0)
        *nowhere = 1;
    else if (strcmp(mode, "bus") == 0)
        zero = *without_memory();
#if defined __x86_64__
    else if (strcmp(mode, "fpe") == 0)
        zero = number_of(mode) / zero;
    else if (strcmp(mode, "ill") == 0)
        __asm__ volatile("ud2");
#else
    else if (strcmp(mode, "fpe") == 0)
        (void)raise(SIGFPE);
    else if (strcmp(mode, "ill") == 0)
        __asm__ volatile(".inst 0");
#endif
    else if (strcmp(mode, "abrt") == 0)
        abort();
    else if (strcmp(mode, "overflow") == 0)
        zero = planted_recursion(1);
    else if (strcmp(mode, "null") == 0)
        no_function();
    zero = 0; /* no tail call: its frame stays */
}

__attribute__((noinline)) void *planted_thread(void *arg);
__attribute__((noinline)) void *planted_thread(void *arg)
{
    planted_crash();
    zero = 0;
    return arg;
}

static void die_by_default(int number)
{
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    static const char text[] = "the program's own handler\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);

    (void)n;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        die_by_default(number);
}

static void handle(int number, bool chain)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO}, was;

    (void)sigaction(number, &action, &was);
    if (chain)
        before = was;
}

static int crash_in_child(void)
{
    const pid_t pid = fork();
    int status;

    if (pid == 0) {
        planted_crash();
        _exit(0);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != number_of(mode))
        return 8;
    return 7;
}

/* Joins the job with the libcddp.a of a library, and unloads both. */
static int crash_unloaded(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*join)(void) = NULL;
    struct sigaction now;

    if (library == NULL)
        return fprintf(stderr, "crashing: %s\n", dlerror()), 3;
    *(void **)&join = dlsym(library, "crashing_join_and_leave");
    if (join == NULL || join() != 0 || sigaction(number_of(mode), NULL, &now) != 0 || now.sa_handler == SIG_DFL)
        return 8;
    if (dlclose(library) != 0 || dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL)
        return 7;
    planted_crash();
    return 0;
}

static bool has(int argc, char **argv, const char *how)
{
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], how) == 0)
            return true;
    return false;
}

/* Prints a line, and waits until TracerPid is not 0. */
static void wait_for_tracer(void)
{
    char line[256];
    int tracer = 0;

    printf("waiting\n");
    (void)fflush(stdout);
    while (tracer == 0) {
        FILE *f = fopen("/proc/self/status", "re");

        while (f != NULL && tracer == 0 && fgets(line, sizeof line, f) != NULL)
            (void)sscanf(line, "TracerPid: %d", &tracer);
        if (f != NULL)
            (void)fclose(f);
        (void)usleep(10000);
    }
}

static void wait_for_file(void)
{
    char path[4096];

    printf("waiting\n");
    (void)fflush(stdout);
    (void)snprintf(path, sizeof path, "%s/go", getenv("TMPDIR"));
    while (access(path, F_OK) != 0)
        (void)usleep(2000);
}

static void crash(int argc, char **argv)
{
    pthread_t thread, second;

    if (has(argc, argv, "file"))
        wait_for_file();
    if (has(argc, argv, "traced"))
        wait_for_tracer();
    if (has(argc, argv, "hidden"))
        (void)prctl(PR_SET_DUMPABLE, 0);

    if (!has(argc, argv, "thread") && !has(argc, argv, "two"))
        planted_crash();
    if (has(argc, argv, "two") && pthread_create(&second, NULL, planted_thread, NULL) == 0)
        (void)pthread_detach(second);
    if (pthread_create(&thread, NULL, planted_thread, NULL) != 0)
        return;
    if (has(argc, argv, "leaves")) /* the process ends with status 0, unless the crash holds this thread */
        (void)usleep(50000);
    else
        (void)pthread_join(thread, NULL);
}

/* Only where the others have called it already. */
static void crash_before_init(void)
{
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");

    if (rank == NULL || size == NULL || atoi(rank) != atoi(size) - 1)
        return;
    (void)usleep(atoi(size) > 1 ? 300000 : 0);
    planted_crash();
}

int main(int argc, char **argv)
{
    cddp_comm *comm;
    cddp_status st;
    int number;
    bool is_last;

    mode = argc > 1 ? argv[1] : "";
    number = number_of(mode);
    by_kill = has(argc, argv, "kill");
    if (number == 0)
        return 2;
    if (has(argc, argv, "own"))
        handle(number, false);
    if (has(argc, argv, "unload"))
        return crash_unloaded(argv[3]);
    if (has(argc, argv, "before"))
        crash_before_init();
    if (has(argc, argv, "failed")) {
        const cddp_init_options short_wait = {.size = sizeof short_wait, .join_timeout_ms = 200};

        if (setenv("MASTER_PORT", "1", 1) == 0 && cddp_init(&comm, &short_wait) != CDDP_OK)
            crash(argc, argv);
        return 3;
    }
    st = cddp_init(&comm, NULL);
    if (st != CDDP_OK) {
        fprintf(stderr, "crashing: %s\n", cddp_last_error());
        return 3;
    }
    if (has(argc, argv, "later") || has(argc, argv, "chain"))
        handle(number, has(argc, argv, "chain"));
    if (has(argc, argv, "child"))
        return crash_in_child();
    is_last = cddp_rank(comm) == cddp_world_size(comm) - 1 || has(argc, argv, "all");
    if (has(argc, argv, "after") || has(argc, argv, "twice"))
        (void)cddp_finalize(comm);
    if (has(argc, argv, "twice") && (cddp_init(&comm, NULL) != CDDP_OK || cddp_finalize(comm) != CDDP_OK))
        return 3;
    if (has(argc, argv, "exit"))
        return cddp_finalize(comm) != CDDP_OK || atexit(planted_crash) != 0;
    if (is_last)
        crash(argc, argv);
    else
        (void)cddp_barrier(comm);
    return 0;
}
