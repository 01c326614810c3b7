/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/anchor.h"

#define NS_PER_MS 1e6
#define FLOAT_STEPS 16777216.0 /* a float of 24 bits is off by at most this part of itself */

struct cdi_anchor cdi_anchor_between(int64_t before_ns, int64_t after_ns)
{
    int64_t half_ns = (after_ns - before_ns) / 2;

    return (struct cdi_anchor){.ns = before_ns + half_ns, .error_ns = after_ns - before_ns - half_ns};
}

int64_t cdi_anchor_time(const struct cdi_anchor *a, float elapsed_ms)
{
    return a->ns + (int64_t)((double)elapsed_ms * NS_PER_MS);
}

int64_t cdi_anchor_error(const struct cdi_anchor *a, float elapsed_ms)
{
    double ns = (double)elapsed_ms * NS_PER_MS;

    ns = ns < 0 ? -ns : ns;
    return a->error_ns + CDI_ANCHOR_RESOLUTION_NS + 1 + (int64_t)(ns * CDI_ANCHOR_PPM / 1e6 + ns / FLOAT_STEPS);
}
