/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's last error sentence, which every public function of the library sets when it fails, and the last
 * one of any thread; and which public function the calling thread is in.
 */
#include "worker/comm.h"

#include <pthread.h>
#include <string.h>

static _Thread_local char last_error[CDI_ERROR_TEXT];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cdi_error of_process;

cddp_status cdi_last_error_set(const struct cdi_error *err)
{
    memcpy(last_error, err->msg, sizeof last_error);
    last_error[sizeof last_error - 1] = '\0';
    (void)pthread_mutex_lock(&lock);
    of_process.status = err->status;
    memcpy(of_process.msg, last_error, sizeof of_process.msg);
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
    return last_error;
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
