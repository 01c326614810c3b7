/* SPDX-License-Identifier: Apache-2.0 */
/* The public function that the calling thread is in. */
#include "worker/comm/comm.h"

static _Thread_local enum cdi_api_call asked;

enum cdi_api_call cdi_api_enter(enum cdi_api_call what)
{
    enum cdi_api_call before = asked;

    if (before == CDI_API_ITSELF || what == CDI_API_ITSELF)
        asked = what;
    return before;
}

enum cdi_api_call cdi_api_caller(void)
{
    return asked;
}
