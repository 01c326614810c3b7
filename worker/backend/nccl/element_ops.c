/* SPDX-License-Identifier: Apache-2.0 */
/* Element functions as kernels on the communication stream, after the enqueued operations. */
#include "worker/backend/nccl/element_ops.h"

#include "worker/backend/nccl/graph_capture.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/wait.h"
#include "worker/base/dtype.h"

cddp_status cdi_gpu_element_begin(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (cdi_gpu_captures(b))
        return cdi_capture_element_begin(b, err);
    st = cdi_gpu_health(b, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter_briefly(&b->device, err);
    (void)pthread_mutex_lock(&b->lock);
    if (st == CDDP_OK)
        st = cdi_issue_flush(b, err);
    if (st != CDDP_OK) {
        (void)pthread_mutex_unlock(&b->lock);
        cdi_device_leave_briefly(&b->device);
    }
    return cdi_gpu_call_status(b, st, NULL, err);
}

void cdi_gpu_element_end(struct cdi_backend *b)
{
    (void)pthread_mutex_unlock(&b->lock);
    cdi_device_leave_briefly(&b->device);
}

/* What a launch of pack or unpack does in addition to copying. */
struct how {
    enum cdi_kernel kernel;
    cddp_dtype dtype; /* of the elements that are multiplied by factor; none: no multiplication */
    double factor;
    const uint8_t *flags; /* NULL: every slice is copied */
    const uint32_t *of;   /* of each slice: its index in flags */
};

static cddp_status element_move(struct cdi_backend *b, struct how how, void *flat, const struct cdi_slice *slice,
                                size_t n, struct cdi_error *err)
{
    uint8_t *at = flat;
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    while (n > 0 && st == CDDP_OK) {
        struct cdi_launch launch;
        size_t bytes, taken = cdi_launch_pack(&launch, how.kernel, b->device.n_sm, at, slice, n, &bytes);

        if (how.dtype != CDDP_DTYPE_NONE)
            st = cdi_launch_pack_scaled(&launch, how.dtype, how.factor, err);
        if (how.flags != NULL)
            cdi_launch_pack_unless(&launch, slice, taken, how.flags, how.of);
        if (st == CDDP_OK)
            st = cdi_device_launch(&b->device, &launch, err);
        slice += taken;
        if (how.of != NULL)
            how.of += taken;
        n -= taken;
        at += bytes;
    }
    cdi_gpu_element_end(b);
    return st;
}

cddp_status cdi_gpu_pack(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n, struct cdi_error *err)
{
    return element_move(b, (struct how){.kernel = CDI_KERNEL_PACK}, to, from, n, err);
}

cddp_status cdi_gpu_pack_scaled(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                cddp_dtype dtype, double factor, struct cdi_error *err)
{
    return cdi_dtype_is_float(dtype)
               ? element_move(b, (struct how){.kernel = CDI_KERNEL_PACK, .dtype = dtype, .factor = factor}, to, from, n,
                              err)
               : cdi_fail(err, CDDP_E_INVALID, "cannot scale %s", cdi_dtype_name(dtype));
}

cddp_status cdi_gpu_pack_unless(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                const uint8_t *flags, const uint32_t *of, struct cdi_error *err)
{
    return element_move(b, (struct how){.kernel = CDI_KERNEL_PACK, .flags = flags, .of = of}, to, from, n, err);
}

cddp_status cdi_gpu_unpack(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                           struct cdi_error *err)
{
    return element_move(b, (struct how){.kernel = CDI_KERNEL_UNPACK}, (void *)(uintptr_t)from, to, n, err);
}

static cddp_status element_launch(struct cdi_backend *b, struct cdi_launch *l, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_device_launch(&b->device, l, err);
    cdi_gpu_element_end(b);
    return st;
}

cddp_status cdi_gpu_cast(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from, cddp_dtype from_type,
                         size_t count, float factor, struct cdi_error *err)
{
    struct cdi_launch l;
    cddp_status st = cdi_launch_cast(&l, b->device.n_sm, to, to_type, from, from_type, count, factor, err);

    return st == CDDP_OK ? element_launch(b, &l, err) : st;
}

cddp_status cdi_gpu_scale(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                          struct cdi_error *err)
{
    struct cdi_launch l;
    cddp_status st = cdi_launch_scale(&l, b->device.n_sm, x, count, dtype, factor, err);

    return st == CDDP_OK ? element_launch(b, &l, err) : st;
}
