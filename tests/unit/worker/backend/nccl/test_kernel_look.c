/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's kernels that look for numbers that are not finite in what they pack, cast or scale, by their twins: they
 * write what the kernels write that do not look, and find what the CPU's search finds.
 */
#include "tests/support/kernel_twin.h"

#include "hygiene.h"
#include "numbers.h"
#include "worker/backend/host_elementwise.h"

#include <math.h>

CDI_SUITE(kernel_look);

enum { N_SM = 3, ROOM = 20000, PARTS = 500, LOW = 0x1234500 };

static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
static const size_t counts[] = {1, 3, 4, 5, 1023, 4099, 19001};
static _Alignas(64) uint8_t in[8 * ROOM + 64], same[8 * ROOM + 64], out[8 * ROOM + 64], want[8 * ROOM + 64];
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

static uint32_t state = 1;

static uint32_t draw(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(state >> 8) * below >> 24);
}

/* Finite numbers, and n bad ones somewhere. */
static void fill(cddp_dtype t, uint8_t *x, size_t count, size_t n)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY, 70000, 1e300};

    for (size_t k = 0; k < count; k++)
        number_put(t, x, k, (double)draw(1000) / 8 - 60);
    for (size_t k = 0; k < n; k++)
        number_put(t, x, draw((uint32_t)count), bad[draw(t == CDDP_FLOAT64 ? 5 : 4)]);
}

/* Parts of 1 to `longest` elements, with gaps now and then; keys in any order. Returns their number. */
static size_t make_parts(struct cdi_look_part *part, size_t most, size_t count, uint32_t longest)
{
    size_t n = 0, at = draw(3);

    while (n < most && at < count) {
        size_t take = 1 + draw(longest);

        take = take < count - at ? take : count - at;
        part[n++] = (struct cdi_look_part){at, at + take, 1 + draw(1000)};
        at += take + (draw(3) == 0 ? draw(20) : 0);
    }
    return n;
}

static uint64_t expected(const struct cdi_look *look, const uint8_t *x, cddp_dtype t, uint64_t word)
{
    for (size_t k = 0; k < look->n; k++) {
        const struct cdi_look_part *p = &look->part[k];
        uint64_t kind =
            (uint64_t)cdi_nonfinite_worst(x + p->begin * cddp_dtype_size(t), p->end - p->begin, t, look->limit);
        uint64_t found = (uint64_t)p->key << 32 | LOW | kind;

        if (kind != CDI_FINITE && found > word)
            word = found;
    }
    return word;
}

static void cast_looking(const struct cdi_look *look, uint8_t *to, cddp_dtype to_type, const uint8_t *from,
                         cddp_dtype from_type, size_t count, float factor)
{
    struct cdi_launch l;

    for (size_t at = 0, part = 0, n; at < count; at += n) {
        n = cdi_launch_reach(look, part, at, count);
        cr_assert(n > 0 && n <= count - at);
        cr_assert_eq(cdi_launch_cast(&l, N_SM, to + at * cddp_dtype_size(to_type), to_type,
                                     from + at * cddp_dtype_size(from_type), from_type, n, factor, NULL),
                     CDDP_OK);
        part += cdi_launch_looks(&l, look, part, at);
        cdi_launch_on_host(&l);
    }
}

