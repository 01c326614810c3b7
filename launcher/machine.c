/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/machine.h"

#include "common/cpus.h"
#include "common/env.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_gpu_node(const char *name)
{
    int64_t n;

    return strncmp(name, "nvidia", 6) == 0 && cdi_parse_int(name + 6, 0, 1 << 16, &n);
}

static uint32_t count_entries(const char *root, const char *dir, bool (*counts)(const char *name))
{
    char path[PATH_MAX];
    struct dirent *entry;
    uint32_t n = 0;
    DIR *d;

    if ((size_t)snprintf(path, sizeof path, "%s%s", root, dir) >= sizeof path || (d = opendir(path)) == NULL)
        return 0;
    while ((entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.' && (counts == NULL || counts(entry->d_name)))
            n++;
    (void)closedir(d);
    return n;
}

/*
 * A container sees all of the machine's GPUs under /proc but has device nodes for its own only; the driver's list is
 * believed where there are no nodes yet (they are made on first use).
 */
static uint32_t count_gpus(const char *root)
{
    uint32_t nodes = count_entries(root, "/dev", is_gpu_node);

    return nodes > 0 ? nodes : count_entries(root, "/proc/driver/nvidia/gpus", NULL);
}

uint32_t machine_visible_gpus(uint32_t n_gpus, const char *cuda_visible_devices)
{
    const char *p = cuda_visible_devices;
    uint32_t n = 0;

    if (p == NULL)
        return n_gpus;
    while (n < n_gpus) {
        size_t len = strcspn(p, ",");
        char word[64];
        int64_t index;

        (void)snprintf(word, sizeof word, "%.*s", len < sizeof word ? (int)len : 0, p);
        /* As CUDA reads it: the first entry that is no device hides itself and everything behind it. */
        if (strncmp(word, "GPU-", 4) != 0 && strncmp(word, "MIG-", 4) != 0 &&
            !cdi_parse_int(word, 0, (int64_t)n_gpus - 1, &index))
            break;
        n++;
        if (p[len] == '\0')
            break;
        p += len + 1;
    }
    return n;
}

void machine_read(struct machine *m, const char *root, const char *cuda_visible_devices)
{
    *m = (struct machine){.n_cores = (uint32_t)cdi_usable_cpus()};
    m->n_gpus = machine_visible_gpus(count_gpus(root), cuda_visible_devices);
    if (gethostname(m->host, sizeof m->host) != 0 || m->host[0] == '\0')
        (void)snprintf(m->host, sizeof m->host, "localhost");
    m->host[sizeof m->host - 1] = '\0';
}
