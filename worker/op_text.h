/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation is called: in the flight page and in sentences. Pure. */
#ifndef CDI_OP_TEXT_H
#define CDI_OP_TEXT_H

#include "worker/backend.h"

enum cdi_flight_op cdi_flight_op_of(enum cdi_op_kind kind);
/* "all_reduce(mean) of 10 float32 (bucket 2)", "send of 3 float32 to rank 1". */
void cdi_op_text(const struct cdi_op *op, char *buf, size_t cap);

#endif
