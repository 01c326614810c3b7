/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and reductions: names, sizes and properties. Pure. */
#ifndef CDI_BASE_DTYPE_H
#define CDI_BASE_DTYPE_H

#include <cddp/cddp.h>
#include <stdbool.h>

const char *cdi_dtype_name(cddp_dtype dtype); /* such as "float32"; "?" for an invalid value */
const char *cdi_redop_name(cddp_redop op);    /* such as "sum" */
bool cdi_dtype_valid(cddp_dtype dtype);
bool cdi_dtype_is_float(cddp_dtype dtype); /* one that the library computes with: not those of 8 bits */
bool cdi_dtype_is_integer(cddp_dtype dtype);
bool cdi_redop_valid(cddp_redop op);
bool cdi_redop_is_bitwise(cddp_redop op); /* of integers only */

#endif
