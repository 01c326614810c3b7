/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kernel_twin.h"

#include "hygiene.h"
#include "worker/backend/host_elementwise.h"
#include "worker/math/nonfinite.h"

#include <math.h>

CDI_SUITE(kernel);

enum { N_SM = 3 };

/* Any bits, and from time to time a value that is hard to round. */
static void fill(uint8_t *x, size_t bytes, uint32_t seed)
{
    static const uint32_t hard[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0x477ff000u, 0x33000000u,
                                    0x33000001u, 0x00000001u, 0x80000000u, 0x387fffffu, 0x3f808000u, 0x7f7fffffu,
                                    0x7ff00000u, 0xfff80000u, 0x00007c01u, 0x7c007c00u, 0x0001ffffu};
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word = seed = seed * 1664525u + 1013904223u;

        if ((word >> 24) % 4 == 0)
            word = hard[(word >> 8) % (sizeof hard / sizeof hard[0])];
        memcpy(x + i, &word, bytes - i < 4 ? bytes - i : 4);
    }
}

static const size_t counts[] = {0, 1, 3, 4, 5, 255, 1024, 4099, 30001};
static const size_t shifts[] = {0, 1, 2, 3};
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

Test(kernel, casts_give_the_bits_of_the_cpu_backend)
{
    static const cddp_dtype pairs[][2] = {{CDDP_FLOAT32, CDDP_FLOAT16},
                                          {CDDP_FLOAT32, CDDP_BFLOAT16},
                                          {CDDP_FLOAT16, CDDP_FLOAT32},
                                          {CDDP_BFLOAT16, CDDP_FLOAT32}};
    static _Alignas(64) uint8_t in[4 * 40000], want[4 * 40000], got[4 * 40000];
    struct cdi_launch l;

    fill(in, sizeof in, 1);
    EACH(p, pairs)
    EACH(c, counts)
    EACH(a, shifts)
    EACH(b, shifts)
    {
        size_t to_size = cddp_dtype_size(pairs[p][1]), from_at = shifts[a] * cddp_dtype_size(pairs[p][0]);
        size_t to_at = shifts[b] * to_size;

        memset(got, 0xee, sizeof got);
        memset(want, 0xee, sizeof want);
        cr_assert_eq(cdi_element_cast(NULL, want + to_at, pairs[p][1], in + from_at, pairs[p][0], counts[c], 1, NULL),
                     0);
        cr_assert_eq(cdi_launch_cast(&l, N_SM, got + to_at, pairs[p][1], in + from_at, pairs[p][0], counts[c], 1, NULL),
                     0);
        cdi_launch_on_host(&l);
        cr_assert_eq(memcmp(want, got, sizeof got), 0, "pair %zu, count %zu, shifts %zu %zu", p, counts[c], a, b);
    }
}

Test(kernel, cast_with_a_factor_rounds_once)
{
    float in[] = {1.0f, 3.0f, -70000.0f, 1e-8f, INFINITY, 5.0f}, back[6];
    uint16_t half[6];
    struct cdi_launch l;

    cr_assert_eq(cdi_launch_cast(&l, N_SM, half, CDDP_FLOAT16, in, CDDP_FLOAT32, 6, 1.0f / 3, NULL), CDDP_OK);
    cdi_launch_on_host(&l);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(half[i], cdi_f16_of_float(in[i] * (1.0f / 3)));
    cr_assert_eq(cdi_launch_cast(&l, N_SM, back, CDDP_FLOAT32, half, CDDP_FLOAT16, 6, 4.0f, NULL), CDDP_OK);
    cdi_launch_on_host(&l);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(back[i], cdi_float_of_f16(half[i]) * 4.0f);
}

static bool is_nan(const uint8_t *x, cddp_dtype dtype)
{
    return cdi_nonfinite_worst(x, 1, dtype, cdi_nonfinite_inf(dtype)) == CDI_NAN;
}

