/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <type_traits>

namespace
{

template <typename T>
using Wide = std::conditional_t<std::is_integral<T>::value || std::is_same<T, double>::value, T, float>;

template <typename T> Wide<T> widen(T x)
{
    return static_cast<Wide<T>>(x);
}

template <typename T> T bits_of(uint64_t argument)
{
    T value;

    memcpy(static_cast<void *>(&value), &argument, sizeof value);
    return value;
}

template <typename T> T combine(int op, uint64_t argument, T a, T b)
{
    if constexpr (std::is_integral<T>::value) {
        T mask = bits_of<T>(argument);

        switch (op) {
        case ncclDevProd:
            return static_cast<T>(a * b);
        case ncclDevMinMax:
            return (a ^ mask) < (b ^ mask) ? a : b;
        default:
            return static_cast<T>(a + b);
        }
    } else {
        Wide<T> x = widen(a), y = widen(b);

        switch (op) {
        case ncclDevProd:
            return T(x * y);
        case ncclDevMinMax:
            return T(argument != 0 ? std::fmax(x, y) : std::fmin(x, y));
        default:
            return T(x + y);
        }
    }
}

template <typename T> T before(int op, uint64_t argument, T x)
{
    if (op != ncclDevPreMulSum)
        return x;
    if constexpr (std::is_integral<T>::value)
        return static_cast<T>(x * bits_of<T>(argument));
    else
        return T(widen(x) * widen(bits_of<T>(argument)));
}

/* NCCL has the mean of integers on unsigned types: the lowest bit says whether the sum is signed. */
template <typename T> T after(int op, uint64_t argument, T x)
{
    if constexpr (std::is_integral<T>::value) {
        if (op == ncclDevSumPostDiv) {
            using Signed = std::make_signed_t<T>;
            T n = static_cast<T>(argument >> 1);

            return (argument & 1) != 0 ? static_cast<T>(static_cast<Signed>(x) / static_cast<Signed>(n))
                                       : static_cast<T>(x / n);
        }
    }
    return x;
}

template <typename T>
void each(const Function &f, uint64_t argument, void *out, const void *a, const void *b, size_t count, bool pre_a,
          bool post)
{
    const T *x = static_cast<const T *>(a), *y = static_cast<const T *>(b);
    T *to = static_cast<T *>(out);

    for (size_t i = 0; i < count; i++) {
        T value = pre_a ? before(f.op, argument, x[i]) : x[i];

        if (y != nullptr)
            value = combine(f.op, argument, value, y[i]);
        to[i] = post ? after(f.op, argument, value) : value;
    }
}

} // namespace

void reduce_elements(const Function &f, uint64_t argument, void *out, const void *a, const void *b, size_t count,
                     bool pre_a, bool post)
{
    switch (f.type) {
#define TYPE(number, T)                                      \
    case number:                                             \
        each<T>(f, argument, out, a, b, count, pre_a, post); \
        break;
        TYPE(ncclInt8, uint8_t)
        TYPE(ncclUint8, uint8_t)
        TYPE(ncclInt32, uint32_t)
        TYPE(ncclUint32, uint32_t)
        TYPE(ncclInt64, uint64_t)
        TYPE(ncclUint64, uint64_t)
        TYPE(ncclFloat16, __half)
        TYPE(ncclFloat32, float)
        TYPE(ncclFloat64, double)
        TYPE(ncclBfloat16, __nv_bfloat16)
        TYPE(ncclFloat8e4m3, __nv_fp8_e4m3)
        TYPE(ncclFloat8e5m2, __nv_fp8_e5m2)
#undef TYPE
    default:
        break;
    }
}

uint64_t reduce_argument(const void *at, int type)
{
    uint64_t value = 0;

    memcpy(&value, at, static_cast<size_t>(ncclTypeSize(static_cast<ncclDataType_t>(type))));
    return value;
}
