/* SPDX-License-Identifier: Apache-2.0 */
/* The public function that the calling thread is in. */
#include "worker/comm/comm.h"

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