Test(kernel, scale_gives_the_bits_of_the_cpu_backend)
{
    static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
    static const double factors[] = {1.0, 1.0 / 3, 0.25, -1e30, 0.0, INFINITY};
    static _Alignas(64) uint8_t want[8 * 31000], got[8 * 31000];
    struct cdi_launch l;

    EACH(t, types)
    EACH(f, factors)
    EACH(c, counts)
    EACH(a, shifts)
    {
        size_t size = cddp_dtype_size(types[t]);

        fill(want, sizeof want, 7);
        memcpy(got, want, sizeof got);
        cr_assert_eq(cdi_element_scale(NULL, want + shifts[a] * size, counts[c], types[t], factors[f], NULL), CDDP_OK);
        cr_assert_eq(cdi_launch_scale(&l, N_SM, got + shifts[a] * size, counts[c], types[t], factors[f], NULL),
                     CDDP_OK);
        cdi_launch_on_host(&l);
        for (size_t i = 0; i < sizeof got; i += size)
            cr_assert(memcmp(want + i, got + i, size) == 0 || (is_nan(want + i, types[t]) && is_nan(got + i, types[t])),
                      "type %zu, factor %g, element %zu", t, factors[f], i / size);
    }
}

Test(kernel, scale_writes_the_word_when_all_is_done)
{
    static float x[31000];
    uint32_t word = 0, arrived = 0;
    struct cdi_kernel_thread t = {.n_threads = CDI_KERNEL_THREADS};
    struct cdi_launch l;

    cr_assert_eq(cdi_launch_scale(&l, N_SM, x, 31000, CDDP_FLOAT32, 0.5, NULL), CDDP_OK);
    cdi_launch_scale_signals(&l, &word, 7, &arrived);
    cr_assert_gt(l.grid, 1);
    for (t.block = t.n_blocks = l.grid; t.block-- > 0;) /* in any order */
        for (t.thread = 0; t.thread < t.n_threads; t.thread++) {
            cr_assert_eq(word, 0);
            cdi_kernel_twins[CDI_KERNEL_SCALE].run(&t, &l.args);
        }
    cr_assert(word == 7 && arrived == 0, "and it is ready for the next launch");
}

Test(kernel, scaling_by_one_changes_no_bit)
{
    float x[] = {0, INFINITY, 1};
    const uint32_t signalling = 0xff800001u;
    struct cdi_launch l;

    memcpy(&x[2], &signalling, sizeof x[2]);
    cr_assert_eq(cdi_launch_scale(&l, N_SM, x, 3, CDDP_FLOAT32, 1, NULL), CDDP_OK);
    cdi_launch_on_host(&l);
    cr_assert_eq(cdi_bits_of_float(x[2]), signalling);
    cr_assert_eq(cdi_launch_scale(&l, N_SM, x, 3, CDDP_FLOAT32, 0, NULL), CDDP_OK);
    cdi_launch_on_host(&l);
    cr_assert_eq(cdi_bits_of_float(x[1]), 0x7fc00000u, "infinity times 0");
    cr_assert_eq(cdi_bits_of_float(x[2]), 0xffc00001u, "its own payload, made quiet");
}

/* Slices of many sizes, apart by odd gaps, some empty, more than one launch takes. */
static size_t make_slices(struct cdi_slice *slice, size_t n, uint8_t *memory, size_t odd)
{
    size_t at = odd, total = 0;

    for (size_t i = 0; i < n; i++) {
        size_t bytes = i % 7 == 3 ? 0 : i % 50 == 10 ? 3 * CDI_KERNEL_CHUNK + i : i * 37 % 1000;

        slice[i] = (struct cdi_slice){memory + at, bytes};
        at += bytes + i % 3 * odd;
        total += bytes;
    }
    return total;
}

static size_t launch_all(enum cdi_kernel kernel, uint8_t *flat, const struct cdi_slice *slice, size_t n)
{
    size_t launches = 0;

    while (n > 0) {
        struct cdi_launch l;
        size_t bytes, took = cdi_launch_pack(&l, kernel, N_SM, flat, slice, n, &bytes);

        cr_assert(took > 0 && took <= n);
        cdi_launch_on_host(&l);
        flat += bytes;
        slice += took;
        n -= took;
        launches++;
    }
    return launches;
}

