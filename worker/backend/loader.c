/* SPDX-License-Identifier: Apache-2.0 */
/* The only place of libcddp that opens shared libraries. They are never closed: other threads may run in them. */
#include "worker/backend/loader.h"

#include "common/env.h"
#include "common/log.h"
#include "worker/base/host_id.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_DIR_ENV "CDDP_MODULE_DIR"

_Static_assert(CDI_MODULE_HOST_ID == CDI_HOST_ID, "both sizes are equal");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void host_debug(const char *id, const char *text)
{
    cdi_log(CDI_LOG_DEBUG, id, "%s", text);
}

static void *host_alloc(size_t n, size_t size)
{
    return calloc(n > 0 ? n : 1, size > 0 ? size : 1);
}

static const struct cdi_host host = {
    .size = sizeof host,
    .debug = host_debug,
    .env = cdi_env_str,
    .alloc = host_alloc,
    .release = free,
    .host_id = cdi_host_id,
    .flight_enqueue = cdi_flight_enqueue,
    .flight_start = cdi_flight_start,
    .flight_done = cdi_flight_done,
    .flight_hide = cdi_flight_hide,
    .flight_is_timed = cdi_flight_is_timed,
    .flight_times = cdi_flight_times,
    .flight_replays = cdi_flight_replays,
    .flight_check = cdi_flight_check,
    .flight_confirm = cdi_flight_confirm,
};

/* Writes the folder of this libcddp, or of the program that it is linked into; "" if it is unknown. */
static void own_folder(char *buf, size_t cap)
{
    Dl_info info;
    char *slash;
    ssize_t n;

    buf[0] = '\0';
    if (dladdr(&host, &info) != 0 && info.dli_fname != NULL && strchr(info.dli_fname, '/') != NULL) {
        (void)snprintf(buf, cap, "%s", info.dli_fname);
    } else {
        n = readlink("/proc/self/exe", buf, cap - 1);
        buf[n > 0 ? n : 0] = '\0';
    }
    slash = strrchr(buf, '/');
    if (slash != NULL)
        *slash = '\0';
    else
        buf[0] = '\0';
}

static bool exists(const char *folder, const char *sub, const char *name, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s%s/cddp_%s.so", folder, sub, name);

    return *folder != '\0' && n > 0 && n < PATH_MAX && access(path, F_OK) == 0;
}

/* Writes the path of the module. Returns false if there is none; *err names the folders. */
static bool module_find(const char *name, char path[PATH_MAX], struct cdi_error *err)
{
    const char *said = cdi_env_str(MODULE_DIR_ENV);
    char own[PATH_MAX];

    if (said != NULL) {
        if (exists(said, "", name, path))
            return true;
        (void)cdi_fail(err, CDDP_E_NOT_FOUND, "there is no cddp_%s.so in %s='%.400s'", name, MODULE_DIR_ENV, said);
        return false;
    }
    own_folder(own, sizeof own);
    if (exists(own, "/cddp", name, path) || exists(CDI_LIBDIR, "/cddp", name, path))
        return true;
    if (strcmp(own, CDI_LIBDIR) == 0)
        (void)cdi_fail(err, CDDP_E_NOT_FOUND,
                       "this libcddp was built or installed without its module cddp_%s.so, which is not in %.300s/cddp "
                       "(%s names another folder)",
                       name, own, MODULE_DIR_ENV);
    else
        (void)cdi_fail(err, CDDP_E_NOT_FOUND,
                       "this libcddp was built or installed without its module cddp_%s.so, which is neither in "
                       "%.300s/cddp nor in %s/cddp (%s names another folder)",
                       name, own, CDI_LIBDIR, MODULE_DIR_ENV);
    return false;
}

/* Returns NULL on failure, and sets *err. */
static const struct cdi_module *module_load(const char *path, struct cdi_error *err)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct cdi_module *m = lib != NULL ? dlsym(lib, CDI_MODULE_SYMBOL) : NULL;
    const char *why = m == NULL ? dlerror() : NULL;

    if (m == NULL) {
        (void)cdi_fail(err, CDDP_E_SYSTEM, "cannot load the module %.300s: %.400s", path,
                       why != NULL ? why : "it has no " CDI_MODULE_SYMBOL);
        return NULL;
    }
    if (m->abi == CDI_MODULE_ABI && strcmp(m->version, CDDP_VERSION) == 0)
        return m;
    (void)cdi_fail(err, CDDP_E_VERSION,
                   "the module %.300s is of libcddp %.32s (ABI %u), this is libcddp %s (ABI %d): install both from one "
                   "build",
                   path, m->abi == CDI_MODULE_ABI ? m->version : "of another kind", (unsigned)m->abi, CDDP_VERSION,
                   CDI_MODULE_ABI);
    return NULL;
}

cddp_status cdi_module_open(const char *name, const struct cdi_backend_ops **ops, bool *is_there, struct cdi_error *err)
{
    struct cdi_error why = {.status = CDDP_OK};
    const struct cdi_module *m;
    char path[PATH_MAX];

    *is_there = module_find(name, path, &why);
    if (*is_there) {
        (void)pthread_mutex_lock(&lock);
        m = module_load(path, &why);
        if (m != NULL)
            why.status = m->open(&host, ops, &why);
        (void)pthread_mutex_unlock(&lock);
    }
    if (why.status != CDDP_OK && err != NULL)
        *err = why;
    return why.status;
}
