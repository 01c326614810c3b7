/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuStreamWriteValue32, version 11070: "The V2 APIs are available by default on all platforms" (CUDA Driver API 11.8,
 * "Stream Memory Operations"), so that no attribute of the device is needed. The write follows a memory fence of the
 * whole system, so a reader of the value sees all earlier work on the stream. The address is a device pointer, which
 * for memory of cuMemHostAlloc is the host's address (same manual, "Unified Addressing"). For CUDA the value orders
 * nothing, and the stand-in does not treat it as completion of work.
 */
#include "core.h"

struct value {
    uint32_t *at;
    uint32_t value;
};

static void run_write(struct si_op *op)
{
    const struct value *v = op->data;

    si_touch_word(v->at, v->value);
}

SI_EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    CUresult rc = si_enter("cuStreamWriteValue32");
    struct standin_ranges r = {.n = 0};
    struct CUstream_st *s;
    struct si_op *op;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || addr % sizeof value != 0)
        return CUDA_ERROR_INVALID_VALUE;
    op = si_op_create("cuStreamWriteValue32", run_write, sizeof(struct value));
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(struct value *)op->data = (struct value){.at = standin_host((const void *)addr), .value = value};
    si_range_add(&r, (const void *)addr, sizeof value, true);
    si_lock();
    if (si_find_locked((const void *)addr, sizeof value) == NULL)
        rc = CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        rc = si_stream_here_locked(stream, "cuStreamWriteValue32", &s);
    if (rc == CUDA_SUCCESS)
        si_push_locked(s, op, &r);
    si_unlock();
    if (rc != CUDA_SUCCESS)
        si_op_destroy(op);
    return rc;
}