Test(kernel, packs_many_slices_at_any_alignment)
{
    enum { N = 300, BYTES = 800000 };
    static _Alignas(64) uint8_t apart[BYTES], flat[BYTES], want[BYTES], back[BYTES];
    struct cdi_slice slice[N], to[N];

    for (size_t odd = 0; odd < 20; odd = odd * 3 + 1) {
        size_t total = make_slices(slice, N, apart, odd);

        make_slices(to, N, back, odd);
        cr_assert(total + N * odd < BYTES);
        fill(apart, sizeof apart, (uint32_t)odd);
        memset(flat, 0, sizeof flat);
        memset(back, 0, sizeof back);
        memset(want, 0, sizeof want);
        cr_assert_eq(cdi_element_pack(NULL, want + odd, slice, N, NULL), CDDP_OK);
        cr_assert_eq(launch_all(CDI_KERNEL_PACK, flat + odd, slice, N), 3);
        cr_assert_eq(memcmp(flat, want, BYTES), 0, "pack, odd %zu", odd);
        launch_all(CDI_KERNEL_UNPACK, flat + odd, to, N);
        memset(want, 0, sizeof want);
        for (size_t i = 0; i < N; i++)
            memcpy(want + ((uint8_t *)slice[i].data - apart), slice[i].data, slice[i].bytes);
        cr_assert_eq(memcmp(back, want, BYTES), 0, "unpack, odd %zu", odd);
    }
}

Test(kernel, pack_scales_like_the_cpu_backend)
{
    static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
    enum { N = 5 };
    static const size_t sizes[N] = {3, 0, 30001, 1, 4096}; /* elements; the large one is of several chunks */
    static _Alignas(64) uint8_t in[8 * 40000], want[8 * 40000], got[8 * 40000];

    fill(in, sizeof in, 9);
    EACH(t, types)
    EACH(a, shifts)
    EACH(b, shifts)
    {
        size_t size = cddp_dtype_size(types[t]), at = shifts[a] * size, took;
        struct cdi_slice slice[N];
        struct cdi_launch l;
        size_t bytes;

        for (size_t i = 0; i < N; at += (sizes[i++] + 1) * size)
            slice[i] = (struct cdi_slice){i == 3 ? NULL : in + at, sizes[i] * size};
        memset(got, 0xee, sizeof got);
        memset(want, 0xee, sizeof want);
        cr_assert_eq(cdi_element_pack_scaled(NULL, want + shifts[b] * size, slice, N, types[t], 0.3, NULL), CDDP_OK);
        took = cdi_launch_pack(&l, CDI_KERNEL_PACK, N_SM, got + shifts[b] * size, slice, N, &bytes);
        cr_assert(took == N && bytes == 34101 * size);
        cr_assert_eq(cdi_launch_pack_scaled(&l, types[t], 0.3, NULL), CDDP_OK);
        cdi_launch_on_host(&l);
        cr_assert_eq(memcmp(want, got, sizeof got), 0, "type %zu, shifts %zu %zu", t, a, b);
    }
    cr_assert_eq(cdi_launch_pack_scaled(&(struct cdi_launch){0}, CDDP_INT32, 0.3, NULL), CDDP_E_INVALID);
}

Test(kernel, pack_leaves_out_flagged_slices)
{
    uint8_t apart[3] = {1, 2, 3}, flat[4] = {9, 9, 9, 9};
    const uint8_t flags[] = {0, 4, 0, 1}, want[4] = {9, 9, 2, 9};
    const uint32_t of[] = {1, 0, 2, 3}; /* that of the gap is not checked */
    const struct cdi_slice slice[] = {{apart, 1}, {NULL, 1}, {apart + 1, 1}, {apart + 2, 1}};
    struct cdi_launch l;
    size_t bytes, taken = cdi_launch_pack(&l, CDI_KERNEL_PACK, N_SM, flat, slice, 4, &bytes);

    cdi_launch_pack_unless(&l, slice, taken, flags, of);
    cdi_launch_on_host(&l);
    cr_assert_arr_eq(flat, want, sizeof want);
}

