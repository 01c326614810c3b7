/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/node/gpu_load.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/thread.h"
#include "launcher/process/nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ENVIRONMENT_MAX (256 * 1024) /* bytes; the GPU of a worker with a larger one is not known */

struct gpu_load {
    const char *library;
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool busy; /* the thread reads */
    bool gone; /* nobody asks any more: the thread frees this */
    bool none; /* there is no library */
    size_t n;
    int64_t read_ms; /* when the loads were read; 0: never */
    struct gpu_rank {
        pid_t wanted; /* for the thread, which alone uses it while it reads */
        pid_t pid;    /* of the load */
        struct nvml_load load;
    } ranks[];
};

/* ------------------------------------------------------------------------------------------------- which GPU ---- */

/* Returns the value of a variable; NULL: it is not set. The environment ends with a NUL. */
static const char *value_of(const char *environment, size_t len, const char *name)
{
    size_t n = strlen(name);

    for (size_t at = 0; at < len; at += strlen(environment + at) + 1)
        if (strncmp(environment + at, name, n) == 0 && environment[at + n] == '=')
            return environment + at + n + 1;
    return NULL;
}

static bool are_alike(const struct cdi_gpu *all, size_t n_all)
{
    for (size_t i = 1; i < n_all; i++)
        if (strcmp(all[i].model, all[0].model) != 0)
            return false;
    return true;
}

int gpu_load_of(const char *environment, size_t len, const struct cdi_gpu *all, size_t n_all)
{
    const char *visible = value_of(environment, len, "CUDA_VISIBLE_DEVICES");
    const char *local_rank = value_of(environment, len, "LOCAL_RANK");
    const char *order = value_of(environment, len, "CUDA_DEVICE_ORDER");
    bool by_uuid = visible != NULL && strncmp(visible + strspn(visible, " "), "GPU-", 4) == 0;
    int shown[CDI_GPUS_MAX];
    size_t n = cdi_gpus_visible(visible, all, n_all, shown, CDI_GPUS_MAX);
    int64_t which = -1;

    if (!by_uuid && n_all > 1 && !are_alike(all, n_all) && (order == NULL || strcmp(order, "PCI_BUS_ID") != 0))
        return -1;
    if (n == 1)
        return shown[0];
    if (local_rank == NULL || !cdi_parse_int(local_rank, 0, CDI_GPUS_MAX - 1, &which) || (size_t)which >= n)
        return -1;
    return shown[which];
}

/* ------------------------------------------------------------------------------------------------ the thread ---- */

/* Returns the GPU of a process. The kernel may hold a reader of its memory, as this file is a part of it. */
static int gpu_of(pid_t pid, char *text, const struct cdi_gpu *all, size_t n_all)
{
    char path[40];
    size_t len = 0;
    ssize_t n = 1;

    (void)snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    {
        CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

        while (fd >= 0 && n > 0 && len < ENVIRONMENT_MAX) {
            n = read(fd, text + len, ENVIRONMENT_MAX - len);
            len += n > 0 ? (size_t)n : 0;
        }
    }
    if (len == 0 || len == ENVIRONMENT_MAX)
        return -1;
    text[len] = '\0';
    return gpu_load_of(text, len, all, n_all);
}

static void read_loads(const struct gpu_load *g, const struct nvml *library, struct nvml_load *loads)
{
    char *text = malloc(ENVIRONMENT_MAX + 1);
    size_t n_all;
    const struct cdi_gpu *all = nvml_gpus(library, &n_all);

    for (size_t i = 0; i < g->n; i++) {
        pid_t pid = g->ranks[i].wanted;
        int gpu = pid > 0 && text != NULL ? gpu_of(pid, text, all, n_all) : -1;

        loads[i] = gpu >= 0 ? nvml_read(library, (size_t)gpu) : (struct nvml_load){.permille = -1};
    }
    free(text);
}

static void free_load(struct gpu_load *g)
{
    (void)pthread_cond_destroy(&g->done);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}

static void *gpu_load_run(void *arg)
{
    struct gpu_load *g = arg;
    const struct nvml *library = nvml_open(g->library);
    struct nvml_load *loads = library == NULL ? NULL : calloc(g->n + 1, sizeof *loads);
    bool gone;

    if (loads != NULL)
        read_loads(g, library, loads);
    (void)pthread_mutex_lock(&g->lock);
    g->none = library == NULL;
    for (size_t i = 0; loads != NULL && i < g->n; i++) {
        g->ranks[i].pid = g->ranks[i].wanted;
        g->ranks[i].load = loads[i];
    }
    if (loads != NULL)
        g->read_ms = cdi_now_ms();
    g->busy = false;
    gone = g->gone;
    (void)pthread_cond_signal(&g->done);
    (void)pthread_mutex_unlock(&g->lock);
    free(loads);
    if (gone)
        free_load(g);
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ the report ---- */

cddp_status gpu_load_create(struct gpu_load **out, size_t n, const char *library)
{
    struct gpu_load *g = calloc(1, sizeof *g + n * sizeof g->ranks[0]);

    if (g == NULL)
        return CDDP_E_NOMEM;
    g->n = n;
    g->library = library;
    (void)pthread_mutex_init(&g->lock, NULL);
    cdi_cond_init_monotonic(&g->done);
    *out = g;
    return CDDP_OK;
}

void gpu_load_destroy(struct gpu_load *g)
{
    bool busy;

    if (g == NULL)
        return;
    (void)pthread_mutex_lock(&g->lock);
    g->gone = true;
    busy = g->busy;
    (void)pthread_mutex_unlock(&g->lock);
    if (!busy)
        free_load(g);
}

/* The lock is held. */
static void start_reading(struct gpu_load *g, const pid_t *pids, size_t n)
{
    pthread_t thread;

    for (size_t i = 0; i < g->n; i++)
        g->ranks[i].wanted = i < n ? pids[i] : 0;
    g->busy = true;
    if (cdi_thread_create(&thread, 0, gpu_load_run, g) == 0)
        (void)pthread_detach(thread);
    else
        g->busy = false;
}

/* The lock is held. */
static void wait_for_reading(struct gpu_load *g)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += GPU_LOAD_WAIT_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (g->busy && pthread_cond_timedwait(&g->done, &g->lock, &until) != ETIMEDOUT)
        ;
}

void gpu_load_look(struct gpu_load *g, const pid_t *pids, struct cdi_rank_report *ranks, size_t n)
{
    bool valid;

    (void)pthread_mutex_lock(&g->lock);
    if (!g->none && !g->busy) {
        start_reading(g, pids, n);
        wait_for_reading(g);
    }
    valid = g->read_ms != 0 && cdi_now_ms() - g->read_ms <= GPU_LOAD_VALID_MS;
    for (size_t i = 0; i < n; i++) {
        const struct gpu_rank *r = i < g->n ? &g->ranks[i] : NULL;
        bool known = valid && r != NULL && r->pid == pids[i];

        ranks[i].gpu_permille = known ? r->load.permille : -1;
        ranks[i].gpu_used_bytes = known ? r->load.used_bytes : 0;
        ranks[i].gpu_total_bytes = known ? r->load.total_bytes : 0;
    }
    (void)pthread_mutex_unlock(&g->lock);
}
