/* SPDX-License-Identifier: Apache-2.0 */
#include "common/gpus.h"

#include "common/env.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool cdi_gpu_pci(char out[16], const char *address)
{
    unsigned domain, bus, device, function;
    int end = 0;

    if (sscanf(address, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4 || address[end] != '\0' ||
        domain > 0xffffu)
        return false;
    (void)snprintf(out, 16, "%04x:%02x:%02x.%x", domain & 0xffffu, bus & 0xffu, device & 0xffu, function & 0xfu);
    return true;
}

int cdi_gpu_numa_node(const char *root, const char *pci)
{
    char path[PATH_MAX];
    int node = -1;
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/numa_node", root, pci);
    f = fopen(path, "re");
    if (f == NULL)
        return -1;
    if (fscanf(f, "%d", &node) != 1 || node < 0)
        node = -1;
    (void)fclose(f);
    return node;
}

static bool has_node(const char *root, int64_t minor)
{
    char path[PATH_MAX];
    struct stat sb;

    (void)snprintf(path, sizeof path, "%s/dev/nvidia%d", root, (int)minor);
    return stat(path, &sb) == 0;
}

/* Reads the value of a line "Key:   value" if it has this key. */
static bool read_value(char *line, const char *key, char *out, size_t cap)
{
    size_t len = strlen(key);

    if (strncmp(line, key, len) != 0 || line[len] != ':')
        return false;
    line += len + 1;
    line += strspn(line, " \t");
    line[strcspn(line, "\n")] = '\0';
    (void)snprintf(out, cap, "%s", line);
    return true;
}

/* Reads the driver's information on the card at this address. Returns its minor number; -1: unknown. */
static int64_t read_information(const char *root, struct cdi_gpu *gpu, const char *folder)
{
    char path[PATH_MAX], line[256], text[16];
    int64_t minor = -1;
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root, folder);
    f = fopen(path, "re");
    if (f == NULL)
        return -1;
    while (fgets(line, sizeof line, f) != NULL)
        if (!read_value(line, "Model", gpu->model, sizeof gpu->model) &&
            !read_value(line, "GPU UUID", gpu->uuid, sizeof gpu->uuid) &&
            read_value(line, "Device Minor", text, sizeof text) && !cdi_parse_int(text, 0, 1 << 16, &minor))
            minor = -1;
    (void)fclose(f);
    /* A driver that has not initialized the card yet writes question marks. */
    if (strchr(gpu->uuid, '?') != NULL)
        gpu->uuid[0] = '\0';
    return minor;
}

static bool is_node(const char *name)
{
    int64_t n;

    return strncmp(name, "nvidia", 6) == 0 && cdi_parse_int(name + 6, 0, 1 << 16, &n);
}

static size_t count_nodes(const char *root)
{
    char path[PATH_MAX];
    struct dirent *entry;
    size_t n = 0;
    DIR *d;

    (void)snprintf(path, sizeof path, "%s/dev", root);
    d = opendir(path);
    while (d != NULL && (entry = readdir(d)) != NULL)
        n += is_node(entry->d_name);
    if (d != NULL)
        (void)closedir(d);
    return n;
}

static int by_address(const void *a, const void *b)
{
    const struct cdi_gpu *x = a, *y = b;

    return strcmp(x->pci, y->pci);
}

size_t cdi_gpus_read(const char *root, struct cdi_gpu *out, size_t cap)
{
    char path[PATH_MAX];
    struct dirent *entry;
    size_t n = 0, nodes = count_nodes(root), unsure = 0;
    DIR *d;

    (void)snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    d = opendir(path);
    while (d != NULL && n < cap && (entry = readdir(d)) != NULL) {
        struct cdi_gpu gpu = {.numa_node = -1};
        int64_t minor;

        if (!cdi_gpu_pci(gpu.pci, entry->d_name))
            continue;
        minor = read_information(root, &gpu, entry->d_name);
        /* Device files are made on first use: without any, the driver's list counts. */
        if (nodes > 0 && minor >= 0 && !has_node(root, minor))
            continue;
        unsure += minor < 0;
        gpu.numa_node = cdi_gpu_numa_node(root, gpu.pci);
        out[n++] = gpu;
    }
    if (d != NULL)
        (void)closedir(d);
    /* More cards than device files, and no way to match them: the cards count as unknown. */
    if (unsure > 0 && nodes > 0 && n > nodes)
        n = 0;
    if (n > 0)
        qsort(out, n, sizeof out[0], by_address);
    else
        while (n < nodes && n < cap)
            out[n++] = (struct cdi_gpu){.numa_node = -1};
    return n;
}

/* Returns the only card whose UUID begins with these bytes; -1: none or several; -2: no card's UUID is known. */
static int by_uuid(const struct cdi_gpu *all, size_t n_all, const char *begin, size_t len)
{
    int found = -2;

    for (size_t i = 0; i < n_all; i++) {
        if (all[i].uuid[0] == '\0')
            continue;
        if (found == -2)
            found = -1;
        if (strncasecmp(all[i].uuid, begin, len) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (int)i;
    }
    return found;
}

/* Reads a number as CUDA does, by strtoul, so "1gpu" is 1. -1: not a number, or too large. */
static int by_index(const char *entry, size_t len, size_t n_all)
{
    size_t index = 0, i = 0;

    for (; i < len && isdigit((unsigned char)entry[i]) && index <= CDI_GPUS_MAX; i++)
        index = index * 10 + (size_t)(entry[i] - '0');
    return i > 0 && index < n_all ? (int)index : -1;
}

enum kind { INDEX, UUID, MIG };

static enum kind kind_of(const char *entry)
{
    return strncmp(entry, "GPU-", 4) == 0 ? UUID : strncmp(entry, "MIG-", 4) == 0 ? MIG : INDEX;
}

size_t cdi_gpus_visible(const char *variable, const struct cdi_gpu *all, size_t n_all, int *shown, size_t cap)
{
    const char *p = variable;
    size_t n = 0;

    for (; p == NULL && n < n_all && n < cap; n++)
        shown[n] = (int)n;
    while (p != NULL && n < cap && n < n_all) {
        size_t blanks = strspn(p, " "), len = strcspn(p += blanks, ",");
        enum kind kind = kind_of(p);
        int index;

        if (kind != kind_of(variable + strspn(variable, " ")))
            break;
        index = kind == UUID ? by_uuid(all, n_all, p, len) : kind == INDEX ? by_index(p, len, n_all) : -2;
        if (index == -1)
            break;
        for (size_t i = 0; i < n && index >= 0; i++)
            if (shown[i] == index)
                return 0;
        shown[n++] = index < 0 ? -1 : index;
        if (kind == MIG || p[len] == '\0')
            break;
        p += len + 1;
    }
    return n;
}
