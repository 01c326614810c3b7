/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/facts.h"

#include "common/cleanup.h"
#include "common/env.h"
#include "launcher/process/nvml.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Its text goes into JSON and onto a terminal. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < ' ' || (unsigned char)*text > '~')
            *text = '?';
}

static uint64_t meminfo_bytes(const char *text, const char *name)
{
    const char *line = strstr(text, name);
    unsigned long long kib = 0;

    return line != NULL && sscanf(line + strlen(name), " %llu", &kib) == 1 ? kib * 1024 : 0;
}

static void read_memory(struct preflight_facts *f)
{
    char text[4096];
    FILE *file = fopen("/proc/meminfo", "re");
    size_t n = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);

    if (file != NULL)
        (void)fclose(file);
    text[n] = '\0';
    f->memory = meminfo_bytes(text, "MemTotal:");
    f->memory_free = meminfo_bytes(text, "MemAvailable:");
}

/* name: for people, and cut if it is long. */
static void read_disk(struct preflight_facts *f, const char *path, const char *name, dev_t *known)
{
    struct stat at;
    struct statvfs s;
    struct preflight_disk *d = &f->disk[f->n_disks];

    if (stat(path, &at) != 0 || (f->n_disks > 0 && at.st_dev == *known) || statvfs(path, &s) != 0 || s.f_blocks == 0)
        return;
    *known = at.st_dev;
    (void)snprintf(d->path, sizeof d->path, "%s", name);
    make_printable(d->path);
    d->total = (uint64_t)s.f_blocks * s.f_frsize;
    d->free = (uint64_t)s.f_bavail * s.f_frsize;
    d->free_files = s.f_files == 0 ? UINT64_MAX : s.f_favail; /* btrfs counts none */
    f->n_disks++;
}

static void read_shm(struct preflight_facts *f)
{
    struct statvfs s;

    if (statvfs("/dev/shm", &s) != 0)
        return;
    f->shm = (uint64_t)s.f_blocks * s.f_frsize;
    f->shm_free = (uint64_t)s.f_bavail * s.f_frsize;
}

static void read_gpus(struct preflight_facts *f)
{
    const struct nvml *n = nvml_open(NVML_LIBRARY);
    size_t count = 0;

    if (n == NULL)
        return;
    (void)nvml_gpus(n, &count);
    f->gpus = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        struct nvml_health h = nvml_health(n, i);

        f->gpus_bad += h.uncorrected > 0;
        f->gpus_slow += h.slowed;
    }
}

void preflight_facts_read(struct preflight_facts *f, const char *host, uint32_t workers)
{
    struct rlimit files;
    const char *tmp = cdi_env_str("TMPDIR");
    CDI_AUTOFREE char *cwd = getcwd(NULL, 0);
    cpu_set_t cpus;
    dev_t disk = 0;

    memset(f, 0, sizeof *f);
    f->known = true;
    f->workers = workers;
    (void)snprintf(f->host, sizeof f->host, "%s", host);
    make_printable(f->host);
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        f->cpus = (uint32_t)CPU_COUNT(&cpus);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0) /* more processors than a cpu_set_t has */
        f->cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        f->files = files.rlim_cur;
    read_memory(f);
    read_shm(f);
    read_disk(f, tmp != NULL ? tmp : "/tmp", tmp != NULL ? tmp : "/tmp", &disk);
    read_disk(f, ".", cwd != NULL ? cwd : ".", &disk);
    read_gpus(f);
}

struct preflight_link *preflight_link_to(struct preflight_facts *f, uint32_t node)
{
    for (size_t i = 0; i < f->n_links; i++)
        if (f->link[i].to == node)
            return &f->link[i];
    if (f->n_links == PREFLIGHT_LINKS_MAX)
        return NULL;
    f->link[f->n_links] = (struct preflight_link){.to = node};
    return &f->link[f->n_links++];
}
