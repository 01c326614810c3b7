/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/op_text.h"

#include "worker/dtype.h"

#include <stdio.h>

enum cdi_flight_op cdi_flight_op_of(enum cdi_op_kind kind)
{
    switch (kind) {
    case CDI_ALL_REDUCE:
        return CDI_FLIGHT_ALL_REDUCE;
    case CDI_BROADCAST:
        return CDI_FLIGHT_BROADCAST;
    case CDI_ALL_GATHER:
        return CDI_FLIGHT_ALL_GATHER;
    case CDI_BARRIER:
        return CDI_FLIGHT_BARRIER;
    case CDI_REDUCE:
        return CDI_FLIGHT_REDUCE;
    case CDI_ALL_GATHERV:
        return CDI_FLIGHT_ALL_GATHERV;
    case CDI_REDUCE_SCATTER:
        return CDI_FLIGHT_REDUCE_SCATTER;
    case CDI_ALL_TO_ALL:
        return CDI_FLIGHT_ALL_TO_ALL;
    case CDI_SEND:
        return CDI_FLIGHT_SEND;
    case CDI_RECV:
        return CDI_FLIGHT_RECV;
    }
    return CDI_FLIGHT_NONE;
}

/* How the root is called; NULL: there is none. */
static const char *root_word(enum cdi_op_kind kind)
{
    if (kind == CDI_REDUCE || kind == CDI_SEND)
        return "to";
    return kind == CDI_BROADCAST || kind == CDI_RECV ? "from" : NULL;
}

/* The names are those of the flight page, so that both reports speak of the same thing. */
void cdi_op_text(const struct cdi_op *op, char *buf, size_t cap)
{
    bool reduces = op->kind == CDI_ALL_REDUCE || op->kind == CDI_REDUCE || op->kind == CDI_REDUCE_SCATTER;
    const char *name = cdi_flight_op_name((uint32_t)cdi_flight_op_of(op->kind)), *root = root_word(op->kind);
    char how[24] = "", what[64] = "", tail[48] = "";

    if (reduces)
        (void)snprintf(how, sizeof how, "(%s)", cdi_op_name(op->op));
    if (op->kind == CDI_ALL_GATHERV)
        (void)snprintf(what, sizeof what, " of parts of %s", cdi_dtype_name(op->dtype));
    else if (op->kind != CDI_BARRIER)
        (void)snprintf(what, sizeof what, " of %zu %s", op->count, cdi_dtype_name(op->dtype));
    if (root != NULL)
        (void)snprintf(tail, sizeof tail, " %s rank %d", root, op->root);
    else if (op->bucket >= 0)
        (void)snprintf(tail, sizeof tail, " (bucket %d)", op->bucket);
    (void)snprintf(buf, cap, "%s%s%s%s", name, how, what, tail);
}
