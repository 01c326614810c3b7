/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel on the GPU against its twin on the host, bit for bit: types, counts, alignments; and the bytes per
 * second of each. kernels [--quick | --speeds]; one line of JSON on stdout. Status 1: a difference; 77: there is no
 * GPU.
 */
#include "card.h"

#include "tests/support/kernel_twin.h"
#include "worker/base/dtype.h"
#include "worker/math/optim_update.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICES 300

static const size_t counts[] = {0, 1, 3, 4, 5, 8, 31, 257, 1024, 4099, 65536, 1000003};
static const size_t shifts[] = {0, 1, 2, 4};
static const cddp_dtype floats[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

/* The same bytes on the host and on the GPU, before and after. */
struct twin {
    uint8_t *host, *back;
    uint8_t *card; /* device memory; never read here */
};

struct check {
    struct card card;
    struct twin in, out;
    size_t room;      /* bytes of each buffer that is compared */
    size_t most;      /* the largest count in the tests */
    size_t big_slice; /* chunks of the largest slices */
    long done;
};

static CUdeviceptr address(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

static struct twin make_twin(const struct check *c)
{
    struct twin t = {.host = malloc(c->room), .back = malloc(c->room)};
    CUdeviceptr p;

    if (t.host == NULL || t.back == NULL)
        card_die("out of memory");
    CARD(&c->card, cuMemAlloc, &p, c->room);
    t.card = (uint8_t *)(uintptr_t)p;
    return t;
}

static void free_twin(const struct check *c, struct twin *t)
{
    CARD(&c->card, cuMemFree, address(t->card));
    free(t->host);
    free(t->back);
}

/* Fills both sides with any bits, and often with values that are hard to round. */
static void fill(const struct check *c, struct twin *t, uint32_t seed)
{
    static const uint32_t hard[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0x477ff000u, 0x33000000u,
                                    0x33000001u, 0x00000001u, 0x80000000u, 0x387fffffu, 0x3f808000u, 0x7f7fffffu,
                                    0x7ff00000u, 0xfff80000u, 0x00007c01u, 0x7c007c00u, 0x0001ffffu, 0x00400000u};
    uint32_t *word = (uint32_t *)(void *)t->host;

    for (size_t i = 0; i < c->room / 4; i++) {
        seed = seed * 1664525u + 1013904223u;
        word[i] = seed >> 30 == 0 ? hard[(seed >> 8) % (sizeof hard / sizeof hard[0])] : seed ^ seed >> 13;
    }
    CARD(&c->card, cuMemcpyHtoDAsync, address(t->card), t->host, c->room, c->card.stream);
}

/* Compares both sides after the launches. */
static void compare(struct check *c, struct twin *t, const char *what, const char *from, const char *to, size_t count)
{
    CARD(&c->card, cuMemcpyDtoHAsync, t->back, address(t->card), c->room, c->card.stream);
    CARD(&c->card, cuStreamSynchronize, c->card.stream);
    c->done++;
    if (memcmp(t->host, t->back, c->room) == 0)
        return;
    for (size_t i = 0; i < c->room; i++)
        if (t->host[i] != t->back[i])
            card_die("%s %s %s of %zu: byte %zu is %02x on the GPU and %02x in the twin", what, from, to, count, i,
                     t->back[i], t->host[i]);
}

static void check_ok(cddp_status status)
{
    if (status != CDDP_OK)
        card_die("a launch failed: status %d", (int)status);
}

static void check_cast(struct check *c, cddp_dtype from, cddp_dtype to, size_t count, size_t a, size_t b, float factor)
{
    size_t in = a * cddp_dtype_size(from), out = b * cddp_dtype_size(to);
    struct cdi_launch l;

    if (count > c->most)
        return;
    check_ok(cdi_launch_cast(&l, c->card.n_sm, c->out.card + out, to, c->in.card + in, from, count, factor, NULL));
    card_launch(&c->card, c->card.stream, &l);
    check_ok(cdi_launch_cast(&l, c->card.n_sm, c->out.host + out, to, c->in.host + in, from, count, factor, NULL));
    cdi_launch_on_host(&l);
    compare(c, &c->out, "cast", cdi_dtype_name(from), cdi_dtype_name(to), count);
}

static void check_casts(struct check *c)
{
    static const cddp_dtype narrow[] = {CDDP_FLOAT16, CDDP_BFLOAT16};

    fill(c, &c->in, 1);
    fill(c, &c->out, 2);
    EACH(t, narrow)
    EACH(n, counts)
    EACH(a, shifts)
    EACH(b, shifts)
    {
        const float factor = (a + b) % 2 != 0 ? 1.0f / 3 : 1;

        check_cast(c, CDDP_FLOAT32, narrow[t], counts[n], shifts[a], shifts[b], factor);
        check_cast(c, narrow[t], CDDP_FLOAT32, counts[n], shifts[a], shifts[b], factor);
    }
}

static void swap(struct check *c)
{
    const struct twin in = c->in;

    c->in = c->out;
    c->out = in;
}

/* All 65536 values of each 16-bit type, both ways. */
static void check_all_narrow(struct check *c)
{
    static const cddp_dtype narrow[] = {CDDP_FLOAT16, CDDP_BFLOAT16};

    EACH(t, narrow)
    {
        for (uint32_t i = 0; i < 65536; i++)
            ((uint16_t *)(void *)c->in.host)[i] = (uint16_t)i;
        CARD(&c->card, cuMemcpyHtoDAsync, address(c->in.card), c->in.host, 2 * 65536, c->card.stream);
        check_cast(c, narrow[t], CDDP_FLOAT32, 65536, 0, 0, 1);
        swap(c); /* the result of that, converted back */
        check_cast(c, CDDP_FLOAT32, narrow[t], 65536, 0, 0, 1);
        swap(c);
    }
}

static void check_scales(struct check *c)
{
    static const double factors[] = {1.0, 1.0 / 3, 0.25, -1e30, 0.0};
    struct cdi_launch l;

    EACH(t, floats)
    EACH(f, factors)
    {
        fill(c, &c->out, (uint32_t)(t * 10 + f));
        EACH(n, counts)
        EACH(a, shifts)
        {
            size_t at = shifts[a] * cddp_dtype_size(floats[t]);

            if (counts[n] > c->most)
                continue;
            check_ok(cdi_launch_scale(&l, c->card.n_sm, c->out.card + at, counts[n], floats[t], factors[f], NULL));
            card_launch(&c->card, c->card.stream, &l);
            check_ok(cdi_launch_scale(&l, c->card.n_sm, c->out.host + at, counts[n], floats[t], factors[f], NULL));
            cdi_launch_on_host(&l);
            compare(c, &c->out, "scale", cdi_dtype_name(floats[t]), "", counts[n]);
        }
    }
}

/* The word that the host reads, and after it the count of blocks: only the last block writes it. */
static void check_telling(struct check *c)
{
    struct cdi_launch l;

    memset(c->in.host, 0, c->room);
    CARD(&c->card, cuMemcpyHtoDAsync, address(c->in.card), c->in.host, c->room, c->card.stream);
    fill(c, &c->out, 8);
    EACH(n, counts)
    {
        if (counts[n] > c->most || counts[n] == 0)
            continue;
        check_ok(cdi_launch_scale(&l, c->card.n_sm, c->out.card, counts[n], CDDP_FLOAT32, 0.5, NULL));
        cdi_launch_scale_signals(&l, c->in.card + 4, (uint32_t)n + 1, c->in.card);
        card_launch(&c->card, c->card.stream, &l);
        check_ok(cdi_launch_scale(&l, c->card.n_sm, c->out.host, counts[n], CDDP_FLOAT32, 0.5, NULL));
        cdi_launch_scale_signals(&l, c->in.host + 4, (uint32_t)n + 1, c->in.host);
        cdi_launch_on_host(&l);
        compare(c, &c->out, "scale", "float32", " that tells", counts[n]);
        compare(c, &c->in, "the word of scale", "", "", counts[n]);
    }
}

/* With the limit of infinity, with one that many numbers exceed, and with one that none does. */
static void check_finds(struct check *c)
{
    static const uint64_t word_of[1] = {0x4200}, infinity_of[] = {0x7c00, 0x7f80, 0x7f800000, 0x7ff0000000000000};
    struct cdi_launch l;

    fill(c, &c->in, 5);
    fill(c, &c->out, 6);
    EACH(t, floats)
    EACH(n, counts)
    EACH(a, shifts)
    for (int k = 0; k < 3; k++) {
        size_t at = shifts[a] * cddp_dtype_size(floats[t]);
        uint64_t inf = infinity_of[t], limit = k == 0 ? inf : k == 1 ? inf / 2 : UINT64_MAX;
        struct cdi_span there = {c->in.card + at, counts[n], floats[t]}, here = {c->in.host + at, counts[n], floats[t]};

        if (counts[n] > c->most || counts[n] == 0)
            continue;
        memset(c->out.host, 0, sizeof word_of);
        CARD(&c->card, cuMemcpyHtoDAsync, address(c->out.card), c->out.host, sizeof word_of, c->card.stream);
        (void)cdi_launch_find(&l, c->card.n_sm, &there, word_of, 1, limit, (uint64_t *)(void *)c->out.card);
        card_launch(&c->card, c->card.stream, &l);
        (void)cdi_launch_find(&l, c->card.n_sm, &here, word_of, 1, limit, (uint64_t *)(void *)c->out.host);
        cdi_launch_on_host(&l);
        compare(c, &c->out, "find", cdi_dtype_name(floats[t]), "", counts[n]);
    }
}

/* The sums of one slice at each alignment, and those of the CPU. */
static void check_hashes(struct check *c)
{
    struct cdi_launch l;

    fill(c, &c->in, 5);
    EACH(n, counts)
    for (size_t shift = 0; shift < 17; shift += shift < 2 ? 1 : 3) {
        const size_t bytes = 4 * counts[n] + shift % 8;
        const struct cdi_slice there = {c->in.card + shift, bytes}, here = {c->in.host + shift, bytes};
        uint64_t *sum = (uint64_t *)(void *)c->out.host;

        if (counts[n] > c->most)
            continue;
        memset(c->out.host, 0, c->room);
        CARD(&c->card, cuMemcpyHtoDAsync, address(c->out.card), c->out.host, c->room, c->card.stream);
        (void)cdi_launch_hash(&l, c->card.n_sm, &there, 1, 2, (uint64_t *)(void *)c->out.card);
        card_launch(&c->card, c->card.stream, &l);
        (void)cdi_launch_hash(&l, c->card.n_sm, &here, 1, 2, sum);
        cdi_launch_on_host(&l);
        compare(c, &c->out, "hash", "", "", bytes);
        if (sum[2] != cdi_hash64_sum(here.data, bytes, 0))
            card_die("hash of %zu bytes: the CPU's differs", bytes);
    }
}

/* Slices of many sizes, some empty, with gaps of `odd` bytes. Returns the bytes that they hold. */
static size_t make_slices(const struct check *c, struct cdi_slice *slice, uint8_t *memory, size_t odd)
{
    size_t at = odd, total = 0;

    for (size_t i = 0; i < SLICES; i++) {
        size_t bytes = i % 7 == 3 ? 0 : i % 50 == 10 ? c->big_slice * CDI_KERNEL_CHUNK + i : i * 37 % 1000;

        slice[i] = (struct cdi_slice){memory + at, bytes};
        at += bytes + i % 3 * odd;
        total += bytes;
    }
    return total;
}

static void check_pack(struct check *c, enum cdi_kernel kernel, size_t odd)
{
    struct cdi_slice on_card[SLICES], on_host[SLICES];
    struct twin *apart = kernel == CDI_KERNEL_PACK ? &c->in : &c->out;
    struct twin *flat = kernel == CDI_KERNEL_PACK ? &c->out : &c->in;
    size_t total = make_slices(c, on_card, apart->card, odd), at = odd, bytes;

    if (total + SLICES * odd > c->room)
        card_die("the slices do not fit");
    make_slices(c, on_host, apart->host, odd);
    for (size_t i = 0, took; i < SLICES; i += took, at += bytes) {
        struct cdi_launch l;

        took = cdi_launch_pack(&l, kernel, c->card.n_sm, flat->card + at, on_card + i, SLICES - i, &bytes);
        card_launch(&c->card, c->card.stream, &l);
        (void)cdi_launch_pack(&l, kernel, c->card.n_sm, flat->host + at, on_host + i, SLICES - i, &bytes);
        cdi_launch_on_host(&l);
    }
    compare(c, &c->out, cdi_kernel_name(kernel), "", "", total);
}

static void check_packs(struct check *c)
{
    fill(c, &c->in, 8);
    fill(c, &c->out, 9);
    for (size_t odd = 0; odd < 20; odd = odd * 3 + 1) {
        check_pack(c, CDI_KERNEL_PACK, odd);
        check_pack(c, CDI_KERNEL_UNPACK, odd);
    }
}

/* The GPU's numbers are in `out`, as norm (backend.h) has them. */
static void check_tally(struct check *c, cddp_dtype t, size_t count, size_t shift, bool largest)
{
    const size_t at = shift * cddp_dtype_size(t), room = CDI_NORM_ROOM * sizeof(double);
    const size_t cut = count / 3 / 32 * 32, after = at + cut * cddp_dtype_size(t); /* between lines */
    const struct cdi_span on_card[] = {{c->in.card + at, cut, t}, {c->in.card + after, count - cut, t}};
    const struct cdi_span on_host[] = {{c->in.host + at, cut, t}, {c->in.host + after, count - cut, t}};
    const uint32_t n_sm = shift == 0 ? 1 : c->card.n_sm; /* of few blocks each has many chunks */
    const struct cdi_clip how = {1, 0.5, largest, NULL};
    double *card = (double *)(void *)c->out.card, *host = (double *)(void *)c->out.host;
    uint64_t *card_words = (uint64_t *)(void *)(card + 1), *host_words = (uint64_t *)(void *)(host + 1);
    struct cdi_launch l;

    memset(c->out.host, 0, room);
    CARD(&c->card, cuMemsetD8Async, address(card), 0, room, c->card.stream);
    (void)cdi_launch_tally(&l, n_sm, on_card, 2, largest, card_words + CDI_EXACT_WORDS);
    card_launch(&c->card, c->card.stream, &l);
    (void)cdi_launch_tally(&l, n_sm, on_host, 2, largest, host_words + CDI_EXACT_WORDS);
    cdi_launch_on_host(&l);
    compare(c, &c->out, "tally", cdi_dtype_name(t), largest ? "largest" : "squares", count);
    cdi_launch_fold(&l, card_words + CDI_EXACT_WORDS, card_words, largest, card);
    card_launch(&c->card, c->card.stream, &l);
    cdi_launch_fold(&l, host_words + CDI_EXACT_WORDS, host_words, largest, host);
    cdi_launch_on_host(&l);
    compare(c, &c->out, "fold", cdi_dtype_name(t), largest ? "largest" : "squares", count);
    (void)cdi_launch_clip(&l, c->card.n_sm, on_card, 2, &how, card);
    card_launch(&c->card, c->card.stream, &l);
    (void)cdi_launch_clip(&l, c->card.n_sm, on_host, 2, &how, host);
    cdi_launch_on_host(&l);
    compare(c, &c->in, "clip", cdi_dtype_name(t), "", count);
}

/* Fills with any bits, or with finite numbers. */
static void check_tallies(struct check *c)
{
    fill(c, &c->out, 12);
    EACH(t, floats)
    EACH(n, counts)
    EACH(a, shifts)
    for (int tame = 0; tame < 2; tame++) {
        if (counts[n] > c->most)
            continue;
        fill(c, &c->in, (uint32_t)(n * 4 + a));
        for (size_t i = 0; i < c->room && tame; i++)
            c->in.host[i] &= 0xbf; /* no exponent is all ones */
        CARD(&c->card, cuMemcpyHtoDAsync, address(c->in.card), c->in.host, c->room, c->card.stream);
        check_tally(c, floats[t], counts[n], shifts[a], n % 2 != 0);
    }
}

/* The launches of a step on one side: parameter, gradient, state and float32 copies follow one another in `in`. */
static void optim_step(struct check *c, const struct cdi_optim_rule *r, cddp_dtype t, bool long_g, size_t count,
                       size_t shift, bool on_card)
{
    const size_t part = c->room / 5 / 64 * 64;
    uint8_t *in = on_card ? c->in.card : c->in.host, *out = on_card ? c->out.card : c->out.host;
    const int n_states = r->kind != CDDP_OPTIM_SGD ? 2 : r->momentum != 0;
    const bool narrow = t == CDDP_FLOAT16 || t == CDDP_BFLOAT16;
    struct cdi_optim_piece piece = {.w = in + shift * cddp_dtype_size(t),
                                    .g = in + part,
                                    .state = {n_states > 0 ? in + 2 * part : NULL, n_states > 1 ? in + 3 * part : NULL},
                                    .master = narrow ? (float *)(void *)(in + 4 * part) : NULL,
                                    .count = count,
                                    .dtype = t,
                                    .long_g = long_g,
                                    .row = 1};
    struct cdi_optim_step s = {.rule = r, .rows = (struct cdi_optim_row *)(void *)out, .n_rows = 2, .publish = true};
    struct cdi_launch l;

    (void)cdi_launch_count(&l, &s, 0);
    if (on_card)
        card_launch(&c->card, c->card.stream, &l);
    else
        cdi_launch_on_host(&l);
    for (int collects = 0; collects <= long_g; collects++) {
        s.collect = collects != 0;
        (void)cdi_launch_update(&l, c->card.n_sm, &s, &piece, 1);
        if (on_card)
            card_launch(&c->card, c->card.stream, &l);
        else
            cdi_launch_on_host(&l);
        piece.g = in + 2 * part; /* values that are not those of w */
    }
}

static void check_optim(struct check *c, const struct cdi_optim_rule *r, cddp_dtype t, bool long_g, size_t count,
                        size_t shift)
{
    const size_t part = c->room / 5 / 64 * 64;
    const struct cdi_optim_row row = {.lr_factor = 0.5, .weight_decay = r->weight_decay};

    fill(c, &c->in, (uint32_t)count);
    for (size_t i = 0; i < c->room; i++)
        c->in.host[i] &= 0xbf; /* below 2, and no NaN */
    memset(c->in.host + 2 * part, 0, 2 * part);
    memset(c->out.host, 0, c->room);
    memcpy(c->out.host, &row, sizeof row);
    memcpy(c->out.host + sizeof row, &row, sizeof row);
    CARD(&c->card, cuMemcpyHtoDAsync, address(c->in.card), c->in.host, c->room, c->card.stream);
    CARD(&c->card, cuMemcpyHtoDAsync, address(c->out.card), c->out.host, c->room, c->card.stream);
    for (int step = 0; step < 3; step++) {
        optim_step(c, r, t, long_g, count, shift, true);
        optim_step(c, r, t, long_g, count, shift, false);
        compare(c, &c->in, "update", cdi_dtype_name(t), r->kind == CDDP_OPTIM_SGD ? "SGD" : "Adam", count);
        compare(c, &c->out, "count", cdi_dtype_name(t), r->kind == CDDP_OPTIM_SGD ? "SGD" : "Adam", count);
    }
}

static void check_optims(struct check *c)
{
    static const struct cdi_optim_rule rules[] = {
        {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.1, .factor = 1.0 / 3},
        {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = 1, .factor = 1},
        {.kind = CDDP_OPTIM_ADAM,
         .lr = 0.01,
         .weight_decay = 0.1,
         .beta1 = 0.9,
         .beta2 = 0.999,
         .eps = 1e-8,
         .factor = 1},
        {.kind = CDDP_OPTIM_ADAMW,
         .lr = 0.01,
         .weight_decay = 0.1,
         .beta1 = 0.8,
         .beta2 = 0.95,
         .eps = 1e-6,
         .factor = 1},
    };

    EACH(t, floats)
    EACH(r, rules)
    EACH(n, counts)
    for (size_t shift = 0; shift < 2; shift++) {
        if (counts[n] == 0 || (counts[n] + 1) * 8 > c->room / 5 / 64 * 64)
            continue;
        check_optim(c, &rules[r], floats[t], false, counts[n], shift);
        if (cddp_dtype_size(floats[t]) == 2)
            check_optim(c, &rules[r], floats[t], true, counts[n], shift);
    }
}

/* One side: M, the residual, P, Q and a fresh Q follow one another in `in`. */
static struct cdi_lowrank_matrix matrix_of(const struct check *c, const size_t shape[3], cddp_dtype t, bool on_card)
{
    const size_t part = c->room / 5 / 64 * 64;
    uint8_t *in = on_card ? c->in.card : c->in.host;

    return (struct cdi_lowrank_matrix){.of = {t, shape[0], shape[1], shape[2]},
                                       .m = in,
                                       .error = in + part,
                                       .p = in + 2 * part,
                                       .q = in + 3 * part,
                                       .fresh = in + 4 * part};
}

static void check_lowrank(struct check *c, const size_t shape[3], cddp_dtype t, double epsilon)
{
    static const enum cdi_lowrank_step steps[] = {CDI_LOWRANK_BASIS_Q, CDI_LOWRANK_FEED,  CDI_LOWRANK_LEFT,
                                                  CDI_LOWRANK_BASIS_P, CDI_LOWRANK_RIGHT, CDI_LOWRANK_PRODUCT};
    const struct cdi_lowrank_matrix on_card = matrix_of(c, shape, t, true), on_host = matrix_of(c, shape, t, false);
    struct cdi_launch l;

    fill(c, &c->in, (uint32_t)(shape[0] + shape[1]));
    for (size_t i = 0; i < c->room; i++)
        c->in.host[i] &= 0xbf; /* below 2, and no NaN */
    CARD(&c->card, cuMemcpyHtoDAsync, address(c->in.card), c->in.host, c->room, c->card.stream);
    for (int round = 0; round < 2; round++)
        EACH(s, steps)
        {
            (void)cdi_launch_lowrank(&l, c->card.n_sm, steps[s], &on_card, 1, epsilon);
            card_launch(&c->card, c->card.stream, &l);
            (void)cdi_launch_lowrank(&l, c->card.n_sm, steps[s], &on_host, 1, epsilon);
            cdi_launch_on_host(&l);
            compare(c, &c->in, cdi_kernel_name(l.kernel), cdi_dtype_name(t), "", shape[0] * shape[1]);
        }
}

/* The sum for tied parameters of 16 bits. */
static void check_sums(struct check *c, const size_t shape[3], cddp_dtype t)
{
    const struct cdi_lowrank_matrix on_card = matrix_of(c, shape, t, true), on_host = matrix_of(c, shape, t, false);
    struct cdi_launch l;

    fill(c, &c->in, (uint32_t)shape[0]);
    for (size_t i = 0; i < c->room; i++)
        c->in.host[i] &= 0xbf; /* below 2, and no NaN */
    CARD(&c->card, cuMemcpyHtoDAsync, address(c->in.card), c->in.host, c->room, c->card.stream);
    (void)cdi_launch_lowrank(&l, c->card.n_sm, CDI_LOWRANK_FEED, &on_card, 1, 0);
    card_launch(&c->card, c->card.stream, &l);
    (void)cdi_launch_lowrank(&l, c->card.n_sm, CDI_LOWRANK_FEED, &on_host, 1, 0);
    cdi_launch_on_host(&l);
    compare(c, &c->in, cdi_kernel_name(l.kernel), cdi_dtype_name(t), "", shape[0] * shape[1]);
}

static void check_lowranks(struct check *c)
{
    static const size_t shapes[][3] = {{1, 1, 1},    {9, 1, 1},    {7, 5, 2},     {33, 16, 3},
                                       {257, 63, 9}, {40, 301, 4}, {1500, 17, 1}, {1024, 1024, 2}};

    EACH(s, shapes)
    {
        if (shapes[s][0] * shapes[s][1] * 8 > c->room / 5 / 64 * 64)
            continue;
        check_lowrank(c, shapes[s], CDDP_FLOAT32, 0);
        check_lowrank(c, shapes[s], CDDP_FLOAT64, 1e-8);
        check_sums(c, shapes[s], CDDP_FLOAT16);
        check_sums(c, shapes[s], CDDP_BFLOAT16);
    }
}

/* --- Speed ---------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Returns the median time of a launch, in milliseconds. */
static float median_ms(const struct check *c, const struct cdi_launch *launch)
{
    enum { TIMES = 21, WARM = 3 };
    float ms[TIMES];
    CUevent from, to;

    CARD(&c->card, cuEventCreate, &from, CU_EVENT_DEFAULT);
    CARD(&c->card, cuEventCreate, &to, CU_EVENT_DEFAULT);
    for (int i = -WARM; i < TIMES; i++) {
        CARD(&c->card, cuEventRecord, from, c->card.stream);
        card_launch(&c->card, c->card.stream, launch);
        CARD(&c->card, cuEventRecord, to, c->card.stream);
        CARD(&c->card, cuEventSynchronize, to);
        if (i >= 0)
            CARD(&c->card, cuEventElapsedTime, &ms[i], from, to);
    }
    CARD(&c->card, cuEventDestroy, from);
    CARD(&c->card, cuEventDestroy, to);
    qsort(ms, TIMES, sizeof ms[0], ascending);
    return ms[TIMES / 2];
}

static void show(const struct check *c, const char *name, const struct cdi_launch *launch, double bytes)
{
    printf(",\"%s_gb_s\":%.1f", name, bytes / 1e6 / (double)median_ms(c, launch));
}

/* A square matrix of rank 4, which every step but feed reads once. */
static void show_lowrank(const struct check *c, void *m, void *rest, size_t n)
{
    const size_t side = n >= (size_t)1 << 26 ? 8192 : 512;
    float *p = rest;
    const struct cdi_lowrank_matrix square = {
        .of = {CDDP_FLOAT32, side, side, 4}, .m = m, .p = p, .q = p + 4 * side, .fresh = p + 8 * side};
    const double bytes = 4.0 * (double)side * (double)side;
    struct cdi_launch l;

    (void)cdi_launch_lowrank(&l, c->card.n_sm, CDI_LOWRANK_LEFT, &square, 1, 0);
    show(c, "left_f32", &l, bytes);
    (void)cdi_launch_lowrank(&l, c->card.n_sm, CDI_LOWRANK_RIGHT, &square, 1, 0);
    show(c, "right_f32", &l, bytes);
    (void)cdi_launch_lowrank(&l, c->card.n_sm, CDI_LOWRANK_PRODUCT, &square, 1, 0);
    show(c, "product_f32", &l, bytes);
}

/* Of the 16-bit types: x has n elements of 2 bytes, and y as many. */
static void show_narrow(const struct check *c, void *x, void *y, size_t n)
{
    const struct cdi_span span = {x, n, CDDP_BFLOAT16};
    const struct cdi_slice slice = {x, 2 * n};
    const uint64_t word_of = 0;
    struct cdi_launch l;
    size_t flat;

    check_ok(cdi_launch_scale(&l, c->card.n_sm, x, n, CDDP_BFLOAT16, 0.5, NULL));
    show(c, "scale_bf16", &l, 4.0 * (double)n);
    check_ok(cdi_launch_scale(&l, c->card.n_sm, x, n, CDDP_FLOAT16, 0.5, NULL));
    show(c, "scale_f16", &l, 4.0 * (double)n);
    (void)cdi_launch_find(&l, c->card.n_sm, &span, &word_of, 1, 0x7f80, y);
    show(c, "find_bf16", &l, 2.0 * (double)n);
    (void)cdi_launch_tally(&l, c->card.n_sm, &span, 1, false, y);
    show(c, "tally_bf16", &l, 2.0 * (double)n);
    (void)cdi_launch_pack(&l, CDI_KERNEL_PACK, c->card.n_sm, y, &slice, 1, &flat);
    check_ok(cdi_launch_pack_scaled(&l, CDDP_BFLOAT16, 0.5, NULL));
    show(c, "pack_scaled_bf16", &l, 4.0 * (double)n);
}

/* AdamW, which reads and writes parameter, state and copy and reads the gradient; of x 5 parts, and zeros of y. */
static void show_optim(const struct check *c, const char *name, uint8_t *x, uint8_t *y, size_t bytes, cddp_dtype t,
                       bool long_g)
{
    static const struct cdi_optim_rule adamw = {
        .kind = CDDP_OPTIM_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .factor = 1};
    const size_t part = bytes / 5 / 64 * 64, n = part / 4, size = cddp_dtype_size(t);
    const struct cdi_optim_step s = {.rule = &adamw, .rows = (struct cdi_optim_row *)(void *)y, .n_rows = 1};
    const struct cdi_optim_piece piece = {.w = x,
                                          .g = x + part,
                                          .state = {x + 2 * part, x + 3 * part},
                                          .master = size == 2 ? (float *)(void *)(x + 4 * part) : NULL,
                                          .count = n,
                                          .dtype = t,
                                          .long_g = long_g};
    const size_t moved = size == 2 ? 26 + (long_g ? 4 : 2) : 28;
    struct cdi_launch l;

    (void)cdi_launch_count(&l, &s, 0);
    card_launch(&c->card, c->card.stream, &l);
    (void)cdi_launch_update(&l, c->card.n_sm, &s, &piece, 1);
    show(c, name, &l, (double)moved * (double)n);
}

/* Of gradients as a model has them: many, and not zeros. */
static void show_tally(const struct check *c, void *x, void *words, size_t n)
{
    const size_t each = n / CDI_KERNEL_SPANS / 16 * 16;
    struct cdi_span span[CDI_KERNEL_SPANS];
    struct cdi_launch l;

    CARD(&c->card, cuMemsetD8Async, address(x), 0x3c, 4 * n, c->card.stream);
    for (size_t i = 0; i < CDI_KERNEL_SPANS; i++)
        span[i] = (struct cdi_span){(float *)x + i * each, each, CDDP_FLOAT32};
    (void)cdi_launch_tally(&l, c->card.n_sm, span, CDI_KERNEL_SPANS, false, words);
    show(c, "tally_f32_spans", &l, 4.0 * (double)(each * CDI_KERNEL_SPANS));
    for (size_t i = 0; i < CDI_KERNEL_SPANS; i++)
        span[i] = (struct cdi_span){(uint16_t *)x + i * 2 * each, 2 * each, CDDP_BFLOAT16};
    (void)cdi_launch_tally(&l, c->card.n_sm, span, CDI_KERNEL_SPANS, false, words);
    show(c, "tally_bf16_spans", &l, 4.0 * (double)(each * CDI_KERNEL_SPANS));
    (void)cdi_launch_tally(&l, c->card.n_sm, span, CDI_KERNEL_SPANS, true, words);
    show(c, "tally_largest_bf16", &l, 4.0 * (double)(each * CDI_KERNEL_SPANS));
    CARD(&c->card, cuMemsetD8Async, address(x), 0, 4 * n, c->card.stream);
}

static void show_speeds(const struct check *c, size_t bytes)
{
    const size_t n = bytes / 4;
    CUdeviceptr x, y;
    struct cdi_slice slice[16];
    struct cdi_launch l;
    size_t flat;

    CARD(&c->card, cuMemAlloc, &x, bytes);
    CARD(&c->card, cuMemAlloc, &y, bytes + 64);
    CARD(&c->card, cuMemsetD8Async, x, 0, bytes, c->card.stream);
    CARD(&c->card, cuMemsetD8Async, y, 0, bytes + 64, c->card.stream);
    void *px = (void *)(uintptr_t)x, *py = (void *)(uintptr_t)y;

    check_ok(cdi_launch_cast(&l, c->card.n_sm, py, CDDP_BFLOAT16, px, CDDP_FLOAT32, n, 1, NULL));
    show(c, "cast_f32_bf16", &l, 6.0 * (double)n);
    check_ok(cdi_launch_cast(&l, c->card.n_sm, px, CDDP_FLOAT32, py, CDDP_FLOAT16, n, 0.5f, NULL));
    show(c, "cast_f16_f32", &l, 6.0 * (double)n);
    check_ok(cdi_launch_scale(&l, c->card.n_sm, px, n, CDDP_FLOAT32, 0.5, NULL));
    show(c, "scale_f32", &l, 8.0 * (double)n);
    for (size_t i = 0; i < 16; i++)
        slice[i] = (struct cdi_slice){(uint8_t *)px + i * (bytes / 16), bytes / 16};
    (void)cdi_launch_pack(&l, CDI_KERNEL_PACK, c->card.n_sm, py, slice, 16, &flat);
    show(c, "pack", &l, 2.0 * (double)flat);
    const struct cdi_span span = {px, n, CDDP_FLOAT32};
    const uint64_t word_of = 0;

    (void)cdi_launch_find(&l, c->card.n_sm, &span, &word_of, 1, 0x7f800000u, py);
    show(c, "find_f32", &l, 4.0 * (double)n);
    (void)cdi_launch_tally(&l, c->card.n_sm, &span, 1, false, py);
    show(c, "tally_f32", &l, 4.0 * (double)n);
    show_tally(c, px, py, n);
    (void)cdi_launch_hash(&l, c->card.n_sm, &(struct cdi_slice){px, bytes}, 1, 0, py);
    show(c, "hash", &l, (double)bytes);
    show_lowrank(c, px, py, n);
    show_narrow(c, px, py, 2 * n);
    CARD(&c->card, cuMemsetD8Async, x, 0, bytes, c->card.stream);
    CARD(&c->card, cuMemsetD8Async, y, 0, bytes, c->card.stream);
    show_optim(c, "adamw_f32", px, py, bytes, CDDP_FLOAT32, false);
    show_optim(c, "adamw_bf16", px, py, bytes, CDDP_BFLOAT16, false);
    show_optim(c, "adamw_bf16_f32", px, py, bytes, CDDP_BFLOAT16, true);
    CARD(&c->card, cuMemFree, x);
    CARD(&c->card, cuMemFree, y);
}

static void check_all(struct check *c)
{
    check_casts(c);
    check_all_narrow(c);
    check_telling(c);
    check_scales(c);
    check_finds(c);
    check_hashes(c);
    check_packs(c);
    check_tallies(c);
    check_optims(c);
    check_lowranks(c);
}

int main(int argc, char **argv)
{
    const bool quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
    const bool speeds = argc == 2 && strcmp(argv[1], "--speeds") == 0; /* alone */
    static struct check c;

    if (argc > 1 && !quick && !speeds)
        return (void)fputs("usage: kernels [--quick | --speeds]\n", stderr), 2;
    card_open(&c.card, 0);
    c.room = (size_t)(quick ? 1 : 9) << 20;
    c.most = quick ? 65536 : 1000003;
    c.big_slice = quick ? 3 : 30;
    c.in = make_twin(&c);
    c.out = make_twin(&c);
    if (!speeds)
        check_all(&c);
    printf("{\"card\":\"%s\",\"driver\":%d,\"multiprocessors\":%u,\"comparisons\":%ld", c.card.name,
           c.card.driver_version, c.card.n_sm, c.done);
    show_speeds(&c, quick ? (size_t)1 << 20 : (size_t)256 << 20);
    printf("}\n");
    free_twin(&c, &c.in);
    free_twin(&c, &c.out);
    card_close(&c.card);
    return 0;
}