Test(kernel_look, casts_look_and_cast)
{
    static const cddp_dtype pairs[][2] = {{CDDP_FLOAT32, CDDP_FLOAT16},
                                          {CDDP_FLOAT32, CDDP_BFLOAT16},
                                          {CDDP_FLOAT16, CDDP_FLOAT32},
                                          {CDDP_BFLOAT16, CDDP_FLOAT32}};
    static struct cdi_look_part part[PARTS];
    size_t n_found = 0, n_clean = 0;

    EACH(p, pairs)
    EACH(c, counts)
    for (int round = 0; round < 24; round++) {
        size_t shift = draw(4), from_at = shift * cddp_dtype_size(pairs[p][0]),
               to_at = (shift + draw(2)) * cddp_dtype_size(pairs[p][1]);
        const float factor = round % 2 == 0 ? 1 : 0.25f;
        uint64_t word = draw(4) == 0 ? (uint64_t)500 << 32 : 0, before = word;
        struct cdi_look look = {.word = &word,
                                .limit = cdi_nonfinite_limit(pairs[p][0], pairs[p][1], (double)factor),
                                .low = LOW,
                                .part = part};

        look.n = make_parts(part, round % 3 == 0 ? 3 : PARTS, counts[c], round % 3 == 1 ? 3 : 4000);
        fill(pairs[p][0], in + from_at, counts[c], draw(4));
        memset(out, 0xee, sizeof out);
        memset(want, 0xee, sizeof want);
        cr_assert_eq(
            cdi_element_cast(NULL, want + to_at, pairs[p][1], in + from_at, pairs[p][0], counts[c], factor, NULL), 0);
        cast_looking(&look, out + to_at, pairs[p][1], in + from_at, pairs[p][0], counts[c], factor);
        cr_assert_eq(memcmp(want, out, sizeof out), 0, "pair %zu, count %zu, round %d", p, counts[c], round);
        cr_assert_eq(word, expected(&look, in + from_at, pairs[p][0], before), "pair %zu, count %zu, round %d", p,
                     counts[c], round);
        n_found += word != before;
        n_clean += word == before;
    }
    cr_assert(n_found > 100 && n_clean > 100, "%zu and %zu", n_found, n_clean);
}

Test(kernel_look, scales_look_at_what_they_read)
{
    static struct cdi_look_part part[PARTS];
    struct cdi_launch l;

    EACH(t, types)
    EACH(c, counts)
    for (int round = 0; round < 24; round++) {
        size_t size = cddp_dtype_size(types[t]), from = draw(4) * size;
        uint64_t word = 0, launches = 0;
        uint32_t arrived = 0, signal = 0;
        struct cdi_look look = {.word = &word, .limit = cdi_nonfinite_inf(types[t]), .low = LOW, .part = part};

        look.n = make_parts(part, PARTS, counts[c], round % 3 == 1 ? 3 : 4000);
        fill(types[t], in + from, counts[c], draw(4));
        memcpy(out, in, sizeof out);
        memcpy(want, in, sizeof want);
        cr_assert_eq(cdi_element_scale(NULL, want + from, counts[c], types[t], 0.5, NULL), CDDP_OK);
        for (size_t at = 0, k = 0, n; at < counts[c]; at += n) {
            n = cdi_launch_reach(&look, k, at, counts[c]);
            cr_assert_eq(cdi_launch_scale(&l, N_SM, out + from + at * size, n, types[t], 0.5, NULL), CDDP_OK);
            k += cdi_launch_looks(&l, &look, k, at);
            if (at + n == counts[c])
                cdi_launch_scale_signals(&l, &signal, 7, &arrived);
            cr_assert_eq(signal, 0, "only the last launch writes it");
            cdi_launch_on_host(&l);
            launches++;
        }
        cr_assert_eq(launches, (look.n + CDI_KERNEL_PARTS - 1) / CDI_KERNEL_PARTS + (look.n == 0));
        cr_assert_eq(signal, 7);
        cr_assert_eq(arrived, 0);
        cr_assert_eq(memcmp(want, out, sizeof out), 0, "type %zu, count %zu, round %d", t, counts[c], round);
        cr_assert_eq(word, expected(&look, in + from, types[t], 0), "type %zu, count %zu, round %d", t, counts[c],
                     round);
    }
}

/* Garbage between gradients does not count: a new plan may leave an old gradient's numbers there. */
Test(kernel_look, gaps_do_not_count)
{
    static const struct cdi_look_part part[] = {{4, 8, 9}, {12, 13, 7}, {30, 40, 8}};
    static float x[64];
    struct cdi_launch l;

    for (size_t k = 0; k < 64; k++) {
        bool inside = (k >= 4 && k < 8) || k == 12 || (k >= 30 && k < 40);
        uint64_t word = 0;
        const struct cdi_look look = {.word = &word, .limit = 0x7f800000u, .low = LOW, .part = part, .n = 3};

        memset(x, 0, sizeof x);
        x[k] = NAN;
        cr_assert_eq(cdi_launch_scale(&l, N_SM, x, 64, CDDP_FLOAT32, 0.5, NULL), CDDP_OK);
        cr_assert_eq(cdi_launch_looks(&l, &look, 0, 0), 3);
        cdi_launch_on_host(&l);
        cr_assert_eq(word != 0, inside, "element %zu", k);
        cr_assert_eq(word >> 32, !inside ? 0 : k < 8 ? 9 : k == 12 ? 7 : 8, "element %zu", k);
    }
}

