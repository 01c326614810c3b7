/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/reduction_support.h"

#include "worker/base/dtype.h"

static bool is_float8(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT8_E4M3 || dtype == CDDP_FLOAT8_E5M2;
}

static cddp_status check_float8(const struct cdi_reduction_facts *facts, const char *name, cddp_redop op,
                                struct cdi_error *err)
{
    if (op == CDDP_AVG)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "NCCL would multiply by 1/n in %s, which is not precise enough: use CDDP_SUM, and multiply "
                        "in a wider type",
                        name);
    if (facts->nccl_code < CDI_NCCL_FLOAT8)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "NCCL %d.%d does not reduce %s: install NCCL 2.24 or newer, or convert it to bfloat16",
                        facts->nccl_code / 10000, facts->nccl_code / 100 % 100, name);
    if (facts->old_gpu)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "NCCL reduces %s only if every GPU has compute capability 9.0 or higher, and one GPU of this "
                        "job is older: convert it to bfloat16",
                        name);
    return CDDP_OK;
}

cddp_status cdi_reduction_support_check(const struct cdi_reduction_facts *facts, cddp_dtype dtype, cddp_redop op,
                                        struct cdi_error *err)
{
    const char *name = cdi_dtype_name(dtype);

    if (cdi_redop_is_bitwise(op))
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "NCCL has no %s (of %s): for flags use uint8, one per byte, with CDDP_MAX for \"any\" and "
                        "CDDP_MIN for \"all\"; or gather all parts and combine them",
                        cdi_redop_name(op), name);
    if (dtype == CDDP_INT16 || dtype == CDDP_UINT16)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "NCCL does not reduce %s: convert it to int32", name);
    return is_float8(dtype) ? check_float8(facts, name, op, err) : CDDP_OK;
}

struct cdi_wire cdi_wire_of(cddp_dtype dtype, size_t count)
{
    if (is_float8(dtype) || dtype == CDDP_INT16 || dtype == CDDP_UINT16)
        return (struct cdi_wire){CDDP_UINT8, count * cddp_dtype_size(dtype)};
    return (struct cdi_wire){dtype, count};
}
