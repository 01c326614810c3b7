/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/state/failure.h"

#include "worker/backend/describe.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/ring.h"

cddp_status cdi_gpu_fail_in(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err)
{
    char text[CDI_OP_TEXT];

    cdi_coll_text(op, text, sizeof text);
    (void)cdi_error_wrap(err, "%s", text);
    return cdi_gpu_fail(b, err);
}

cddp_status cdi_gpu_check_device(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err)
{
    struct cdi_op_info g;
    struct cdi_error why;
    cddp_status st;
    CUresult r;

    st = cdi_device_enter(&b->device, &why);
    r = st == CDDP_OK ? cdi_cuda.stream_query(b->device.stream) : CUDA_ERROR_INVALID_CONTEXT;
    cdi_device_leave(&b->device);
    if (r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY)
        return CDDP_OK;
    cdi_ring_current(b, &g);
    if (op != NULL)
        cdi_coll_text(op, g.op, sizeof g.op);
    if (st == CDDP_OK)
        (void)cdi_cuda_check(r, *g.op != '\0' ? g.op : "the GPU has failed", &why);
    else if (*g.op != '\0')
        (void)cdi_error_wrap(&why, "%s", g.op);
    (void)cdi_gpu_fail(b, &why);
    return cdi_gpu_health_now(b, err);
}

cddp_status cdi_gpu_call_status(struct cdi_backend *b, cddp_status st, const struct cdi_coll *op, struct cdi_error *err)
{
    cddp_status well = st == CDDP_E_SYSTEM ? cdi_gpu_check_device(b, op, err) : CDDP_OK;

    if (st != CDDP_OK && atomic_load(&b->failed)) /* the error message may be incomplete */
        return cdi_gpu_health(b, err);
    return well != CDDP_OK ? well : st;
}

void cdi_gpu_timed_out(struct cdi_backend *b, const struct cdi_op_info *what)
{
    struct cdi_rank_list peers = {0};

    if (what->number == 0)
        cdi_ring_peers(b, what->ticket, &peers);
    (void)pthread_mutex_lock(&b->error_lock);
    if (!atomic_load(&b->failed)) {
        (void)cdi_fail(&b->error, CDDP_E_TIMEOUT, "%s: not completed within %.4g s", what->op,
                       (double)b->world.timeout_ms / 1000);
        b->timed_out = true;
        b->timed_out_op = *what;
        b->timed_out_peers = peers;
        atomic_store(&b->failed, true);
        cdi_host->flight_hide(b->record);
    }
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
}
