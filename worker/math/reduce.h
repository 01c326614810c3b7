/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of all-reduce: reduces several arrays to one, in order, element by element. Pure; any thread. */
#ifndef CDI_MATH_REDUCE_H
#define CDI_MATH_REDUCE_H

#include <cddp/cddp.h>
#include <stdbool.h>

/*
 * out[k][i] = ((in[0][i] op in[1][i]) op in[2][i]) ... for every k: the same result is written to n_out arrays.
 * An out array may be one of the in arrays; otherwise they do not overlap. n_in >= 1, n_out >= 1. Arrays are aligned to
 * their element. AVG is the sum times 1/n_in. float16 and bfloat16 are accumulated in float32 and rounded once.
 * Integers wrap around, and they alone take BAND, BOR and BXOR. MIN and MAX give NaN where any operand is NaN. The
 * result does not depend on how a caller cuts `count`, nor on the machine.
 */
void cdi_reduce(void *const *out, int n_out, const void *const *in, int n_in, size_t count, cddp_dtype dtype,
                cddp_redop op);

/*
 * The same in stretches, for inputs on several nodes: accumulators pass from one node to the next. The last one
 * computes exactly what cdi_reduce computes from all inputs at once.
 */
struct cdi_partial {
    const void *from; /* accumulators of the previous inputs; NULL: none */
    void *to;         /* the accumulators are written here (may be `from`) and out is not used; NULL: this is the end */
    int n_total;      /* total number of inputs */
};
/*
 * Returns the size of an accumulator: float32 for the two 16-bit floats, otherwise the type itself; 0: the type cannot
 * be reduced.
 */
size_t cdi_reduce_acc_size(cddp_dtype dtype);
void cdi_reduce_partial(const struct cdi_partial *p, void *const *out, int n_out, const void *const *in, int n_in,
                        size_t count, cddp_dtype dtype, cddp_redop op);

/*
 * The same with the code for one kind of processor, for tests: only if cdi_reduce_has. The others use the best one
 * available.
 */
enum cdi_reduce_kind { CDI_REDUCE_PLAIN, CDI_REDUCE_AVX2, CDI_REDUCE_AVX512 };
bool cdi_reduce_has(enum cdi_reduce_kind kind);
void cdi_reduce_partial_by(enum cdi_reduce_kind kind, const struct cdi_partial *p, void *const *out, int n_out,
                           const void *const *in, int n_in, size_t count, cddp_dtype dtype, cddp_redop op);

#endif
