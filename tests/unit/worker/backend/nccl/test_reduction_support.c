/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/reduction_support.h"

#include "hygiene.h"
#include "types.h"

#include <string.h>

CDI_SUITE(reduction_support);

static const struct cdi_reduction_facts newest = {.nccl_code = 23007};

static void refused(const struct cdi_reduction_facts *facts, cddp_dtype dtype, cddp_redop op, const char *advice)
{
    struct cdi_error err;

    cr_assert_eq(cdi_reduction_support_check(facts, dtype, op, &err), CDDP_E_UNSUPPORTED, "type %d, operation %d",
                 (int)dtype, (int)op);
    cr_assert(strstr(err.msg, advice) != NULL, "%s", err.msg);
}

Test(reduction_support, supports_common_reductions_in_every_version)
{
    const struct cdi_reduction_facts worst = {.nccl_code = 21903, .old_gpu = true};

    for (cddp_dtype t = CDDP_INT8; t <= CDDP_BFLOAT16; t++)
        for (cddp_redop op = CDDP_SUM; op <= CDDP_AVG; op++)
            cr_assert_eq(cdi_reduction_support_check(&worst, t, op, NULL), CDDP_OK);
}

Test(reduction_support, rejects_unknown_reductions_with_advice)
{
    for (size_t t = 0; t < N_ALL_TYPES; t++)
        for (cddp_redop op = CDDP_BAND; type_is_integer(all_types[t]) && op <= CDDP_BXOR; op++)
            refused(&newest, all_types[t], op, "CDDP_MAX");
    refused(&newest, CDDP_INT16, CDDP_SUM, "int32");
    refused(&newest, CDDP_UINT16, CDDP_MIN, "int32");
}

Test(reduction_support, floats_of_8_bits_need_a_new_nccl_and_new_gpus)
{
    const struct cdi_reduction_facts old_nccl = {.nccl_code = 22304}, first = {.nccl_code = 22403},
                                     old_gpu = {.nccl_code = 23007, .old_gpu = true};

    for (cddp_dtype t = CDDP_FLOAT8_E4M3; t <= CDDP_FLOAT8_E5M2; t++) {
        for (cddp_redop op = CDDP_SUM; op <= CDDP_MIN; op++) {
            cr_assert_eq(cdi_reduction_support_check(&first, t, op, NULL), CDDP_OK);
            cr_assert_eq(cdi_reduction_support_check(&newest, t, op, NULL), CDDP_OK);
            refused(&old_nccl, t, op, "NCCL 2.23 does not reduce float8_e");
            refused(&old_gpu, t, op, "compute capability 9.0");
        }
        refused(&newest, t, CDDP_AVG, "CDDP_SUM");
    }
}

Test(reduction_support, moves_every_type_as_a_common_one)
{
    for (size_t t = 0; t < N_ALL_TYPES; t++) {
        struct cdi_wire w = cdi_wire_of(all_types[t], 5);

        cr_assert(w.dtype >= CDDP_INT8 && w.dtype <= CDDP_BFLOAT16);
        cr_assert_eq(w.count * cddp_dtype_size(w.dtype), 5 * cddp_dtype_size(all_types[t]));
    }
}
