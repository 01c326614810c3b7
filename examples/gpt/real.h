/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The type of all numbers in the model: float, unless -DGPT_REAL=double. The check of the gradients compiles the same
 * sources with double.
 */
#ifndef GPT_REAL_H
#define GPT_REAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef GPT_REAL
#define GPT_REAL float
#endif

typedef GPT_REAL real;

#endif
