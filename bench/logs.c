/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that prints, for logs.py: "logs LINES FILE". Rank 0 prints LINES lines of 100 bytes as fast as it can, 64
 * KiB a write, and writes the seconds it took into FILE.0. Rank 1 prints the time (CLOCK_MONOTONIC, in ns) in a line
 * every millisecond until FILE.0 is there, and writes into FILE.1 the longest that one of its writes took, in seconds.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE 100
#define AT_ONCE (65536 / LINE)

static int64_t now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int put(const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t put = write(STDOUT_FILENO, bytes, n);

        if (put < 0)
            return -1;
        bytes += put;
        n -= (size_t)put;
    }
    return 0;
}

static int tell(const char *path, int64_t ns)
{
    char part[4096];
    FILE *f;

    if ((size_t)snprintf(part, sizeof part, "%s.part", path) >= sizeof part || (f = fopen(part, "w")) == NULL)
        return 1;
    fprintf(f, "%.9f\n", (double)ns / 1e9);
    return fclose(f) == 0 && rename(part, path) == 0 ? 0 : 1;
}

static int print_much(long lines, const char *path)
{
    static char text[AT_ONCE * LINE];
    int64_t began = now_ns();

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i % LINE == LINE - 1 ? '\n' : '!' + i % LINE % 90);
    for (; lines > 0; lines -= AT_ONCE)
        if (put(text, (size_t)(lines < AT_ONCE ? lines : AT_ONCE) * LINE) != 0)
            return 1;
    return tell(path, now_ns() - began);
}

static int print_times(const char *other, const char *path)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int64_t worst = 0;

    while (access(other, F_OK) != 0) {
        char line[32];
        int64_t began = now_ns();

        if (put(line, (size_t)snprintf(line, sizeof line, "%lld\n", (long long)began)) != 0)
            return 1;
        worst = now_ns() - began > worst ? now_ns() - began : worst;
        (void)nanosleep(&pause, NULL);
    }
    return tell(path, worst);
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK");
    char paths[2][4096];

    if (argc != 3 || rank == NULL)
        return 2;
    for (int i = 0; i < 2; i++)
        if ((size_t)snprintf(paths[i], sizeof paths[i], "%s.%d", argv[2], i) >= sizeof paths[i])
            return 2;
    return strcmp(rank, "0") == 0 ? print_much(atol(argv[1]), paths[0]) : print_times(paths[0], paths[1]);
}
