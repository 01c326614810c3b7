/* SPDX-License-Identifier: Apache-2.0 */
/* Names of operations, including those that are made of others. */
#include "hygiene.h"
#include "worker/backend/describe.h"

CDI_SUITE(op_text);

static struct cdi_coll op_of(enum cdi_coll_kind kind, enum cdi_api_call asked)
{
    return (struct cdi_coll){.kind = kind, .asked = asked, .count = 3, .dtype = CDDP_FLOAT32, .root = 1, .bucket = -1};
}

static void is_called(enum cdi_coll_kind kind, enum cdi_api_call asked, const char *text)
{
    const struct cdi_coll op = op_of(kind, asked);
    char buf[160];

    cdi_coll_text(&op, buf, sizeof buf);
    cr_expect_str_eq(buf, text);
}

Test(describe, operation_names_the_public_call)
{
    is_called(CDI_SEND, CDI_API_ITSELF, "send of 3 float32 to rank 1");
    is_called(CDI_BARRIER, CDI_API_ITSELF, "barrier");
    is_called(CDI_BARRIER, CDI_API_COMM_SPLIT, "cddp_comm_split (barrier)");
    is_called(CDI_BARRIER, CDI_API_GATHER, "gather of 3 float32 to rank 1");
    is_called(CDI_BARRIER, CDI_API_SCATTER, "scatter of 3 float32 from rank 1");
    is_called(CDI_BARRIER, CDI_API_ALL_TO_ALLV, "all_to_allv of parts of float32");
    is_called(CDI_RECV, CDI_API_GATHER, "gather (recv of 3 float32 from rank 1)");
    is_called(CDI_REDUCE, CDI_API_REDUCE_SCATTERV, "reduce_scatterv (reduce(sum) of 3 float32 to rank 1)");
    is_called(CDI_BROADCAST, CDI_API_ALL_GATHERV, "all_gatherv (broadcast of 3 float32 from rank 1)");
}

Test(describe, flight_page_names_group_by_public_call)
{
    static const struct {
        enum cdi_coll_kind kind;
        enum cdi_api_call asked;
        const char *name;
    } made[] = {
        {CDI_BARRIER, CDI_API_GATHER, "gather"},
        {CDI_BARRIER, CDI_API_SCATTER, "scatter"},
        {CDI_BARRIER, CDI_API_ALL_TO_ALLV, "all_to_allv"},
        {CDI_REDUCE, CDI_API_REDUCE_SCATTERV, "reduce_scatterv"},
        {CDI_BROADCAST, CDI_API_ALL_GATHERV, "all_gatherv"},
        {CDI_SEND, CDI_API_ITSELF, "group"},
    };

    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        struct cdi_coll ops[3] = {op_of(made[i].kind, made[i].asked), op_of(CDI_SEND, made[i].asked),
                                  op_of(CDI_RECV, made[i].asked)};

        cr_expect_str_eq(cdi_flight_op_name(cdi_flight_op_of_group(ops, 3)), made[i].name);
        ops[2].asked = CDI_API_ITSELF; /* the program has started other operations with it */
        cr_expect_str_eq(cdi_flight_op_name(cdi_flight_op_of_group(ops, 3)), "group");
    }
    cr_expect_eq(cdi_flight_op_of_group(&(struct cdi_coll){.kind = CDI_RECV}, 1), CDI_FLIGHT_RECV);
}
