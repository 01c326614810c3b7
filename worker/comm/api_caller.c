/* SPDX-License-Identifier: Apache-2.0 */
/* The public function that the calling thread is in. */
#include "worker/comm/comm.h"

static _Thread_local enum cdi_api_call asked;
static _Thread_local struct cdi_origin origin;

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

struct cdi_origin cdi_api_set_origin(struct cdi_origin of)
{
    struct cdi_origin before = origin;

    origin = of;
    return before;
}

void cdi_api_mark(struct cdi_coll *op)
{
    op->asked = asked;
    op->of = origin;
}
