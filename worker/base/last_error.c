/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's last error sentence, which every public function of the library sets when it fails, and the last
 * one of any thread; and which public function the calling thread is in.
 */
#include "worker/comm/comm.h"

#include <pthread.h>
#include <string.h>

static _Thread_local struct cdi_error last_error;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cdi_error of_process;

cddp_status cdi_last_error_set(const struct cdi_error *err)
{
    last_error = *err;
    last_error.msg[sizeof last_error.msg - 1] = '\0';
    (void)pthread_mutex_lock(&lock);
    of_process = last_error;
    (void)pthread_mutex_unlock(&lock);
    return err->status;
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

void cdi_error_tell(const struct cdi_error *err, cddp_error_info *info)
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
    cdi_error_tell(&last_error, info);
}

static _Thread_local enum cdi_asked asked;

enum cdi_asked cdi_comm_ask(enum cdi_asked what)
{
    enum cdi_asked before = asked;

    if (before == CDI_ASKED_ITSELF || what == CDI_ASKED_ITSELF)
        asked = what;
    return before;
}

enum cdi_asked cdi_comm_asked(void)
{
    return asked;
}
