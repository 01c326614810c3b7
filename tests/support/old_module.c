/* SPDX-License-Identifier: Apache-2.0 */
/* A module of a build that never was. */
#include "worker/backend/loader.h"

static cddp_status refuse(const struct cdi_host *host, const struct cdi_backend_ops **ops, struct cdi_error *err)
{
    (void)host;
    (void)ops;
    (void)err;
    return CDDP_E_SYSTEM;
}

extern const struct cdi_module cddp_module;
__attribute__((visibility("default")))
const struct cdi_module cddp_module = {.abi = 99, .version = "99.0.0", .open = refuse};
