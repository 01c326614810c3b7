/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's last error sentence, which every public function of the library sets when it fails. */
#include "worker/comm.h"

#include <string.h>

static _Thread_local char last_error[CDI_ERROR_TEXT];

cddp_status cdi_last_error_set(const struct cdi_error *err)
{
    memcpy(last_error, err->msg, sizeof last_error);
    last_error[sizeof last_error - 1] = '\0';
    return err->status;
}

const char *cddp_last_error(void)
{
    return last_error;
}
