/* SPDX-License-Identifier: Apache-2.0 */
/* Norms, clipping, the search for numbers that are not finite, and hashes, as kernels on the communication stream. */
#include "worker/backend/nccl/element_ops.h"

/* Returns the words of the sum after a result; k = 1: those that blocks add to. */
static uint64_t *words_of(double *out, size_t k)
{
    return (uint64_t *)(void *)(out + 1) + k * CDI_EXACT_WORDS;
}

cddp_status cdi_gpu_tally(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, double *out,
                          struct cdi_error *err)
{
    struct cdi_launch l;
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    while (n > 0 && st == CDDP_OK) {
        size_t taken = cdi_launch_tally(&l, b->device.n_sm, x, n, largest, words_of(out, 1));

        st = cdi_device_launch(&b->device, &l, err);
        x += taken;
        n -= taken;
    }
    cdi_launch_fold(&l, words_of(out, 1), words_of(out, 0), largest, out);
    if (st == CDDP_OK)
        st = cdi_device_launch(&b->device, &l, err);
    cdi_gpu_element_end(b);
    return st;
}

cddp_status cdi_gpu_fold(struct cdi_backend *b, double *out, struct cdi_error *err)
{
    struct cdi_launch l;
    cddp_status st = cdi_gpu_element_begin(b, err);

    if (st != CDDP_OK)
        return st;
    cdi_launch_fold(&l, words_of(out, 0), words_of(out, 0), false, out);
    st = cdi_device_launch(&b->device, &l, err);
    cdi_gpu_element_end(b);
    return st;
}

cddp_status cdi_gpu_clip(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                         const double *sum, struct cdi_error *err)
{
    return CDI_GPU_LAUNCHES(b, n, cdi_launch_clip(&launch, b->device.n_sm, x + at, n - at, how, sum), err);
}

cddp_status cdi_gpu_find(struct cdi_backend *b, const struct cdi_span *x, const uint64_t *word_of, size_t n,
                         uint64_t limit, uint64_t *word, struct cdi_error *err)
{
    return CDI_GPU_LAUNCHES(b, n, cdi_launch_find(&launch, b->device.n_sm, x + at, word_of + at, n - at, limit, word),
                            err);
}

cddp_status cdi_gpu_report(struct cdi_backend *b, uint64_t *words, struct cdi_nan_report *report, struct cdi_error *err)
{
    cddp_status st = cdi_gpu_element_begin(b, err);
    struct cdi_launch l;

    if (st != CDDP_OK)
        return st;
    cdi_launch_report(&l, words, report);
    st = cdi_device_launch(&b->device, &l, err);
    cdi_gpu_element_end(b);
    return st;
}

cddp_status cdi_gpu_hash(struct cdi_backend *b, const struct cdi_slice *x, size_t n, uint64_t *sum,
                         struct cdi_error *err)
{
    cddp_status st = cdi_gpu_element_begin(b, err);
    struct cdi_launch l;

    if (st != CDDP_OK)
        return st;
    if (n > 0)
        st = cdi_cuda_check(cdi_cuda.set_bytes(cdi_device_ptr(sum), 0, n * sizeof *sum, cdi_device_stream(&b->device)),
                            "hashing", err);
    for (size_t at = 0; at < n && st == CDDP_OK;) {
        at += cdi_launch_hash(&l, b->device.n_sm, x + at, n - at, at, sum);
        st = cdi_device_launch(&b->device, &l, err);
    }
    cdi_gpu_element_end(b);
    return st;
}
