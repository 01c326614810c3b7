/* SPDX-License-Identifier: Apache-2.0 */
/* The last error of each thread and of the process; the texts of statuses, and the version. */
#include "worker/base/last_error.h"

#include "common/status.h"

#include <pthread.h>
#include <string.h>

static _Thread_local struct cdi_error last_error;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cdi_error of_process;
static void (*teller)(const struct cdi_error *err);

cddp_status cdi_last_error_set(const struct cdi_error *err)
{
    last_error = *err;
    last_error.msg[sizeof last_error.msg - 1] = '\0';
    (void)pthread_mutex_lock(&lock);
    of_process = last_error;
    if (teller != NULL)
        teller(&of_process);
    (void)pthread_mutex_unlock(&lock);
    return err->status;
}

void cdi_last_error_tell(void (*tell)(const struct cdi_error *err))
{
    (void)pthread_mutex_lock(&lock);
    teller = tell;
    (void)pthread_mutex_unlock(&lock);
}

cddp_status cdi_last_error_return(cddp_status st, struct cdi_error *err)
{
    if (st == CDDP_OK)
        return st;
    err->status = st;
    return cdi_last_error_set(err);
}

struct cdi_error *cdi_last_error_mine(void)
{
    return &last_error;
}

void cdi_last_error_lock(void)
{
    (void)pthread_mutex_lock(&lock);
}

void cdi_last_error_unlock(void)
{
    (void)pthread_mutex_unlock(&lock);
}

bool cdi_last_error_of_process(struct cdi_error *err)
{
    (void)pthread_mutex_lock(&lock);
    *err = of_process;
    (void)pthread_mutex_unlock(&lock);
    return err->status != CDDP_OK;
}

const char *cddp_last_error(void)
{
    return last_error.msg;
}

void cdi_error_info_fill(cddp_error_info *info, const struct cdi_error *err)
{
    cddp_error_info full = {
        .status = err->status, .rank = err->blamed - 1, .os_error = err->os_error, .device_error = err->device_error};

    if (info == NULL)
        return;
    full.size = info->size;
    memcpy(full.message, err->msg, sizeof full.message);
    memcpy(info, &full, info->size < sizeof full ? info->size : sizeof full);
}

void cddp_last_error_info(cddp_error_info *info)
{
    cdi_error_info_fill(info, &last_error);
}

const char *cddp_strerror(cddp_status status)
{
    return cdi_status_text(status);
}

const char *cddp_status_name(cddp_status status)
{
    return cdi_status_name(status);
}

const char *cddp_version(void)
{
    return CDDP_VERSION;
}
