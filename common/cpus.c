/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cpus.h"

#include "common/env.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CPUS 65536

/* Returns the number of processors in this thread's affinity mask. Sets the bits of those below n_words * 64. */
static int affinity(uint64_t *words, int n_words)
{
    /* The kernel rejects a mask that is smaller than its own: try larger ones. */
    for (int cpus = 1024; cpus <= MAX_CPUS; cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        size_t size = CPU_ALLOC_SIZE((size_t)cpus);
        int n = 0;

        if (set == NULL)
            return 1;
        if (sched_getaffinity(0, size, set) == 0)
            n = CPU_COUNT_S(size, set);
        for (int i = 0; n > 0 && i < n_words * 64 && i < cpus; i++)
            if (CPU_ISSET_S((size_t)i, size, set))
                words[i / 64] |= (uint64_t)1 << i % 64;
        CPU_FREE(set);
        if (n > 0)
            return n;
    }
    return 1;
}

void cdi_cpus_affinity(uint64_t *words, int n_words)
{
    memset(words, 0, (size_t)n_words * sizeof *words);
    (void)affinity(words, n_words);
}

/* Reads the first line of a small file without its newline. Returns false if it cannot be read. */
static bool read_line(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "re");
    bool ok;

    if (f == NULL)
        return false;
    ok = fgets(buf, (int)cap, f) != NULL;
    (void)fclose(f);
    if (ok)
        buf[strcspn(buf, "\n")] = '\0';
    return ok;
}

static int whole_cpus(int64_t quota, int64_t period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    if (quota / period >= MAX_CPUS)
        return 0;
    return quota < period ? 1 : (int)(quota / period);
}

/* Reads cpu.max of version 2: "max 100000" or "150000 100000". */
static int64_t quota_v2(const char *dir)
{
    char path[4300], line[64], *space;
    int64_t quota, period;

    (void)snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (!read_line(path, line, sizeof line) || (space = strchr(line, ' ')) == NULL)
        return 0;
    *space = '\0';
    if (!cdi_parse_int(line, 1, INT64_MAX, &quota) || !cdi_parse_int(space + 1, 1, INT64_MAX, &period))
        return 0;
    return whole_cpus(quota, period);
}

static bool read_number(const char *dir, const char *file, int64_t *n)
{
    char path[4300], line[64];

    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    return read_line(path, line, sizeof line) && cdi_parse_int(line, 0, INT64_MAX, n);
}

