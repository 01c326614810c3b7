/* SPDX-License-Identifier: Apache-2.0 */
/* What a communicator of one rank does with a collective: a copy, or a multiplication by the operation's factor. */
#include "reduce.h"

#include "runtime.h"

struct one {
    void *to;
    const void *from;
    size_t count;
    uint64_t argument;
    int type, op;
    bool is_pointer;
};

static void run(void *data)
{
    one *o = static_cast<one *>(data);
    uint64_t argument =
        o->is_pointer ? reduce_argument(standin_host(reinterpret_cast<void *>(o->argument)), o->type) : o->argument;

    reduce_elements({-1, o->op, o->type}, argument, standin_host(o->to), standin_host(o->from), nullptr, o->count, true,
                    false);
    delete o;
}

ncclResult_t ncclLaunchOneRank(void *to, void const *from, size_t count, ncclDevRedOpFull op, ncclDataType_t type,
                               cudaStream_t stream)
{
    if (op.op != ncclDevPreMulSum)
        return to == from ||
                       host_copy(to, from, count * static_cast<size_t>(ncclTypeSize(type)), stream) == CUDA_SUCCESS
                   ? ncclSuccess
                   : ncclUnhandledCudaError;
    one *o = new one{to, from, count, op.scalarArg, type, op.op, op.scalarArgIsPtr};

    return cuLaunchHostFunc(stream, run, o) == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}
