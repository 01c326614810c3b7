/* SPDX-License-Identifier: Apache-2.0 */
/* meson.build compiles it with -DGPT_REAL=float. */
#include "test_gpt_model.c"
