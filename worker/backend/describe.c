/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/describe.h"

#include "worker/base/dtype.h"

#include <stdio.h>

enum cdi_flight_op cdi_flight_op_of(enum cdi_coll_kind kind)
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

enum cdi_flight_op cdi_flight_op_of_group(const struct cdi_coll *ops, size_t n)
{
    static const enum cdi_flight_op made[] = {
        [CDI_ASKED_GATHER] = CDI_FLIGHT_GATHER,           [CDI_ASKED_SCATTER] = CDI_FLIGHT_SCATTER,
        [CDI_ASKED_ALL_TO_ALLV] = CDI_FLIGHT_ALL_TO_ALLV, [CDI_ASKED_REDUCE_SCATTERV] = CDI_FLIGHT_REDUCE_SCATTERV,
        [CDI_ASKED_ALL_GATHERV] = CDI_FLIGHT_ALL_GATHERV,
    };
    bool one = cdi_asked_is_coll(ops[0].asked);

    for (size_t i = 1; i < n; i++)
        one = one && ops[i].asked == ops[0].asked;
    if (one)
        return made[ops[0].asked];
    return n == 1 ? cdi_flight_op_of(ops[0].kind) : CDI_FLIGHT_GROUP;
}

const char *cdi_asked_name(uint32_t asked)
{
    static const char *const names[] = {
        [CDI_ASKED_DDP_CREATE] = "cddp_ddp_create",
        [CDI_ASKED_OPTIM_CREATE] = "cddp_optim_create",
        [CDI_ASKED_SET_POWERSGD] = "cddp_ddp_set_powersgd",
        [CDI_ASKED_COMM_SPLIT] = "cddp_comm_split",
        [CDI_ASKED_CHECKPOINT_SAVE] = "cddp_checkpoint_save",
        [CDI_ASKED_CHECKPOINT_LOAD] = "cddp_checkpoint_load",
        [CDI_ASKED_CHECKPOINT_WAIT] = "cddp_checkpoint_wait",
        [CDI_ASKED_ALLOC] = "cddp_alloc",
        [CDI_ASKED_REGISTER] = "cddp_register",
        [CDI_ASKED_METRIC_REDUCE] = "cddp_metric_reduce",
        [CDI_ASKED_GRAD_NORM] = "norm of the gradients",
        [CDI_ASKED_GATHER] = "gather",
        [CDI_ASKED_SCATTER] = "scatter",
        [CDI_ASKED_ALL_TO_ALLV] = "all_to_allv",
        [CDI_ASKED_REDUCE_SCATTERV] = "reduce_scatterv",
        [CDI_ASKED_ALL_GATHERV] = "all_gatherv",
    };

    return asked < sizeof names / sizeof names[0] ? names[asked] : NULL;
}

void cdi_bucket_text(const struct cdi_coll *op, char *buf, size_t cap)
{
    char names[96] = "";

    buf[0] = '\0';
    if (op->bucket < 0)
        return;
    if (op->name_bucket != NULL)
        op->name_bucket(op->ddp, op->bucket, names, sizeof names);
    (void)snprintf(buf, cap, " (bucket %d%s%s)", op->bucket, names[0] != '\0' ? ": " : "", names);
}

/* How the root is called; NULL: there is none. */
static const char *root_word(enum cdi_coll_kind kind)
{
    if (kind == CDI_REDUCE || kind == CDI_SEND)
        return "to";
    return kind == CDI_BROADCAST || kind == CDI_RECV ? "from" : NULL;
}

/* The BARRIER before the messages of a gather, a scatter or an all_to_allv. */
static void opening_text(const struct cdi_coll *op, char *buf, size_t cap)
{
    const char *name = cdi_asked_name(op->asked), *dtype = cdi_dtype_name(op->dtype);

    if (op->asked == CDI_ASKED_GATHER || op->asked == CDI_ASKED_SCATTER)
        (void)snprintf(buf, cap, "%s of %zu %s %s rank %d", name, op->count, dtype,
                       op->asked == CDI_ASKED_GATHER ? "to" : "from", op->root);
    else
        (void)snprintf(buf, cap, "%s of parts of %s", name, dtype);
}

/* The names are those of the flight page, so that both reports speak of the same thing. */
void cdi_coll_text(const struct cdi_coll *op, char *buf, size_t cap)
{
    bool reduces = op->kind == CDI_ALL_REDUCE || op->kind == CDI_REDUCE || op->kind == CDI_REDUCE_SCATTER;
    const char *name = cdi_flight_op_name((uint32_t)cdi_flight_op_of(op->kind)), *root = root_word(op->kind);
    const char *asked = cdi_asked_name(op->asked);
    char how[24] = "", what[64] = "", tail[128] = "";

    if (op->kind == CDI_BARRIER && cdi_asked_is_coll(op->asked)) {
        opening_text(op, buf, cap);
        return;
    }
    if (reduces)
        (void)snprintf(how, sizeof how, "(%s)", cdi_redop_name(op->op));
    if (op->kind == CDI_ALL_GATHERV)
        (void)snprintf(what, sizeof what, " of parts of %s", cdi_dtype_name(op->dtype));
    else if (op->kind != CDI_BARRIER)
        (void)snprintf(what, sizeof what, " of %zu %s", op->count, cdi_dtype_name(op->dtype));
    if (root != NULL)
        (void)snprintf(tail, sizeof tail, " %s rank %d", root, op->root);
    else
        cdi_bucket_text(op, tail, sizeof tail);
    (void)snprintf(buf, cap, "%s%s%s%s%s%s%s", asked != NULL ? asked : "", asked != NULL ? " (" : "", name, how, what,
                   tail, asked != NULL ? ")" : "");
}
