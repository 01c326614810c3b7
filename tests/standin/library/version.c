/* SPDX-License-Identifier: Apache-2.0 */
#include "version.h"

#include "common/env.h"

#include <nccl.h>

struct si_version si_version_of(int code)
{
    return (struct si_version){
        .code = code,
        /* register/register.cc:246 of v2.27.7 and v2.27.3; not dev_runtime.cc:817 of v2.28.3, dev_runtime.cc:919 of
         * v2.28.9, dev_runtime.cc:1102 of v2.29.7, dev_runtime.cc:1368 of v2.30.7. */
        .window_tells = code < 22800,
        /* group.cc:392 of v2.19.3, group.cc:520 of v2.22.3; then group.cc:540 of v2.23.4. */
        .thread_per_group = code >= 22300,
        /* collectives.cc:26 of v2.20.5; not collectives.cc:26 of v2.21.5, collectives.cc:114 of v2.23.4 (it looks at
         * what ncclEnqueueCheck says, and returns ncclSuccess); then collectives.cc:113 of v2.24.3. */
        .collective_tells = code < 22100 || code >= 22400,
        /* Not collectives.cc:147 of v2.19.3, collectives.cc:217 of v2.23.4; then collectives.cc:209 of v2.24.3. */
        .message_tells = code >= 22400,
        /* register/register.cc:225 of v2.27.7; then dev_runtime.cc:913 of v2.28.9. */
        .window_at_once = code < 22800,
        /* register/register.cc:224 of v2.27.7, dev_runtime.cc:593 of v2.28.9; not dev_runtime.cc:1076 of v2.29.7. */
        .window_without_symmetry = code < 22900,
        /* Not device/symmetric/primitives.cuh:183 of v2.27.7, nccl_device/impl/lsa_barrier__funcs.h:94 of v2.28.9; then
         * lsa_barrier__funcs.h:97 of v2.29.7. */
        .symmetric_aborts = code >= 22907,
        /* scheduler/symmetric_sched.cc:23 of v2.30.3; before, the symmetric kernels know the sum alone:
         * symmetric.cc:218 of v2.27.7, sym_kernels.cc:269 of v2.28.9, sym_kernels.cc:506 of v2.29.7. */
        .mean_after_sum = code >= 23003,
        /* init.cc:1830 of v2.22.3, init.cc:2762 of v2.30.7; before, init.cc:1947 of v2.19.3, init.cc:2105 of v2.21.5.
         */
        .stops_in_finalize = code >= 22200,
        /* proxy.cc:1467 of v2.19.3 (where ncclProxyTryDetach, proxy.cc:1702, gives up after 5 s), proxy.cc:1477 of
         * v2.20.5, proxy.cc:1431 of v2.22.3, proxy.cc:1606 of v2.23.4 (NCCL_CUMEM_HOST_ENABLE, misc/cudawrap.cc:14, is
         * 0 there); not proxy.cc:1618 of v2.24.3, proxy.cc:1844 of v2.30.7. */
        .abort_waits_ms = code < 22000   ? 5000
                          : code < 22400 ? -1
                                         : 0,
        /* enqueue.cc:1491 of v2.27.3, enqueue.cc:1519 of v2.28.9, enqueue.cc:1701 of v2.30.7; not in v2.26.5. The
         * thread's mode is not changed around it, as it is for allocations (include/alloc.h). */
        .queries_event = code >= 22703,
        .has_timeout = code >= 23003, /* nccl.h.in:52 of v2.30.3 */
        .has_float8 = code >= 22400,  /* nccl.h.in:247 of v2.24.3; misc/argcheck.cc:50 rejects unknown types */
    };
}

int si_version_code(void)
{
    struct cdi_error err = {0};
    int64_t v;

    return cdi_env_int_or("CDDP_STANDIN_NCCL_VERSION", 0, INT32_MAX, NCCL_VERSION_CODE, &v, &err) == CDDP_OK ? (int)v
                                                                                                             : 0;
}

struct si_version si_version(void)
{
    return si_version_of(si_version_code());
}
