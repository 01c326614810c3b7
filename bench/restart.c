/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two programs of restart.py.
 *
 * "restart worker FILE" appends "LIFE RANK PID NANOSECONDS" to FILE, then waits to be killed.
 *
 * "restart bare N SHIM WORKER FILE" starts N workers through cddprun's shim and does nothing else: no pipe, no page, no
 * environment for each. It prints nanoseconds at the start, and ends them all when it can read a byte.
 *
 * Nanoseconds are CLOCK_MONOTONIC, which all processes of a machine share.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N_MAX 1024

static long long now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL ? "0" : value;
}

static int worker(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
    char line[128];
    int n = snprintf(line, sizeof line, "%s %s %d %lld\n", variable("TORCHELASTIC_RESTART_COUNT"), variable("RANK"),
                     (int)getpid(), now_ns());

    if (fd < 0 || write(fd, line, (size_t)n) != n)
        return 1;
    for (;;)
        (void)pause();
}

static pid_t start(char *shim, char **args)
{
    pid_t pid = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */

    if (pid == 0) {
        (void)execv(shim, args);
        _exit(125);
    }
    return pid;
}

static int bare(int n, char *shim, char *program, char *file)
{
    static char word[] = "worker", mask[] = "0", ignored[] = "0", nofile[] = "-", cpus[] = "-";
    char self[24], byte;
    char *args[] = {shim, self, mask, ignored, nofile, cpus, program, program, word, file, NULL};
    pid_t pids[N_MAX];

    (void)snprintf(self, sizeof self, "%d", (int)getpid());
    printf("%lld\n", now_ns());
    (void)fflush(stdout);
    for (int i = 0; i < n; i++)
        pids[i] = start(shim, args);
    (void)!read(STDIN_FILENO, &byte, 1);
    for (int i = 0; i < n; i++)
        if (pids[i] > 0)
            (void)kill(pids[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0)
        return worker(argv[2]);
    if (argc == 6 && strcmp(argv[1], "bare") == 0) {
        int n = atoi(argv[2]);

        return n > 0 && n <= N_MAX ? bare(n, argv[3], argv[4], argv[5]) : 2;
    }
    return 2;
}
