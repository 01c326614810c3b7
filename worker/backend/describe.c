/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/describe.h"

#include "worker/base/dtype.h"

#include <stdio.h>
#include <string.h>

#define KIND(NAME, number, text, is_reduction, root_word) [CDI_##NAME] = {text, number, is_reduction, root_word},
#define MADE(NAME, number, text, is_reduction, root_word) [CDI_API_##NAME] = {text, number, is_reduction, root_word},
#define FUNCTION(NAME, text) [CDI_API_##NAME] = {.name = (text)},

struct described {
    const char *name;
    enum cdi_flight_op flight;
    bool reduces;
    const char *root; /* the word before the rank of the root; NULL: there is no root */
};

static const struct described kinds[] = {CDI_COLLECTIVES(KIND, CDI_NO_COLLECTIVE)};
static const struct described asking[] = {[CDI_API_ALL_GATHERV] = {"all_gatherv", CDI_FLIGHT_ALL_GATHERV, false, NULL},
                                          CDI_ASKING_FUNCTIONS(FUNCTION) CDI_COLLECTIVES(CDI_NO_COLLECTIVE, MADE)};

enum cdi_flight_op cdi_flight_op_of(enum cdi_coll_kind kind)
{
    return kinds[kind].flight;
}

const char *cdi_coll_name(uint32_t kind)
{
    return kind < sizeof kinds / sizeof kinds[0] ? kinds[kind].name : NULL;
}

const char *cdi_coll_root_word(enum cdi_coll_kind kind)
{
    return kinds[kind].root;
}

bool cdi_coll_reduces(enum cdi_coll_kind kind)
{
    return kinds[kind].reduces;
}

enum cdi_flight_op cdi_flight_op_of_group(const struct cdi_coll *ops, size_t n)
{
    bool one = cdi_api_call_is_coll(ops[0].asked);

    for (size_t i = 1; i < n; i++)
        one = one && ops[i].asked == ops[0].asked;
    if (one)
        return asking[ops[0].asked].flight;
    return n == 1 ? cdi_flight_op_of(ops[0].kind) : CDI_FLIGHT_GROUP;
}

const char *cdi_api_call_name(uint32_t asked)
{
    return asked < sizeof asking / sizeof asking[0] ? asking[asked].name : NULL;
}

static bool has_units(uint32_t caller)
{
    return caller == CDI_API_FSDP_GATHER || caller == CDI_API_FSDP_READY;
}

void cdi_api_call_text(uint32_t caller, int bucket, const char *names, const char *plain, char *buf, size_t cap)
{
    char unit[128] = "";

    if (has_units(caller) && bucket >= 0)
        (void)snprintf(unit, sizeof unit, " of unit %d%s%s", bucket, names[0] != '\0' ? " " : "", names);
    (void)snprintf(buf, cap, "%s%s (%s)", cdi_api_call_name(caller), unit, plain);
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

void cdi_coll_advise(const struct cdi_coll *op, struct cdi_error *err)
{
    static const char cause[] = "; if it had fewer batches than others, ";
    size_t len;

    if (err == NULL || err->status != CDDP_E_PEER || strstr(err->msg, CDI_HAS_LEFT) == NULL ||
        strstr(err->msg, cause) != NULL || op->asked == CDI_API_FSDP_CREATE || op->asked == CDI_API_DDP_CREATE)
        return;
    len = strlen(err->msg);
    (void)snprintf(err->msg + len, sizeof err->msg - len, "%s%s", cause,
                   has_units(op->asked) ? "give each rank as many: a sharded model has no cddp_ddp_join"
                                        : "CDDP_DDP_JOIN and cddp_ddp_join let the others continue");
}

void cdi_origins_text(const char *who_a, const struct cdi_origin *a, const char *who_b, const struct cdi_origin *b,
                      char *buf, size_t cap)
{
    buf[0] = '\0';
    if (a->model != b->model && a->model != 0 && b->model != 0)
        (void)snprintf(buf, cap, ": %s's is of model %u, %s's of model %u, in the order in which models were created",
                       who_a, a->model, who_b, b->model);
    else if (a->model != b->model)
        (void)snprintf(buf, cap, ": only %s's is of a model", a->model != 0 ? who_a : who_b);
    else if (a->steps != b->steps)
        (void)snprintf(
            buf, cap,
            ": before it the steps of the model's optimizer differ: one rank called cddp_optim_skip, or gave "
            "another lr, grad_scale, max_norm or flags");
}

/* The BARRIER before the messages of a gather, a scatter or an all_to_allv. */
static void opening_text(const struct cdi_coll *op, char *buf, size_t cap)
{
    const char *name = cdi_api_call_name(op->asked), *dtype = cdi_dtype_name(op->dtype);

    if (asking[op->asked].root != NULL)
        (void)snprintf(buf, cap, "%s of %zu %s %s rank %d", name, op->count, dtype, asking[op->asked].root, op->root);
    else
        (void)snprintf(buf, cap, "%s of parts of %s", name, dtype);
}

/* The names are those of the flight page, so that both reports use the same ones. */
void cdi_coll_text(const struct cdi_coll *op, char *buf, size_t cap)
{
    const char *name = kinds[op->kind].name, *root = kinds[op->kind].root, *asked = cdi_api_call_name(op->asked);
    char how[24] = "", what[64] = "", tail[128] = "", names[96] = "", plain[256];

    if (op->kind == CDI_BARRIER && cdi_api_call_is_coll(op->asked)) {
        opening_text(op, buf, cap);
        return;
    }
    if (kinds[op->kind].reduces)
        (void)snprintf(how, sizeof how, "(%s)", cdi_redop_name(op->op));
    if (op->kind == CDI_ALL_GATHERV)
        (void)snprintf(what, sizeof what, " of parts of %s", cdi_dtype_name(op->dtype));
    else if (op->kind != CDI_BARRIER)
        (void)snprintf(what, sizeof what, " of %zu %s", op->count, cdi_dtype_name(op->dtype));
    if (root != NULL)
        (void)snprintf(tail, sizeof tail, " %s rank %d", root, op->root);
    else if (!has_units(op->asked))
        cdi_bucket_text(op, tail, sizeof tail);
    (void)snprintf(plain, sizeof plain, "%s%s%s%s", name, how, what, tail);
    if (has_units(op->asked) && op->bucket >= 0 && op->name_bucket != NULL)
        op->name_bucket(op->ddp, op->bucket, names, sizeof names);
    if (asked != NULL)
        cdi_api_call_text(op->asked, op->bucket, names, plain, buf, cap);
    else
        (void)snprintf(buf, cap, "%s", plain);
}
