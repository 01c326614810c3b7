/* SPDX-License-Identifier: Apache-2.0 */
#include "room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((uint64_t)1 << 30)

static size_t read_text(const char *path, char *text, size_t cap)
{
    FILE *f = fopen(path, "re");
    size_t n = 0;

    if (f != NULL) {
        n = fread(text, 1, cap - 1, f);
        (void)fclose(f);
    }
    text[n] = '\0';
    return n;
}

uint64_t bench_meminfo(const char *text, const char *name)
{
    size_t n = strlen(name);

    for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] == ':')
            return strtoull(line + n + 1, NULL, 10) << 10;
    }
    return UINT64_MAX;
}

/* A number in a file of the cgroup; UINT64_MAX for "max", or if there is none. */
static uint64_t cgroup_number(const char *group, const char *file)
{
    char path[4300], text[64];

    (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", group, file);
    if (read_text(path, text, sizeof text) == 0 || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* Of the group and all above it. */
static uint64_t cgroup_room(void)
{
    char text[4200], *group, *slash;
    uint64_t room = UINT64_MAX;

    if (read_text("/proc/self/cgroup", text, sizeof text) == 0 || (group = strstr(text, "0::")) == NULL)
        return room;
    group += 3;
    group[strcspn(group, "\n")] = '\0';
    while (1) {
        uint64_t most = cgroup_number(group, "memory.max"), now = cgroup_number(group, "memory.current");
        uint64_t left = most == UINT64_MAX || now == UINT64_MAX ? UINT64_MAX : most > now ? most - now : 0;

        room = left < room ? left : room;
        slash = strrchr(group, '/');
        if (slash == NULL)
            return room;
        *slash = '\0';
    }
}

uint64_t bench_host_room(void)
{
    char text[8192];
    uint64_t group = cgroup_room(), host;

    (void)read_text("/proc/meminfo", text, sizeof text);
    host = bench_meminfo(text, "MemAvailable");
    return host < group ? host : group;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t bench_most_bytes(uint64_t host, int ranks, uint64_t device, int checks)
{
    /* A tenth stays free, and at most 4 GiB: as nccl-tests leaves a part to the rest of the machine. */
    uint64_t share = host == UINT64_MAX ? host : (host - least(host / 10, 4 * GIB)) / (uint64_t)(ranks > 0 ? ranks : 1);

    if (device == 0)
        return share / (checks > 0 ? 3 : 2);
    return least(checks > 0 ? share : UINT64_MAX, (device - least(device / 8, 4 * GIB)) / 2);
}