static void pack_looking(const struct cdi_slice *slice, size_t n, const struct cdi_look *look, const uint32_t *key,
                         cddp_dtype t, double factor)
{
    uint8_t *at = out;

    while (n > 0) {
        struct cdi_launch l;
        size_t bytes, taken = cdi_launch_pack(&l, CDI_KERNEL_PACK, N_SM, at, slice, n, &bytes);

        cr_assert_eq(cdi_launch_pack_scaled(&l, t, factor, NULL), CDDP_OK);
        cdi_launch_pack_looks(&l, slice, taken, look, key);
        cdi_launch_on_host(&l);
        slice += taken;
        key += taken;
        n -= taken;
        at += bytes;
    }
}

/* Slices of all sizes, some empty, with gaps in the packed memory, more than a launch takes, and one of many chunks. */
Test(kernel_look, packs_look_and_pack)
{
    enum { SLICES = 250 };
    static struct cdi_slice slice[SLICES];
    static uint32_t key[SLICES];

    EACH(t, types)
    for (int round = 0; round < 24; round++) {
        size_t size = cddp_dtype_size(types[t]), used = draw(4);
        double factor = round % 2 == 0 ? 1 : 0.5;
        uint64_t word = 0, most = 0;
        const struct cdi_look look = {.word = &word, .limit = cdi_nonfinite_inf(types[t]), .low = LOW};

        fill(types[t], in, ROOM, draw(6));
        for (size_t i = 0; i < SLICES; i++) {
            size_t count = i == 100 ? 12000 : draw(10) == 0 ? 0 : draw(50);
            bool gap = i > 0 && i < SLICES - 1 && draw(10) == 0;
            uint64_t kind = 0, found;

            count = count < ROOM - used ? count : ROOM - used;
            key[i] = 1 + draw(1000);
            slice[i] = (struct cdi_slice){gap ? NULL : in + used * size, count * size};
            if (!gap)
                kind = (uint64_t)cdi_nonfinite_worst(slice[i].data, count, types[t], look.limit);
            found = kind != 0 ? (uint64_t)key[i] << 32 | LOW | kind : 0;
            most = found > most ? found : most;
            used += gap ? 0 : count + draw(2);
            used = used < ROOM ? used : ROOM;
        }
        memset(out, 0xee, sizeof out);
        memset(want, 0xee, sizeof want);
        memcpy(same, in, sizeof in);
        cr_assert_eq(cdi_element_pack_scaled(NULL, want, slice, SLICES, types[t], factor, NULL), CDDP_OK);
        pack_looking(slice, SLICES, &look, key, types[t], factor);
        cr_assert_eq(memcmp(want, out, sizeof out), 0, "type %zu, round %d", t, round);
        cr_assert_eq(memcmp(same, in, sizeof in), 0);
        cr_assert_eq(word, most, "type %zu, round %d", t, round);
    }
}

/* Without a factor pack copies from any address, and looks there. */
Test(kernel_look, packs_look_at_any_address)
{
    const uint32_t key = 3;

    EACH(t, types)
    for (size_t shift = 0; shift < 9; shift++)
        for (size_t bad = 0; bad < 3; bad++) {
            size_t bytes = 5001 * cddp_dtype_size(types[t]);
            const struct cdi_slice one = {in + shift, bytes};
            uint64_t word = 0;
            const struct cdi_look look = {.word = &word, .limit = cdi_nonfinite_inf(types[t]), .low = LOW};

            fill(types[t], same, 5001, 0);
            if (bad > 0)
                number_put(types[t], same, bad == 1 ? 5000 : 77, bad == 1 ? NAN : -INFINITY);
            memcpy(in + shift, same, bytes);
            pack_looking(&one, 1, &look, &key, types[t], 1);
            cr_assert_eq(memcmp(out, same, bytes), 0, "type %zu, shift %zu", t, shift);
            cr_assert_eq(word, bad == 0 ? 0 : (uint64_t)key << 32 | LOW | (bad == 1 ? CDI_NAN : CDI_INF),
                         "type %zu, shift %zu", t, shift);
        }
}