Test(kernel, a_gap_between_slices_is_neither_read_nor_written)
{
    uint8_t apart[2][3] = {{1, 2, 3}, {4, 5, 6}}, flat[10], want[10] = {1, 2, 3, 9, 9, 9, 4, 5, 6, 9}, host[10];
    struct cdi_slice slice[] = {{apart[0], 3}, {NULL, 3}, {apart[1], 3}};

    memset(flat, 9, sizeof flat);
    memset(host, 9, sizeof host);
    cr_assert_eq(launch_all(CDI_KERNEL_PACK, flat, slice, 3), 1);
    cr_assert_eq(cdi_element_pack(NULL, host, slice, 3, NULL), CDDP_OK);
    cr_assert_arr_eq(flat, want, sizeof want);
    cr_assert_arr_eq(host, want, sizeof want);
    memset(apart, 0, sizeof apart);
    cr_assert_eq(launch_all(CDI_KERNEL_UNPACK, flat, slice, 3), 1);
    cr_assert(apart[0][2] == 3 && apart[1][0] == 4 && apart[1][2] == 6);
    memset(apart, 0, sizeof apart);
    cr_assert_eq(cdi_element_unpack(NULL, slice, 3, flat, NULL), CDDP_OK);
    cr_assert(apart[0][2] == 3 && apart[1][0] == 4 && apart[1][2] == 6);
}

Test(kernel, nothing_to_do_needs_no_launch)
{
    struct cdi_slice empty[] = {{NULL, 0}, {NULL, 0}};
    struct cdi_launch l;
    size_t bytes;

    cr_assert_eq(cdi_launch_pack(&l, CDI_KERNEL_PACK, N_SM, NULL, empty, 2, &bytes), 2);
    cr_assert_eq(l.grid, 0);
    cr_assert_eq(bytes, 0);
    cr_assert_eq(cdi_launch_scale(&l, N_SM, NULL, 0, CDDP_FLOAT32, 2, NULL), CDDP_OK);
    cr_assert_eq(l.grid, 0);
}

Test(kernel, a_grid_fills_the_device_and_no_more)
{
    struct cdi_launch l;

    cr_assert_eq(cdi_launch_scale(&l, 132, NULL, (size_t)1 << 40, CDDP_FLOAT32, 2, NULL), CDDP_OK);
    cr_assert_eq(l.grid, 132 * 8);
    cr_assert_eq(cdi_launch_scale(&l, 132, NULL, CDI_KERNEL_THREADS * CDI_KERNEL_UNIT + 1, CDDP_FLOAT32, 2, NULL), 0);
    cr_assert_eq(l.grid, 2);
}

Test(kernel, rejects_unsupported_types_by_name)
{
    struct cdi_launch l;
    struct cdi_error err = {0};

    cr_assert_eq(cdi_launch_cast(&l, 1, NULL, CDDP_FLOAT64, NULL, CDDP_FLOAT32, 1, 1, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "cannot cast float32 to float64");
    cr_assert_eq(cdi_launch_cast(&l, 1, NULL, CDDP_FLOAT16, NULL, CDDP_BFLOAT16, 1, 1, &err), CDDP_E_INVALID);
    cr_assert_eq(cdi_launch_cast(&l, 1, NULL, CDDP_FLOAT32, NULL, CDDP_FLOAT32, 1, 1, &err), CDDP_E_INVALID);
    cr_assert_eq(cdi_launch_scale(&l, 1, NULL, 1, CDDP_INT32, 2, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "cannot scale int32");
}

Test(kernel, twins_report_their_memory)
{
    uint16_t half[3];
    float wide[3];
    struct cdi_kernel_range r[2];
    struct cdi_launch l;

    for (int k = 0; k < CDI_N_KERNELS; k++) {
        cr_assert_str_eq(cdi_kernel_twins[k].name, cdi_kernel_name((enum cdi_kernel)k));
    }
    cr_assert_null(cdi_kernel_name(CDI_N_KERNELS));
    cr_assert_eq(cdi_launch_cast(&l, 1, half, CDDP_FLOAT16, wide, CDDP_FLOAT32, 3, 1, NULL), CDDP_OK);
    cr_assert_eq(cdi_kernel_twins[CDI_KERNEL_CAST].ranges(&l.args, r, 2), 2);
    cr_assert(r[0].base == wide && r[0].bytes == sizeof wide && !r[0].written);
    cr_assert(r[1].base == half && r[1].bytes == sizeof half && r[1].written);
    cr_assert_eq(cdi_kernel_twins[CDI_KERNEL_CAST].ranges(&l.args, NULL, 0), 2);
}
