/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the arguments of cddp_ddp_create, before anything is made of them. Every error message names the member. */
#include "worker/reducer/state/check.h"

#include "worker/base/dtype.h"
#include "worker/base/sized.h"
#include "worker/reducer/layout/bucket.h"

#include <cddp/experimental/fsdp.h>
#include <stdlib.h>

#define KNOWN_FLAGS                                                                                        \
    (CDDP_DDP_NO_BROADCAST | CDDP_DDP_SUM | CDDP_DDP_FIND_UNUSED | CDDP_DDP_STATIC_GRAPH | CDDP_DDP_JOIN | \
     CDDP_DDP_JOIN_ACTIVE | CDDP_DDP_SPLIT | CDDP_DDP_JOIN_STRICT | CDDP_DDP_SKIP_UNUSED | CDDP_DDP_TUNE | \
     CDDP_DDP_WEIGHTED)

#define DIMS_MAX 64 /* more than a tensor has; an uninitialized length must not be used */

static cddp_status read_lists(struct cdi_ddp_input *in, const cddp_param *params, size_t n, struct cdi_error *err)
{
    const cddp_param *buffers = in->opt.buffers;

    in->opt.buffers = NULL;
    if (buffers == NULL && in->opt.n_buffers > 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_options.n_buffers is %zu, but buffers is NULL",
                        in->opt.n_buffers);
    in->params = cdi_sized_get_list(sizeof *params, params, n, "cddp_param", err);
    if (in->params == NULL)
        return cdi_error_wrap(err, "parameters");
    in->buffers = cdi_sized_get_list(sizeof *params, buffers, in->opt.n_buffers, "cddp_param", err);
    if (in->buffers == NULL)
        return cdi_error_wrap(err, "buffers");
    in->opt.buffers = in->buffers;
    for (size_t i = 0; i < n; i++)
        if (in->params[i].grad_dtype == CDDP_DTYPE_NONE)
            in->params[i].grad_dtype = in->params[i].dtype;
    return CDDP_OK;
}

cddp_status cdi_ddp_read_input(struct cdi_ddp_input *in, const cddp_param *params, size_t n,
                               const cddp_ddp_options *opt, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    *in = (struct cdi_ddp_input){.opt = {.size = sizeof in->opt}};
    if (params == NULL || n == 0)
        st = cdi_fail(err, CDDP_E_INVALID, "a reducer needs at least one parameter");
    if (st == CDDP_OK && opt != NULL)
        st = cdi_sized_get(&in->opt, sizeof in->opt, opt, "cddp_ddp_options", err);
    if (st == CDDP_OK && (in->opt.flags & CDDP_DDP_TUNE) != 0 && in->opt.bucket_bytes != 0)
        st = cdi_fail(err, CDDP_E_INVALID,
                      "cddp_ddp_options.bucket_bytes is %zu, but CDDP_DDP_TUNE finds it by trial: leave it 0",
                      in->opt.bucket_bytes);
    if (in->opt.bucket_bytes == 0)
        in->opt.bucket_bytes = CDI_BUCKET_BYTES;
    if (in->opt.first_bucket_bytes == 0)
        in->opt.first_bucket_bytes = CDI_BUCKET_FIRST_BYTES;
    return st == CDDP_OK ? read_lists(in, params, n, err) : st;
}

void cdi_ddp_release_input(struct cdi_ddp_input *in)
{
    free(in->params);
    free(in->buffers);
}

static cddp_status check_shape(const cddp_param *p, const char *what, size_t i, struct cdi_error *err)
{
    size_t product = 1;

    if (p->shape == NULL)
        return p->n_dims == 0 ? CDDP_OK
                              : cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has n_dims %zu but no shape", what, i,
                                         p->name, p->n_dims);
    if (p->n_dims > DIMS_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has n_dims %zu: at most %d", what, i, p->name, p->n_dims,
                        DIMS_MAX);
    for (size_t d = 0; d < p->n_dims; d++)
        if (__builtin_mul_overflow(product, p->shape[d], &product))
            return cdi_fail(err, CDDP_E_INVALID, "the shape of %s %zu '%.200s' is too large", what, i, p->name);
    if (product != p->count)
        return cdi_fail(err, CDDP_E_INVALID, "the shape of %s %zu '%.200s' has %zu elements, but its count is %zu",
                        what, i, p->name, product, p->count);
    return CDDP_OK;
}

