/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/launch_shape.h"

#include "hygiene.h"

CDI_SUITE(launch_shape);

static struct cdi_launch_shapes shapes;
static char memory[2];

static struct cdi_coll reduction(size_t count)
{
    return (struct cdi_coll){
        .kind = CDI_ALL_REDUCE, .in = memory, .out = memory, .count = count, .dtype = CDDP_FLOAT32, .op = CDDP_SUM};
}

static bool known(const struct cdi_coll *op, int n)
{
    uint64_t shape = 0;

    for (int i = 0; i < n; i++)
        shape = cdi_launch_shape(shape, &op[i], 3);
    return cdi_launch_shape_seen(&shapes, shape);
}

Test(launch_shape, second_launch_of_a_shape_is_known)
{
    struct cdi_coll op = reduction(5);

    cr_assert_not(known(&op, 1));
    op.bucket = 7; /* nothing that NCCL sees */
    cr_assert(known(&op, 1));
}

Test(launch_shape, any_input_of_the_choice_of_nccl_changes_the_shape)
{
    static const size_t counts[2][3] = {{1, 2, 3}, {3, 2, 1}};
    struct cdi_coll op[7], group[2] = {reduction(5), reduction(6)},
                           gather = {.kind = CDI_ALL_GATHERV, .counts = counts[0]};

    for (int i = 0; i < 7; i++)
        op[i] = reduction(5);
    op[1].count = 6;
    op[2].kind = CDI_REDUCE;
    op[3].dtype = CDDP_BFLOAT16;
    op[4].op = CDDP_MAX;
    op[5].root = 1;
    op[6].out = memory + 1;
    for (int i = 0; i < 7; i++)
        cr_assert_not(known(&op[i], 1), "%d", i);
    cr_assert_not(known(group, 2));
    cr_assert(known(group, 2));
    cr_assert_not(known(&gather, 1));
    gather.counts = counts[1];
    cr_assert_not(known(&gather, 1));
    cr_assert(known(&gather, 1));
}

Test(launch_shape, shape_without_room_is_always_new)
{
    for (size_t i = 0; i < CDI_LAUNCH_SHAPES / 2; i++) {
        struct cdi_coll op = reduction(i);

        cr_assert_not(known(&op, 1));
    }
    for (size_t i = 0; i < CDI_LAUNCH_SHAPES / 2; i++) {
        struct cdi_coll op = reduction(i), more = reduction(CDI_LAUNCH_SHAPES + i);

        cr_assert(known(&op, 1));
        cr_assert_not(known(&more, 1));
    }
}
