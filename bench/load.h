/* SPDX-License-Identifier: Apache-2.0 */
/* What store.c and join.c share: an exit with an error message, time, a server's time on a processor, all descriptors.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static inline void die(const char *what)
{
    (void)fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

static inline double now_s(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Nanoseconds that all threads of a process have run. */
static inline double cpu_ns(const char *pid)
{
    char path[300];
    double sum = 0;
    struct dirent *e;
    DIR *dir;

    (void)snprintf(path, sizeof path, "/proc/%s/task", pid);
    dir = opendir(path);
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        char file[600];
        double ns;
        FILE *f;

        (void)snprintf(file, sizeof file, "%s/%s/schedstat", path, e->d_name);
        f = e->d_name[0] == '.' ? NULL : fopen(file, "r");
        if (f != NULL && fscanf(f, "%lf", &ns) == 1)
            sum += ns;
        if (f != NULL)
            (void)fclose(f);
    }
    if (dir == NULL)
        die(path);
    (void)closedir(dir);
    return sum;
}

static inline void take_all_descriptors(void)
{
    struct rlimit files = {0};

    (void)getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

#endif
