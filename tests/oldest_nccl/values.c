/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the numbers in NCCL's ABI, one per line; built with the list of this folder and with the real header. */
#include <nccl.h>
#include <stdio.h>

/* clang-format finds no end in such lists. */
/* clang-format off */
#define VALUES(X) \
    X(ncclSuccess) X(ncclUnhandledCudaError) X(ncclSystemError) X(ncclInternalError) X(ncclInvalidArgument) \
    X(ncclInvalidUsage) X(ncclRemoteError) X(ncclInProgress) X(ncclSum) X(ncclProd) X(ncclMax) X(ncclMin) \
    X(ncclAvg) X(ncclNumOps) X(ncclMaxRedOp) X(ncclInt8) X(ncclUint8) X(ncclInt32) X(ncclUint32) \
    X(ncclInt64) X(ncclUint64) X(ncclFloat16) X(ncclFloat32) X(ncclFloat64) X(ncclBfloat16) \
    X(ncclFloat8e4m3) X(ncclFloat8e5m2) \
    X(NCCL_UNIQUE_ID_BYTES) X(NCCL_CONFIG_UNDEF_INT) X(NCCL_SPLIT_NOCOLOR) X(NCCL_WIN_DEFAULT) \
    X(NCCL_WIN_COLL_SYMMETRIC) X(NCCL_CTA_POLICY_DEFAULT) X(NCCL_CTA_POLICY_EFFICIENCY) \
    X(sizeof(ncclUniqueId)) X(sizeof(ncclResult_t)) X(sizeof(ncclRedOp_t)) X(sizeof(ncclDataType_t))

#define MEMBERS(X) \
    X(size) X(magic) X(version) X(blocking) X(cgaClusterSize) X(minCTAs) X(maxCTAs) X(netName) X(splitShare) \
    X(trafficClass) X(commName) X(collnetEnable) X(CTAPolicy) X(shrinkShare) X(nvlsCTAs)

/* clang-format on */

int main(void)
{
    const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

#define X(value) printf("%s %lld\n", #value, (long long)(value));
    VALUES(X)
#undef X
#define X(member) \
    printf("ncclConfig_t.%s at %zu, %zu bytes\n", #member, offsetof(ncclConfig_t, member), sizeof config.member);
    MEMBERS(X)
#undef X
    printf("magic %x\n", config.magic);
    return 0;
}