static cddp_status check_param(const cddp_param *p, const char *what, size_t i, bool has_data, struct cdi_error *err)
{
    if (p->name == NULL || *p->name == '\0')
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu has no name: messages and checks need one", what, i);
    if (!cdi_dtype_valid(p->dtype))
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has no valid type (%d)", what, i, p->name, (int)p->dtype);
    if (p->data == NULL && has_data)
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has no data", what, i, p->name);
    if (p->count == 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has no elements", what, i, p->name);
    if (p->count > PTRDIFF_MAX / cddp_dtype_size(p->dtype))
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has %zu elements, more than memory can hold", what, i,
                        p->name, p->count);
    if (p->zero != 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has %#x in `zero`: it must be 0", what, i, p->name,
                        p->zero);
    if (p->flags == CDDP_PARAM_FROZEN && has_data)
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s %zu '%.200s' has CDDP_PARAM_FROZEN, which is for cddp_fsdp_create: leave out a parameter "
                        "that is never trained, or call cddp_ddp_set_frozen",
                        what, i, p->name);
    if ((p->flags & ~(uint32_t)CDDP_PARAM_FROZEN) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s %zu '%.200s' has unknown flags (%#x)", what, i, p->name, p->flags);
    return check_shape(p, what, i, err);
}

static cddp_status check_options(const cddp_ddp_options *opt, struct cdi_error *err)
{
    if ((opt->flags & ~KNOWN_FLAGS) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_options.flags has unknown bits (%#x)", opt->flags);
    if ((opt->flags & CDDP_DDP_STATIC_GRAPH) != 0 && (opt->flags & (CDDP_DDP_FIND_UNUSED | CDDP_DDP_JOIN)) != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_ddp_options.flags: CDDP_DDP_STATIC_GRAPH cannot be combined with CDDP_DDP_FIND_UNUSED or "
                        "CDDP_DDP_JOIN, whose steps differ");
    if ((opt->flags & CDDP_DDP_SKIP_UNUSED) != 0 && (opt->flags & (CDDP_DDP_FIND_UNUSED | CDDP_DDP_STATIC_GRAPH)) == 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_ddp_options.flags: CDDP_DDP_SKIP_UNUSED needs CDDP_DDP_FIND_UNUSED or "
                        "CDDP_DDP_STATIC_GRAPH to know what is unused");
    if ((opt->flags & CDDP_DDP_JOIN_STRICT) != 0 && (opt->flags & CDDP_DDP_JOIN) == 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_options.flags: CDDP_DDP_JOIN_STRICT needs CDDP_DDP_JOIN");
    if ((opt->flags & CDDP_DDP_JOIN_ACTIVE) != 0 && (opt->flags & CDDP_DDP_JOIN) == 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_options.flags: CDDP_DDP_JOIN_ACTIVE needs CDDP_DDP_JOIN");
    if ((opt->flags & CDDP_DDP_JOIN_ACTIVE) != 0 && (opt->flags & CDDP_DDP_SUM) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_options.flags: a sum (CDDP_DDP_SUM) has no divisor to adjust");
    if (opt->comm_dtype != CDDP_DTYPE_NONE && opt->comm_dtype != CDDP_FLOAT16 && opt->comm_dtype != CDDP_BFLOAT16 &&
        opt->comm_dtype != CDDP_FLOAT32)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_ddp_options.comm_dtype is %s (%d): use CDDP_FLOAT16, CDDP_BFLOAT16 or CDDP_FLOAT32, or 0 for none",
            cdi_dtype_name(opt->comm_dtype), (int)opt->comm_dtype);
    return CDDP_OK;
}

/* Checks the gradient's type: the parameter's own, or float32 for 16-bit parameters. */
static cddp_status check_gradient(const cddp_param *p, size_t i, struct cdi_error *err)
{
    bool is_short = p->dtype == CDDP_FLOAT16 || p->dtype == CDDP_BFLOAT16;

    if (!cdi_dtype_is_float(p->dtype))
        return cdi_fail(err, CDDP_E_INVALID,
                        "parameter %zu '%.200s' is %s, but a reducer supports float16, bfloat16, float32 and float64",
                        i, p->name, cdi_dtype_name(p->dtype));
    if (p->grad_dtype == p->dtype || (p->grad_dtype == CDDP_FLOAT32 && is_short))
        return CDDP_OK;
    return cdi_fail(
        err, CDDP_E_INVALID,
        "parameter %zu '%.200s' is %s and has grad_dtype %s (%d): use 0 for its own type, or CDDP_FLOAT32 for "
        "parameters of 16 bits",
        i, p->name, cdi_dtype_name(p->dtype), cdi_dtype_name(p->grad_dtype), (int)p->grad_dtype);
}

cddp_status cdi_ddp_check_input(const cddp_param *params, size_t n, const cddp_ddp_options *opt, bool divided,
                                struct cdi_error *err)
{
    cddp_status status = check_options(opt, err);

    for (size_t i = 0; i < n && status == CDDP_OK; i++) {
        status = check_param(&params[i], "parameter", i, !divided, err);
        if (status == CDDP_OK)
            status = check_gradient(&params[i], i, err);
    }
    for (size_t i = 0; i < opt->n_buffers && status == CDDP_OK; i++) {
        status = check_param(&opt->buffers[i], "buffer", i, true, err);
        if (status == CDDP_OK && (opt->buffers[i].grad != NULL || opt->buffers[i].grad_dtype != CDDP_DTYPE_NONE))
            status = cdi_fail(err, CDDP_E_INVALID, "buffer %zu '%.200s' has a gradient, which only parameters have", i,
                              opt->buffers[i].name);
    }
    return status;
}

#define STREAM_PER_THREAD ((uintptr_t)2) /* cudaStreamPerThread */

cddp_status cdi_ddp_check_stream(const cddp_ddp *d, const void *stream, struct cdi_error *err)
{
    if (!d->ops->on_device || (uintptr_t)stream != STREAM_PER_THREAD)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "cudaStreamPerThread is a different stream in each thread, and any thread may start a bucket: pass "
                    "NULL, which waits for it as for all blocking streams, or a stream that you created");
}

/* Rejects host memory, or another GPU's, if GPU memory is needed: it would fault in the middle of a step. */
static cddp_status check_one_memory(const cddp_ddp *d, const cddp_param *p, const void *at, const char *its,
                                    const char *what, size_t i, struct cdi_error *err)
{
    if (d->ops->check_memory != NULL && d->ops->check_memory(d->b, at, err) != CDDP_OK)
        return cdi_error_wrap(err, "%s %zu '%.200s', its %s", what, i, p->name, its);
    if (d->ops->is_device(d->b, at))
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "%s %zu '%.200s' has its %s in host memory, but backend %s needs memory of its GPU (cddp_alloc, "
                    "cudaMalloc); CDDP_BACKEND=cpu trains on the host",
                    what, i, p->name, its, d->ops->name);
}

static cddp_status check_both(const cddp_ddp *d, const cddp_param *p, const char *what, size_t i, struct cdi_error *err)
{
    cddp_status st = check_one_memory(d, p, p->data, "data", what, i, err);

    return st == CDDP_OK && p->grad != NULL ? check_one_memory(d, p, p->grad, "gradient", what, i, err) : st;
}

cddp_status cdi_ddp_check_memory(const cddp_ddp *d, const cddp_param *params, const cddp_param *buffers,
                                 struct cdi_error *err)
{
    cddp_status status = CDDP_OK;

    for (size_t i = 0; d->ops->on_device && i < d->n_params && status == CDDP_OK; i++)
        status = check_both(d, &params[i], "parameter", i, err);
    for (size_t i = 0; d->ops->on_device && i < d->n_buffers && status == CDDP_OK; i++)
        status = check_both(d, &buffers[i], "buffer", i, err);
    return status;
}
