/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels (kernel.h), each a body of element.h. Compiled to a fatbin for GPUs alone, without host code. */
#include "worker/backend/nccl/kernels/element_find.h"
#include "worker/backend/nccl/kernels/element_hash.h"
#include "worker/backend/nccl/kernels/element_lowrank.h"
#include "worker/backend/nccl/kernels/element_norm.h"
#include "worker/backend/nccl/kernels/element_optim.h"

static __device__ struct cdi_kernel_thread this_thread(void)
{
    struct cdi_kernel_thread t = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};

    return t;
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_pack(const __grid_constant__ struct cdi_pack_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_pack_body(&t, &args, 0);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_unpack(const __grid_constant__ struct cdi_pack_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_pack_body(&t, &args, 1);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_cast(const __grid_constant__ struct cdi_cast_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_cast_body(&t, &args);
}

/* The block's writes precede its arrival, and all arrivals precede the word: for the GPU, and for the host. */
static __device__ void signal_end(const struct cdi_scale_args &args)
{
    if (args.word == NULL)
        return;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence();
    if (atomicInc(args.arrived, gridDim.x - 1) != gridDim.x - 1)
        return;
    __threadfence_system();
    *(volatile uint32_t *)args.word = args.value;
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_scale(const __grid_constant__ struct cdi_scale_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_scale_body(&t, &args);
    signal_end(args);
}

/* --- Norms and clipping ------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS, CDI_TALLY_BLOCKS)
    cdi_tally(const __grid_constant__ struct cdi_tally_args args)
{
    __shared__ struct cdi_tally_room room;
    struct cdi_kernel_thread t = this_thread();

    cdi_tally_body(&t, &args, &room);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_fold(const __grid_constant__ struct cdi_fold_args args)
{
    __shared__ uint64_t room[CDI_EXACT_WORDS];
    struct cdi_kernel_thread t = this_thread();

    cdi_fold_body(&t, &args, room);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_clip(const __grid_constant__ struct cdi_clip_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_clip_body(&t, &args);
}

/* --- Numbers that are not finite ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_find(const __grid_constant__ struct cdi_find_args args)
{
    struct cdi_kernel_thread t = this_thread();
    uint64_t most = cdi_find_body(&t, &args);

    if (most > 0) /* healthy gradients have none */
        cdi_find_tell(args.word, most);
}

/* --- Replicas ----------------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_hash(const __grid_constant__ struct cdi_hash_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_hash_body(&t, &args);
}

/* --- The optimizer ------------------------------------------------------------------------------------------------ */

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_count(const __grid_constant__ struct cdi_count_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_count_body(&t, &args);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_update(const __grid_constant__ struct cdi_update_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_update_body(&t, &args);
}

/* --- PowerSGD ------------------------------------------------------------------------------------------------------
 */

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_feed(const __grid_constant__ struct cdi_lowrank_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_feed_body(&t, &args);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_right(const __grid_constant__ struct cdi_lowrank_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_right_body(&t, &args);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_product(const __grid_constant__ struct cdi_lowrank_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_product_body(&t, &args);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_left(const __grid_constant__ struct cdi_lowrank_args args)
{
    __shared__ struct cdi_lowrank_room room;
    struct cdi_kernel_thread t = this_thread();

    cdi_left_body(&t, &args, &room);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_basis(const __grid_constant__ struct cdi_lowrank_args args)
{
    __shared__ struct cdi_lowrank_room room;
    struct cdi_kernel_thread t = this_thread();

    cdi_basis_body(&t, &args, &room);
}

/* --- What a graph tells the host ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_signal(const __grid_constant__ struct cdi_signal_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_signal_body(&t, &args);
}

/* --- What the host tells a graph ---------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_store(const __grid_constant__ struct cdi_store_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_store_body(&t, &args);
}

extern "C" __global__ void __launch_bounds__(CDI_KERNEL_THREADS)
    cdi_report(const __grid_constant__ struct cdi_report_args args)
{
    struct cdi_kernel_thread t = this_thread();

    cdi_report_body(&t, &args);
}
