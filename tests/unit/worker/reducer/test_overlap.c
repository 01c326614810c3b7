/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/reducer/state/overlap.h"

#include <stdint.h>
#include <string.h>

CDI_SUITE(overlap);

static float memory[1000], elsewhere[1000];
static struct cdi_ddp_tied tied;
static struct cdi_error err;

static cddp_param at(const char *name, void *data, size_t count, void *grad)
{
    return (cddp_param){.size = sizeof(cddp_param),
                        .name = name,
                        .data = data,
                        .count = count,
                        .dtype = CDDP_FLOAT32,
                        .grad_dtype = CDDP_FLOAT32,
                        .grad = grad};
}

static cddp_status find(const cddp_param *p, size_t n, const cddp_param *buffers, size_t n_buffers)
{
    tied = (struct cdi_ddp_tied){0};
    err.msg[0] = '\0';
    return cdi_overlap_find(&tied, p, n, buffers, n_buffers, &err);
}

static void expect_refused(const cddp_param *p, size_t n, const cddp_param *buffers, size_t n_buffers, const char *text)
{
    cr_assert_eq(find(p, n, buffers, n_buffers), CDDP_E_INVALID, "%s", text);
    cr_assert_not_null(strstr(err.msg, text), "%s", err.msg);
    cdi_overlap_release(&tied);
}

Test(overlap, neighbours_are_not_tied)
{
    const cddp_param p[] = {at("a", memory + 100, 100, elsewhere), at("b", memory, 100, elsewhere + 100),
                            at("c", memory + 200, 1, NULL)};
    const cddp_param buffers[] = {at("r", memory + 201, 10, NULL)};

    cr_assert_eq(find(p, 3, buffers, 1), CDDP_OK);
    cr_assert(tied.first == NULL && tied.next == NULL);
}

Test(overlap, equal_memory_is_tied_to_the_first)
{
    const cddp_param p[] = {at("x", memory + 500, 4, NULL),      at("a", memory, 100, NULL),
                            at("y", memory + 500, 4, elsewhere), at("b", memory, 100, elsewhere + 100),
                            at("c", memory + 100, 50, NULL),     at("d", memory, 100, NULL)};
    const size_t first[] = {0, 1, 0, 1, 4, 1}, next[] = {2, 3, 6, 5, 6, 6};

    cr_assert_eq(find(p, 6, NULL, 0), CDDP_OK);
    cr_assert(memcmp(tied.first, first, sizeof first) == 0 && memcmp(tied.next, next, sizeof next) == 0);
    cdi_overlap_release(&tied);
}

Test(overlap, fused_parameters_and_their_parts_are_refused)
{
    cddp_param p[] = {at("bias", elsewhere, 8, NULL), at("qkv", memory, 300, NULL), at("q", memory, 100, NULL),
                      at("v", memory + 200, 100, NULL)};
    const cddp_param inner[] = {at("qkv", memory, 300, NULL), at("k", memory + 100, 100, NULL)};

    expect_refused(
        p, 4, NULL, 0,
        "the data of parameter 2 'q' and the data of parameter 1 'qkv' share 400 bytes of memory: tied "
        "parameters have the same address, count and type; of fused ones pass either the whole or the parts");
    expect_refused(inner, 2, NULL, 0, "parameter 0 'qkv' and the data of parameter 1 'k' share 400 bytes");
    p[2] = at("last", memory + 299, 2, NULL);
    p[3] = at("far", memory + 301, 2, NULL);
    expect_refused(p, 4, NULL, 0, "parameter 1 'qkv' and the data of parameter 2 'last' share 4 bytes");
}

Test(overlap, equal_bytes_of_another_type_are_refused)
{
    cddp_param p[] = {at("a", memory, 100, NULL), at("b", memory, 100, NULL)};

    p[1].dtype = CDDP_FLOAT64;
    p[1].count = 50;
    expect_refused(p, 2, NULL, 0, "the data of parameter 0 'a' and the data of parameter 1 'b' share 400 bytes");
}

Test(overlap, gradients_have_their_own_memory)
{
    cddp_param p[] = {at("a", memory, 100, elsewhere), at("b", memory, 100, elsewhere)};

    expect_refused(
        p, 2, NULL, 0,
        "the gradient of parameter 0 'a' and the gradient of parameter 1 'b' share 400 bytes of memory: each "
        "parameter needs its own gradient; tied parameters with one gradient are one parameter: pass it once");
    p[1].grad = elsewhere + 99;
    expect_refused(p, 2, NULL, 0, "the gradient of parameter 1 'b' share 4 bytes");
    p[0].grad = memory; /* its own data */
    expect_refused(p, 1, NULL, 0, "the data of parameter 0 'a' and the gradient of parameter 0 'a' share 400 bytes");
    p[0].grad = NULL;
    p[1].grad = memory + 99; /* that of two which are tied */
    expect_refused(p, 2, NULL, 0,
                   "and the gradient of parameter 1 'b' share 4 bytes of memory: each needs its own memory");
}

Test(overlap, buffers_hold_no_parameter)
{
    const cddp_param p[] = {at("w", memory + 100, 100, elsewhere + 100)};
    const cddp_param over[] = {at("mean", memory + 500, 10, NULL), at("var", memory, 101, NULL)},
                     equal[] = {at("same", memory + 100, 100, NULL)}, grad[] = {at("last", elsewhere + 199, 5, NULL)},
                     inside[] = {at("part", memory + 150, 1, NULL)};

    expect_refused(p, 1, over, 2,
                   "buffer 1 'var' and the data of parameter 0 'w' share 4 bytes of memory: a buffer needs");
    expect_refused(p, 1, equal, 1, "the data of parameter 0 'w' and buffer 0 'same' share 400 bytes");
    expect_refused(p, 1, grad, 1, "the gradient of parameter 0 'w' and buffer 0 'last' share 4 bytes");
    expect_refused(p, 1, inside, 1, "the data of parameter 0 'w' and buffer 0 'part' share 4 bytes");
}

/* Every one of them becomes the same bytes. */
Test(overlap, buffers_may_share_memory)
{
    const cddp_param p[] = {at("w", memory + 700, 100, NULL), at("v", memory + 600, 50, NULL)};
    const cddp_param buffers[] = {at("a", memory, 100, NULL), at("b", memory, 100, NULL),
                                  at("c", memory + 50, 550, NULL), at("d", memory + 60, 10, NULL)},
                     longer[] = {at("a", memory, 651, NULL), at("b", memory + 10, 10, NULL)};

    cr_assert_eq(find(p, 2, buffers, 4), CDDP_OK);
    cr_assert(tied.first == NULL && tied.next == NULL);
    expect_refused(p, 2, longer, 2, "buffer 0 'a' and the data of parameter 1 'v' share 200 bytes");
}

/* The last byte of the address space does not wrap around. */
Test(overlap, addresses_end_at_the_top)
{
    const cddp_param p[] = {at("top", (void *)(UINTPTR_MAX - 7), 100, NULL), at("a", memory, 4, NULL),
                            at("high", (void *)(UINTPTR_MAX - 6), 1, NULL)};

    expect_refused(p, 3, NULL, 0, "'top' and the data of parameter 2 'high' share 4 bytes");
}
