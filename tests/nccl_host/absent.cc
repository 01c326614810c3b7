/* SPDX-License-Identifier: Apache-2.0 */
/* The transports of NCCL that need InfiniBand: tables whose functions all report an error. */
#include <cstdint>

extern "C" {

static int absent()
{
    return 3; /* ncclInternalError */
}

#define FEW absent, absent, absent, absent, absent, absent, absent, absent
#define TABLE(symbol, text)                                       \
    __attribute__((visibility("hidden"))) struct symbol##_table { \
        const char *name;                                         \
        int (*fn[48])();                                          \
    } symbol = {text, {FEW, FEW, FEW, FEW, FEW, FEW}};
TABLE(ncclNetIb, "none")
TABLE(ncclGinIb, "none")
TABLE(ncclGinIbGdaki, "none")
TABLE(ncclGinIbProxy, "none")
TABLE(ncclRmaIbProxy, "none")
}

/* Settings of those transports; some versions have them elsewhere. */
__attribute__((weak)) int64_t ncclParamIbDataDirect()
{
    return 0;
}

__attribute__((weak)) int64_t ncclParamGinType()
{
    return -1;
}

/* A kernel of 2.29 that sets the signals of those transports back. */
struct ncclComm;
struct ncclDevComm;
__attribute__((weak)) int ncclGinResetSignalsAndCounters(ncclComm *, ncclDevComm const *)
{
    return 0;
}