static int64_t quota_v1(const char *dir)
{
    int64_t quota, period;

    if (!read_number(dir, "cpu.cfs_quota_us", &quota) || !read_number(dir, "cpu.cfs_period_us", &period))
        return 0;
    return whole_cpus(quota, period);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/*
 * Walks from the group up to the mount, since a parent's quota also limits its children. Inside a container the path
 * may be of the host's hierarchy, which does not exist there: then only the mount's own files count, which are the
 * container's.
 */
static int64_t walk_up(const char *mount, const char *group, int64_t (*quota)(const char *dir))
{
    char dir[4200];
    size_t root = strlen(mount);
    int64_t n = 0;

    if (snprintf(dir, sizeof dir, "%s%s", mount, group) >= (int)sizeof dir)
        return quota(mount);
    for (;;) {
        char *slash;

        n = smaller(n, quota(dir));
        slash = strrchr(dir, '/');
        if (strlen(dir) <= root || slash == NULL || (size_t)(slash - dir) < root)
            return n;
        *slash = '\0';
    }
}

/* Is the group above the one that the mount shows, as in a container that has joined another's namespace? */
static bool leads_out(const char *group)
{
    for (const char *p = strstr(group, "/.."); p != NULL; p = strstr(p + 1, "/.."))
        if (p[3] == '/' || p[3] == '\0')
            return true;
    return false;
}

/* Applies v2 to a line of /proc/self/cgroup such as "0::/group", and v1, unless NULL, to "4:cpu,cpuacct:/group". */
static int64_t quota_of_line(const char *root, char *line, int64_t (*v2)(const char *dir),
                             int64_t (*v1)(const char *dir))
{
    char *controllers = strchr(line, ':'), *group, mount[256];
    bool cpu = false;

    if (controllers == NULL || (group = strchr(controllers + 1, ':')) == NULL)
        return 0;
    controllers++;
    *group++ = '\0';
    if (leads_out(group))
        return 0;
    if (*controllers == '\0') {
        (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        return walk_up(mount, group, v2);
    }
    for (char *save, *c = strtok_r(controllers, ",", &save); c != NULL; c = strtok_r(NULL, ",", &save))
        cpu = cpu || strcmp(c, "cpu") == 0;
    if (!cpu || v1 == NULL)
        return 0;
    (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu",
                   root); /* a link if it is mounted together with cpuacct */
    return walk_up(mount, group, v1);
}

uint64_t cdi_cpus_autogroup(const char *root)
{
    char path[256], line[64];
    uint64_t group;

    (void)snprintf(path, sizeof path, "%s/proc/sys/kernel/sched_autogroup_enabled", root);
    if (!read_line(path, line, sizeof line) || strcmp(line, "1") != 0)
        return 0;
    (void)snprintf(path, sizeof path, "%s/proc/self/autogroup", root);
    return read_line(path, line, sizeof line) && sscanf(line, "/autogroup-%" SCNu64, &group) == 1 ? group : 0;
}

static int64_t smallest_quota(const char *root, int64_t (*v2)(const char *dir), int64_t (*v1)(const char *dir))
{
    char path[256], line[4096];
    FILE *f;
    int64_t n = 0;

    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        n = smaller(n, quota_of_line(root, line, v2, v1));
    }
    (void)fclose(f);
    return n;
}

int cdi_cpus_quota(const char *root)
{
    return (int)smallest_quota(root, quota_v2, quota_v1);
}

/* Returns the sum of the numbers in the file's lines that begin with one of two names, or -1 without such a line. */
static int64_t sum_of_lines(const char *path, const char *one, const char *other)
{
    FILE *f = fopen(path, "re");
    int64_t sum = -1, n;
    char name[64];

    while (f != NULL && fscanf(f, "%63s %" SCNd64 "%*[^\n]", name, &n) == 2)
        if (strcmp(name, one) == 0 || strcmp(name, other) == 0)
            sum = (sum < 0 ? 0 : sum) + n;
    if (f != NULL)
        (void)fclose(f);
    return sum;
}

/* 0 would be no limit. */
static int64_t at_least_1(int64_t left)
{
    return left > 0 ? left : 1;
}

/*
 * Returns the bytes that a group (version 2) may still take, at least 1; 0: no limit. The kernel can drop the group's
 * page cache, but not shared memory.
 */
static int64_t memory_left(const char *dir)
{
    char path[4300];
    int64_t most, used, cache;

    if (!read_number(dir, "memory.max", &most) || !read_number(dir, "memory.current", &used))
        return 0;
    (void)snprintf(path, sizeof path, "%s/memory.stat", dir);
    cache = sum_of_lines(path, "active_file", "inactive_file");
    return at_least_1(most - used + (cache > 0 ? cache : 0));
}

/* The same for swap. */
static int64_t swap_left(const char *dir)
{
    int64_t most, used;

    if (!read_number(dir, "memory.swap.max", &most) || !read_number(dir, "memory.swap.current", &used))
        return 0;
    return at_least_1(most - used);
}

int64_t cdi_memory_available(const char *root, bool with_swap)
{
    int64_t group = smallest_quota(root, memory_left, NULL), swap, host;
    char path[256];

    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    host = sum_of_lines(path, "MemAvailable:", "MemAvailable:");
    if (host < 0)
        return INT64_MAX;
    swap = with_swap ? sum_of_lines(path, "SwapFree:", "SwapFree:") : 0;
    swap = swap > 0 ? smaller(smallest_quota(root, swap_left, NULL), swap * 1024) : 0;
    return smaller(group, host * 1024) + swap;
}

int cdi_usable_cpus(void)
{
    return (int)smaller(affinity(NULL, 0), cdi_cpus_quota(""));
}
