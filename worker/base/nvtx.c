/* SPDX-License-Identifier: Apache-2.0 */
/* The four functions are those of nvToolsExt.h (CUDA toolkit), whose ABI NVTX versions 1 to 3 share. */
#include "worker/base/nvtx.h"

#include "common/env.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct {
    pthread_once_t once;
    int (*push)(const char *name);
    int (*pop)(void);
    uint64_t (*start)(const char *name);
    void (*end)(uint64_t id);
} nvtx = {.once = PTHREAD_ONCE_INIT};

/* Sets *fn, a pointer to a function, which C does not convert from void *. */
static int find(void *lib, const char *name, void *fn)
{
    void *symbol = dlsym(lib, name);

    memcpy(fn, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* The library stays open: a profiler may use it until the process ends. */
static void open_library(void)
{
    const char *name = cdi_env_str(CDI_NVTX_LIBRARY_ENV), *on = cdi_env_str(CDI_NVTX_ENV);
    void *lib;

    if (on == NULL || strcmp(on, "1") != 0)
        return;
    lib = dlopen(name != NULL ? name : "libnvToolsExt.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL)
        return;
    if (!find(lib, "nvtxRangePushA", &nvtx.push) || !find(lib, "nvtxRangePop", &nvtx.pop) ||
        !find(lib, "nvtxRangeStartA", &nvtx.start) || !find(lib, "nvtxRangeEnd", &nvtx.end))
        nvtx.push = NULL;
}

/* Are there ranges? */
static int is_on(void)
{
    return pthread_once(&nvtx.once, open_library) == 0 && nvtx.push != NULL;
}

static const char *name_of(const char *what, uint64_t number, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "%s %" PRIu64, what, number);
    return buf;
}

void cdi_nvtx_push(const char *what, uint64_t number)
{
    char name[64];

    if (is_on())
        (void)nvtx.push(name_of(what, number, name, sizeof name));
}

void cdi_nvtx_pop(void)
{
    if (is_on())
        (void)nvtx.pop();
}

uint64_t cdi_nvtx_begin(const char *what, uint64_t number)
{
    char name[64];

    return is_on() ? nvtx.start(name_of(what, number, name, sizeof name)) : 0;
}

void cdi_nvtx_end(uint64_t id)
{
    if (id != 0 && is_on())
        nvtx.end(id);
}
