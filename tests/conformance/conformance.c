/* SPDX-License-Identifier: Apache-2.0 */
#include "conformance.h"

#include "common/clock.h"
#include "conformance_group.h"
#include "types.h"
#include "within.h"
#include "worker/base/dtype.h"
#include "worker/math/float16.h"
#include "worker/math/reduce.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t counts[] = {0, 1, 3, 1000, 2049, 65537};
#define N_COUNTS (sizeof counts / sizeof counts[0])
#define DEATH_MS 3000    /* how long a death may take to be known on a calm machine; far more than it takes */
#define GIVEN_UP_MS 5000 /* END_MS of worker/backend/nccl/state/health.c */

static const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};

/* 0 or 1: every 8-bit float holds their sums, products and extremes. */
static uint8_t small_float(cddp_dtype dtype, bool one)
{
    return !one ? 0 : dtype == CDDP_FLOAT8_E4M3 ? 0x38 : 0x3c;
}

/* Returns element i of the input of rank r: arbitrary, but equal on all ranks. */
static void fill(void *p, size_t count, cddp_dtype dtype, int rank, unsigned salt)
{
    size_t size = cddp_dtype_size(dtype);
    uint64_t x = (uint64_t)rank * 7919 + salt + 1;

    for (size_t i = 0; i < count; i++) {
        double v;

        x = x * 6364136223846793005u + 1442695040888963407u;
        v = (double)(int64_t)(x >> 40) / 16777216 - 0.5;
        if (dtype == CDDP_FLOAT32)
            ((float *)p)[i] = (float)v;
        else if (dtype == CDDP_FLOAT64)
            ((double *)p)[i] = v;
        else if (dtype == CDDP_FLOAT16)
            ((uint16_t *)p)[i] = cdi_f16_of_float((float)v);
        else if (dtype == CDDP_BFLOAT16)
            ((uint16_t *)p)[i] = cdi_bf16_of_float((float)v);
        else if (type_is_small(dtype))
            ((uint8_t *)p)[i] = small_float(dtype, v > 0);
        else
            memcpy((uint8_t *)p + i * size, &x, size);
    }
}

/* Results for 8-bit floats of `fill`, by how many of n are 1: the numbers 0 to 8 in both types. */
static uint8_t reduce_small(const void *const *in, int n, size_t i, cddp_dtype dtype, cddp_redop op)
{
    static const uint8_t e4m3[] = {0, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50};
    static const uint8_t e5m2[] = {0, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47, 0x48};
    int ones = 0;

    for (int r = 0; r < n; r++)
        ones += ((const uint8_t *)in[r])[i] != 0;
    if (op == CDDP_MAX)
        ones = ones > 0;
    else if (op != CDDP_SUM)
        ones = ones == n;
    return dtype == CDDP_FLOAT8_E4M3 ? e4m3[ones] : e5m2[ones];
}

/* Computes the reduction of the inputs of all ranks. who: the ranks in their order, or NULL: all. */
static void expect_of(void *want, const int *who, int n, size_t count, cddp_dtype dtype, cddp_redop op, unsigned salt)
{
    const void *in[RANKS_MAX] = {NULL};
    void *own[RANKS_MAX];

    for (int i = 0; i < n; i++) {
        own[i] = malloc(count * cddp_dtype_size(dtype) + 1);
        fill(own[i], count, dtype, who != NULL ? who[i] : i, salt);
        in[i] = own[i];
    }
    if (!type_is_small(dtype))
        cdi_reduce(&want, 1, in, n, count, dtype, op);
    for (size_t i = 0; type_is_small(dtype) && i < count; i++)
        ((uint8_t *)want)[i] = reduce_small(in, n, i, dtype, op);
    for (int i = 0; i < n; i++)
        free(own[i]);
}

static void expect(void *want, int size, size_t count, cddp_dtype dtype, cddp_redop op, unsigned salt)
{
    expect_of(want, NULL, size, count, dtype, op, salt);
}

/* Returns one element as a number. */
static double number(const void *p, size_t i, cddp_dtype dtype)
{
    if (dtype == CDDP_FLOAT32)
        return (double)((const float *)p)[i];
    if (dtype == CDDP_FLOAT64)
        return ((const double *)p)[i];
    if (dtype == CDDP_FLOAT16)
        return (double)cdi_float_of_f16(((const uint16_t *)p)[i]);
    return (double)cdi_float_of_bf16(((const uint16_t *)p)[i]);
}

/*
 * Is the result as expected? On the CPU to the last bit. The library of a device has its own order of sums, and may
 * round narrow types in between.
 */
static bool agrees(const struct rank *r, const void *got, const void *want, size_t count, cddp_dtype dtype)
{
    double slack = dtype == CDDP_FLOAT64 ? 1e-14 : dtype == CDDP_FLOAT32 ? 1e-6 : dtype == CDDP_FLOAT16 ? 2e-3 : 1.6e-2;

    if (!r->on_device || !cdi_dtype_is_float(dtype))
        return memcmp(got, want, count * cddp_dtype_size(dtype)) == 0;
    for (size_t i = 0; i < count; i++) {
        double g = number(got, i, dtype), w = number(want, i, dtype);

        if (!(fabs(g - w) <= slack * (fabs(w) > 1 ? fabs(w) : 1)))
            return false;
    }
    return true;
}

static struct cdi_coll an_op(enum cdi_coll_kind kind, const void *in, void *out, size_t count, cddp_dtype dtype)
{
    return (struct cdi_coll){
        .kind = kind, .in = in, .out = out, .count = count, .dtype = dtype, .bucket = -1, .lazy = true};
}

/* ------------------------------------------------------------------------------------------------ reductions ---- */

/* Runs one of the three reductions of n elements, of which this rank gets `hi - lo` from lo on. */
static int reduce_once(struct rank *r, struct cdi_coll op, size_t n, size_t lo, size_t hi, bool in_place, unsigned salt)
{
    size_t size = cddp_dtype_size(op.dtype), bytes = (hi - lo) * size;
    uint8_t *in = malloc(n * size + 1), *want = malloc(n * size + 1), *out = in_place ? NULL : malloc(bytes + 1);
    bool same;

    fill(in, n, op.dtype, r->rank, salt);
    expect(want, r->size, n, op.dtype, op.op, salt);
    op.in = in;
    op.out = in_place ? in + lo * size : out;
    if (!in_place)
        out[bytes] = 0x5a;
    in[n * size] = 0x5a;
    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    same = agrees(r, op.out, want + lo * size, hi - lo, op.dtype) && in[n * size] == 0x5a &&
           (in_place || out[bytes] == 0x5a);
    free(in);
    free(want);
    free(out);
    RANK_CHECK(same, "%s of %zu %s, %d ranks", cdi_redop_name(op.op), n, cdi_dtype_name(op.dtype), r->size);
    return 0;
}

static int any_reduction(struct rank *r, enum cdi_coll_kind kind, size_t count, cddp_dtype dtype, cddp_redop how,
                         unsigned salt)
{
    struct cdi_coll op = an_op(kind, NULL, NULL, count, dtype);
    size_t n = count, lo = 0, hi = count;

    op.op = how;
    op.root = (int)salt % r->size;
    if (kind == CDI_REDUCE && op.root != r->rank)
        hi = 0;
    if (kind == CDI_REDUCE_SCATTER) {
        n = count * (size_t)r->size;
        lo = count * (size_t)r->rank;
        hi = lo + count;
    }
    return reduce_once(r, op, n, lo, hi, salt % 2, salt);
}

static bool reduces(struct rank *r, cddp_dtype dtype, cddp_redop op)
{
    return r->ops->check_reduction(r->b, dtype, op, &r->err) == CDDP_OK;
}

static int reduce_all(struct rank *r, enum cdi_coll_kind kind)
{
    unsigned salt = 0;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < N_COUNTS; c++)
        for (size_t t = 0; t < N_ALL_TYPES; t++)
            for (size_t o = 0; o < N_ALL_OPS; o++) {
                cddp_dtype dtype = all_types[t];
                cddp_redop op = all_ops[o];

                if (!type_takes(dtype, op) || !reduces(r, dtype, op))
                    continue;
                if (counts[c] > 10000 && (op == CDDP_PROD || op == CDDP_MIN || dtype == CDDP_UINT32))
                    continue; /* small ones cover them */
                if (counts[c] > 3 && (op == CDDP_BAND || op == CDDP_BOR || (op == CDDP_PROD && dtype == CDDP_UINT16)))
                    continue;
                salt++;
                if (any_reduction(r, kind, counts[c], dtype, op, salt) != 0)
                    return 1;
            }
    return any_reduction(r, kind, 700001, CDDP_FLOAT32, CDDP_AVG, 0) +
           any_reduction(r, kind, 700001, CDDP_BFLOAT16, CDDP_AVG, 1);
}

static int all_reduce_all(struct rank *r)
{
    return reduce_all(r, CDI_ALL_REDUCE);
}

static int reduce_to_root(struct rank *r)
{
    return reduce_all(r, CDI_REDUCE);
}

static int reduce_scatter_all(struct rank *r)
{
    return reduce_all(r, CDI_REDUCE_SCATTER);
}

/*
 * A backend rejects an unsupported reduction before any communication, with a remedy, equally on every rank, since a
 * rank that continued would hang. On the host these are types without arithmetic.
 */
static int refuses_reductions(struct rank *r)
{
    unsigned refused = 0;
    int32_t same[2];

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t t = 0; t < N_ALL_TYPES; t++)
        for (size_t o = 0; o < N_ALL_OPS; o++) {
            if (!type_takes(all_types[t], all_ops[o]))
                continue;
            refused = refused * 31 + reduces(r, all_types[t], all_ops[o]);
            if (reduces(r, all_types[t], all_ops[o]))
                continue;
            RANK_CHECK(r->err.status == CDDP_E_UNSUPPORTED && strstr(r->err.msg, cdi_dtype_name(all_types[t])) != NULL,
                       "%s", r->err.msg);
            RANK_CHECK(r->on_device || type_is_small(all_types[t]), "%s", r->err.msg);
        }
    for (int i = 0; i < 2; i++) {
        struct cdi_coll op = an_op(CDI_ALL_REDUCE, &same[i], &same[i], 1, CDDP_INT32);

        same[i] = (int32_t)(refused & 0xffffff);
        op.op = i == 0 ? CDDP_MIN : CDDP_MAX;
        RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    }
    RANK_CHECK(same[0] == same[1]);
    return 0;
}

/* 8-bit floats need new GPUs on all ranks. Rank 1 has an old one, which only the stand-in can simulate. */
static int one_has_an_old_gpu(struct rank *r)
{
    int32_t offered;
    struct cdi_coll op = an_op(CDI_ALL_REDUCE, &offered, &offered, 1, CDDP_INT32);
    bool standin = strstr(getenv("CDDP_CUDA_LIBRARY") != NULL ? getenv("CDDP_CUDA_LIBRARY") : "", "standin") != NULL;

    if (r->rank == 1)
        (void)setenv("CDDP_STANDIN_CAPABILITY", "89", 1);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    offered = reduces(r, CDDP_FLOAT8_E4M3, CDDP_SUM);
    RANK_CHECK(!standin || offered == 0);
    RANK_CHECK(!standin || strstr(r->err.msg, "float8_e4m3") != NULL);
    op.op = CDDP_SUM;
    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    RANK_CHECK(offered == 0 || offered == r->size, "all ranks say the same");
    return 0;
}

/* Inputs whose sum depends on rounding in between and on the order. */
static int order_matters(struct rank *r)
{
    float x = r->rank == 0 ? 1e8f : r->rank == r->size - 1 ? -1e8f : 3.0f, want = 1e8f;
    uint16_t h = cdi_f16_of_float(r->rank == 0 ? 2048 : 1), h_want = cdi_f16_of_float(2048 + (float)(r->size - 1));
    struct cdi_coll op = an_op(CDI_ALL_REDUCE, &x, &x, 1, CDDP_FLOAT32);

    for (int i = 1; i < r->size - 1; i++)
        want += 3.0f;
    want += -1e8f;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    RANK_CHECK(x == want, "%.9g and not %.9g", (double)x, (double)want);
    op = an_op(CDI_ALL_REDUCE, &h, &h, 1, CDDP_FLOAT16);
    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    RANK_CHECK(h == h_want, "%04x and not %04x", h, h_want);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- moving ---- */

static int broadcast_all(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < N_COUNTS + 1; c++)
        for (int root = 0; root < r->size; root++) {
            size_t count = c < N_COUNTS ? counts[c] : 900001;
            uint8_t *x = malloc(count * 4 + 1), *want = malloc(count * 4 + 1);
            struct cdi_coll op = an_op(CDI_BROADCAST, x, x, count, CDDP_FLOAT32);

            op.root = root;
            fill(x, count, CDDP_FLOAT32, r->rank, (unsigned)c);
            fill(want, count, CDDP_FLOAT32, root, (unsigned)c);
            x[count * 4] = 0x5a;
            RANK_CHECK(rank_do(r, &op) == CDDP_OK);
            RANK_CHECK(memcmp(x, want, count * 4) == 0 && x[count * 4] == 0x5a, "%zu from %d", count, root);
            free(x);
            free(want);
        }
    return 0;
}

/* Rank i has len[i] elements. */
static int gather_once(struct rank *r, bool v, const size_t *len, bool in_place, unsigned salt)
{
    size_t total = 0, at = 0, size = v ? 4 : 1;
    cddp_dtype dtype = v ? CDDP_INT32 : CDDP_UINT8;
    uint8_t *own = malloc(len[r->rank] * size + 1), *all, *want;
    struct cdi_coll op = an_op(v ? CDI_ALL_GATHERV : CDI_ALL_GATHER, own, NULL, v ? 0 : len[0], dtype);

    for (int i = 0; i < r->size; i++)
        total += len[i];
    op.out = all = malloc(total * size + 1);
    want = malloc(total * size + 1);
    op.counts = v ? len : NULL;
    fill(own, len[r->rank], dtype, r->rank, salt);
    all[total * size] = 0x5a;
    for (int i = 0; i < r->size; i++) {
        fill(want + at, len[i], dtype, i, salt);
        if (i == r->rank && in_place) {
            memcpy(all + at, own, len[i] * size);
            op.in = all + at;
        }
        at += len[i] * size;
    }
    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    RANK_CHECK(memcmp(all, want, total * size) == 0 && all[total * size] == 0x5a, "gather of %zu", total);
    free(own);
    free(all);
    free(want);
    return 0;
}

static int all_gather_all(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < N_COUNTS + 1; c++)
        for (unsigned pass = 0; pass < 2; pass++) {
            size_t len[RANKS_MAX];

            for (int i = 0; i < r->size; i++)
                len[i] = c < N_COUNTS ? counts[c] : 700001;
            if (gather_once(r, false, len, pass, (unsigned)c) != 0)
                return 1;
        }
    return 0;
}

static int all_gatherv_all(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (unsigned c = 0; c < 12; c++) {
        size_t len[RANKS_MAX];

        for (unsigned i = 0; i < (unsigned)r->size; i++)
            len[i] = c == 0 ? 0 : counts[(i * 5 + c) % N_COUNTS] + (c > 9 ? i : 0);
        if (gather_once(r, true, len, c % 2, c) != 0)
            return 1;
    }
    return 0;
}

static int all_to_all_all(struct rank *r)
{
    size_t n = (size_t)r->size;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < N_COUNTS; c++) {
        size_t count = counts[c], block = count * 2;
        uint8_t *in = malloc(n * block + 1), *out = malloc(n * block + 1), *other = malloc(n * block + 1);
        struct cdi_coll op = an_op(CDI_ALL_TO_ALL, in, out, count, CDDP_FLOAT16);

        fill(in, n * count, CDDP_FLOAT16, r->rank, (unsigned)c);
        out[n * block] = 0x5a;
        RANK_CHECK(rank_do(r, &op) == CDDP_OK);
        for (size_t i = 0; i < n; i++) {
            fill(other, n * count, CDDP_FLOAT16, (int)i, (unsigned)c);
            RANK_CHECK(memcmp(out + i * block, other + (size_t)r->rank * block, block) == 0, "%zu from %zu", count, i);
        }
        RANK_CHECK(out[n * block] == 0x5a);
        free(in);
        free(out);
        free(other);
    }
    return 0;
}

/* Every type can be moved, even if the backend does not compute with it. */
static int moves_every_type(struct rank *r)
{
    enum { COUNT = 1237 };
    size_t all = (size_t)r->size * COUNT, at = (size_t)r->rank;
    uint8_t *in = malloc(all * 8), *out = malloc(all * 8), *want = malloc(all * 8), *given = malloc(all * 8);
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t t = 0; t < N_ALL_TYPES; t++) {
        cddp_dtype dtype = all_types[t];
        size_t bytes = COUNT * cddp_dtype_size(dtype), len[RANKS_MAX];
        struct cdi_coll op = an_op(CDI_ALL_GATHER, in, out, COUNT, dtype);

        for (size_t i = 0; i < all * 8; i++) { /* any bits, NaNs among them */
            in[i] = (uint8_t)(i * 7 + at * 31 + t);
            out[i] = 0;
        }
        for (size_t i = 0; i < (size_t)r->size; i++) {
            len[i] = COUNT - i;
            for (size_t k = 0; k < bytes; k++)
                want[i * bytes + k] = (uint8_t)(k * 7 + i * 31 + t);
        }
        RANK_CHECK(rank_do(r, &op) == CDDP_OK && memcmp(out, want, (size_t)r->size * bytes) == 0, "gather of %s",
                   cdi_dtype_name(dtype));
        op = an_op(CDI_ALL_GATHERV, in, out, 0, dtype);
        op.counts = len;
        RANK_CHECK(rank_do(r, &op) == CDDP_OK && memcmp(out, want, len[0] * cddp_dtype_size(dtype)) == 0);
        memcpy(given, r->rank == r->size - 1 ? in : want, bytes);
        op = an_op(CDI_BROADCAST, given, given, COUNT, dtype);
        op.root = r->size - 1;
        RANK_CHECK(rank_do(r, &op) == CDDP_OK && memcmp(given, want + (size_t)op.root * bytes, bytes) == 0);
        op = an_op(CDI_ALL_TO_ALL, in, out, COUNT, dtype);
        RANK_CHECK(rank_do(r, &op) == CDDP_OK);
        for (size_t i = 0; i < (size_t)r->size; i++)
            for (size_t k = 0; k < bytes; k++)
                RANK_CHECK(out[i * bytes + k] == (uint8_t)((at * bytes + k) * 7 + i * 31 + t), "all to all of %s",
                           cdi_dtype_name(dtype));
        for (int turn = 0; turn < 2 && r->size % 2 == 0; turn++) { /* even ranks send first */
            bool sends = (r->rank + turn) % 2 == 0;

            op = an_op(sends ? CDI_SEND : CDI_RECV, in, out, COUNT, dtype);
            op.root = sends ? next : before;
            RANK_CHECK(rank_do(r, &op) == CDDP_OK);
            RANK_CHECK(sends || memcmp(out, want + (size_t)before * bytes, bytes) == 0, "message of %s",
                       cdi_dtype_name(dtype));
        }
    }
    free(in);
    free(out);
    free(want);
    free(given);
    return 0;
}

static int barrier_holds(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int i = 1; i <= 50; i++) {
        if (r->rank == i % r->size)
            (void)usleep(500);
        (void)atomic_fetch_add(&r->board->flag[0], 1);
        RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
        RANK_CHECK(atomic_load(&r->board->flag[0]) >= i * r->size, "somebody passed barrier %d too early", i);
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------- two ranks ---- */

static cddp_status message(struct rank *r, enum cdi_coll_kind kind, void *buf, size_t count, int peer)
{
    struct cdi_coll op = an_op(kind, buf, buf, count, CDDP_FLOAT32);

    op.root = peer;
    return rank_do(r, &op);
}

/* Each pair in turn, in both directions; other ranks continue. */
static int pairs(struct rank *r)
{
    static const size_t lens[] = {0, 1, 1000, 16384, 16385, 300001};

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < sizeof lens / sizeof lens[0]; c++)
        for (int a = 0; a < r->size; a++)
            for (int b = 0; b < r->size; b++) {
                size_t bytes = lens[c] * 4;
                uint8_t *x, *want;

                if (a == b || (r->rank != a && r->rank != b))
                    continue;
                x = malloc(bytes + 1);
                want = malloc(bytes + 1);
                fill(want, lens[c], CDDP_FLOAT32, a, (unsigned)b);
                memcpy(x, want, bytes);
                if (r->rank == b)
                    memset(x, 0, bytes);
                RANK_CHECK(message(r, r->rank == a ? CDI_SEND : CDI_RECV, x, lens[c], r->rank == a ? b : a) == CDDP_OK);
                RANK_CHECK(memcmp(x, want, bytes) == 0, "%zu from %d to %d", lens[c], a, b);
                free(x);
                free(want);
            }
    return rank_do(r, &barrier) != CDDP_OK;
}

/* A token goes around the ring, between collectives. */
static int ring(struct rank *r)
{
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    float token = 0;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int i = 1; i <= 20; i++) {
        if (r->rank > 0)
            RANK_CHECK(message(r, CDI_RECV, &token, 1, before) == CDDP_OK);
        token++;
        RANK_CHECK(message(r, CDI_SEND, &token, 1, next) == CDDP_OK);
        if (r->rank == 0)
            RANK_CHECK(message(r, CDI_RECV, &token, 1, before) == CDDP_OK);
        if (r->rank == 0)
            RANK_CHECK(token == (float)(i * r->size), "%g", (double)token);
        if (i % 5 == 0)
            RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    }
    return 0;
}

static int message_differs(struct rank *r)
{
    float x[4] = {0};
    int last = r->size - 1;
    cddp_status st = CDDP_E_MISMATCH;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 0)
        st = message(r, CDI_SEND, x, 3, last);
    else if (r->rank == last)
        st = message(r, CDI_RECV, x, 4, 0);
    RANK_CHECK(st == CDDP_E_MISMATCH);
    if (r->rank == 0 || r->rank == last) {
        char want[160];

        (void)snprintf(want, sizeof want,
                       "rank 0 called send of 3 float32 to rank %d, rank %d called recv of 4 float32", last, last);
        RANK_CHECK(strstr(r->err.msg, want) != NULL);
    }
    return 0;
}

/* --------------------------------------------------------------------------------------------------- regions ---- */

#define BUCKETS 5

/* Buckets, with a blocking call in between, joined in another order. */
static int buckets(struct rank *r, struct cdi_region *where, int n, int round)
{
    static const size_t at[BUCKETS] = {0, 64, 4096, 70000 / 4 * 4, 1000000};
    static const size_t len[BUCKETS] = {16, 1000, 15000, 200000, 900001};
    uint64_t ticket[BUCKETS];
    float *want = malloc(len[BUCKETS - 1] * sizeof *want), *got = malloc(len[BUCKETS - 1] * sizeof *got);

    for (int k = 0; k < n; k++) {
        float *p = (float *)((uint8_t *)where->base + at[k]);
        struct cdi_coll op = an_op(CDI_ALL_REDUCE, p, p, len[k], CDDP_FLOAT32);

        op.op = CDDP_AVG;
        op.region = where;
        op.bucket = k;
        op.lazy = round == 1;
        fill(want, len[k], CDDP_FLOAT32, r->rank, (unsigned)(k + 10 * round));
        RANK_CHECK(r->ops->copy(r->b, p, want, len[k] * 4, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket[k], &r->err) == CDDP_OK);
        if (k == 2) { /* a metric in the middle of the backward pass */
            float one = 1;
            struct cdi_coll metric = an_op(CDI_ALL_REDUCE, &one, &one, 1, CDDP_FLOAT32);

            RANK_CHECK(rank_do(r, &metric) == CDDP_OK);
            RANK_CHECK(one == (float)r->size);
        }
    }
    RANK_CHECK(r->ops->join(r->b, ticket[n - 1], &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket[0], &r->err) == CDDP_OK, "a ticket may be joined late, and twice");
    for (int k = 0; k < n; k++) {
        expect(want, r->size, len[k], CDDP_FLOAT32, CDDP_AVG, (unsigned)(k + 10 * round));
        RANK_CHECK(r->ops->copy(r->b, got, (uint8_t *)where->base + at[k], len[k] * 4, &r->err) == CDDP_OK);
        RANK_CHECK(agrees(r, got, want, len[k], CDDP_FLOAT32), "bucket %d round %d", k, round);
    }
    free(got);
    free(want);
    return 0;
}

static int regions(struct rank *r)
{
    struct cdi_region *region, *second;
    size_t bytes = 8u << 20;
    uint8_t *seen = malloc(bytes);

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, bytes, &region, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, 100, &second, &r->err) == CDDP_OK);
    RANK_CHECK((uintptr_t)region->base % 4096 == 0 && region->bytes >= bytes);
    RANK_CHECK(r->ops->copy(r->b, seen, region->base, bytes, &r->err) == CDDP_OK);
    for (size_t i = 0; i < bytes; i++)
        RANK_CHECK(seen[i] == 0);
    free(seen);
    for (int round = 0; round < 3; round++)
        if (buckets(r, round < 2 ? region : second, round < 2 ? BUCKETS : 1, round) != 0)
            return 1;
    r->ops->region_destroy(r->b, second);
    r->ops->region_destroy(r->b, region);
    r->ops->region_destroy(r->b, NULL);
    return 0;
}

/* One rank keeps a reducer for longer, or a garbage collector frees it late. */
static int regions_in_any_order(struct rank *r)
{
    struct cdi_region *first, *second, *third;
    size_t bytes = 1u << 20;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int round = 0; round < 2; round++) {
        bool early = r->rank % 2 == round;

        RANK_CHECK(r->ops->region_create(r->b, bytes, &first, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->region_create(r->b, bytes, &second, &r->err) == CDDP_OK);
        if (early)
            r->ops->region_destroy(r->b, first);
        RANK_CHECK(r->ops->region_create(r->b, bytes, &third, &r->err) == CDDP_OK);
        if (!early)
            r->ops->region_destroy(r->b, first);
        if (buckets(r, third, BUCKETS - 1, 0) != 0 || buckets(r, second, BUCKETS - 1, 1) != 0)
            return 1;
        r->ops->region_destroy(r->b, early ? second : third);
        r->ops->region_destroy(r->b, early ? third : second);
    }
    return 0;
}

/*
 * Each rank's block of the mean, then all blocks of all ranks: together the bits of an all-reduce. In between, the
 * blocks of other ranks may be overwritten.
 */
static int shards(struct rank *r, struct cdi_region *region, size_t block, cddp_dtype dtype)
{
    size_t size = cddp_dtype_size(dtype), count = block * (size_t)r->size, mine = block * size * (size_t)r->rank;
    uint8_t *at = (uint8_t *)region->base + 192, *want = malloc(count * size), *got = malloc(count * size);
    struct cdi_coll op = an_op(CDI_REDUCE_SCATTER, at, at + mine, block, dtype);
    uint64_t ticket;

    op.op = CDDP_AVG;
    op.region = region;
    fill(got, count, dtype, r->rank, (unsigned)block);
    expect(want, r->size, count, dtype, CDDP_AVG, (unsigned)block);
    RANK_CHECK(r->ops->copy(r->b, at, got, count * size, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->copy(r->b, got, at + mine, block * size, &r->err) == CDDP_OK);
    RANK_CHECK(agrees(r, got, want + mine, block, dtype), "the block, %zu %s", block, cdi_dtype_name(dtype));
    op = an_op(CDI_ALL_GATHER, at + mine, at, block, dtype);
    op.region = region;
    op.lazy = block % 2;
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->copy(r->b, got, at, count * size, &r->err) == CDDP_OK);
    RANK_CHECK(agrees(r, got, want, count, dtype), "all blocks, %zu %s", block, cdi_dtype_name(dtype));
    free(got);
    free(want);
    return 0;
}

/* A bucket whose mean fits float16, and whose sum does not. */
static int large_halves(struct rank *r, struct cdi_region *region)
{
    enum { BLOCK = 100 };
    const uint16_t given = cdi_f16_of_float(60000);
    uint16_t *at = region->base, all[BLOCK * RANKS_MAX], got[BLOCK];
    size_t bytes = (size_t)r->size * sizeof got;
    struct cdi_coll op = an_op(CDI_REDUCE_SCATTER, at, at + (size_t)BLOCK * (size_t)r->rank, BLOCK, CDDP_FLOAT16);
    uint64_t ticket;

    op.op = CDDP_AVG;
    op.region = region;
    op.bucket = 0;
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        all[k] = given;
    RANK_CHECK(r->ops->copy(r->b, at, all, bytes, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->copy(r->b, got, op.out, sizeof got, &r->err) == CDDP_OK);
    for (size_t k = 0; k < BLOCK; k++)
        RANK_CHECK(fabs((double)cdi_float_of_f16(got[k]) - 60000) <= 64, "%f", (double)cdi_float_of_f16(got[k]));
    return 0;
}

/* The program itself may reduce memory of a region to its mean, in place or not. */
static int halves_of_the_programs(struct rank *r, struct cdi_region *region)
{
    uint16_t *at = region->base, *to[] = {at, at + 500};
    const uint16_t given = cdi_f16_of_float(60000);
    uint16_t x[100], got[100];

    for (size_t k = 0; k < 100; k++)
        x[k] = given;
    for (int i = 1; i >= 0; i--) {
        struct cdi_coll op = an_op(CDI_ALL_REDUCE, at, to[i], 100, CDDP_FLOAT16);
        uint64_t ticket;

        op.op = CDDP_AVG;
        RANK_CHECK(r->ops->copy(r->b, at, x, sizeof x, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->copy(r->b, got, to[i], sizeof got, &r->err) == CDDP_OK);
        for (size_t k = 0; k < 100; k++)
            RANK_CHECK(fabs((double)cdi_float_of_f16(got[k]) - 60000) <= 64, "%f", (double)cdi_float_of_f16(got[k]));
        RANK_CHECK(r->ops->copy(r->b, got, at, sizeof got, &r->err) == CDDP_OK);
        RANK_CHECK(i == 0 || memcmp(got, x, sizeof x) == 0, "the input is unchanged");
    }
    return 0;
}

static int region_shards(struct rank *r)
{
    static const size_t blocks[] = {1, 16, 700, 2064, 100001};
    struct cdi_region *region;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, 192 + 100001 * 8 * (size_t)r->size, &region, &r->err) == CDDP_OK);
    for (int dtype = CDDP_FLOAT16; dtype <= CDDP_BFLOAT16; dtype++)
        for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++)
            if (shards(r, region, blocks[k], (cddp_dtype)dtype) != 0)
                return 1;
    if (large_halves(r, region) != 0 || halves_of_the_programs(r, region) != 0)
        return 1;
    r->ops->region_destroy(r->b, region);
    return 0;
}

/* Work on a stream after stream_wait; on the host that of the caller. */
static int leads(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int i = 0; i < 2; i++) {
        float x = (float)(r->rank + 1), *there = rank_lend(r, &x, sizeof x);
        struct cdi_coll op = an_op(CDI_ALL_REDUCE, there, there, 1, CDDP_FLOAT32);
        uint64_t ticket;

        op.more = i == 1;
        RANK_CHECK(r->ops->wait_stream(r->b, NULL, true, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->stream_wait(r->b, i == 0 ? ticket : 0, NULL, &r->err) == CDDP_OK);
        if (r->on_device) /* the copy is not on that stream */
            RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
        rank_return(r, &x, there, sizeof x);
        RANK_CHECK(x == (float)(r->size * (r->size + 1) / 2));
    }
    return 0;
}

/* Every type in a region, at offsets that are aligned only to the type. */
static int region_types(struct rank *r)
{
    struct cdi_region *region;
    size_t count = 70001;
    uint64_t ticket;
    void *want = malloc(count * 8), *x = malloc(count * 8);

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, count * 8 + 64, &region, &r->err) == CDDP_OK);
    for (size_t t = 0; t < N_ALL_TYPES; t++) {
        int dtype = (int)all_types[t];
        size_t size = cddp_dtype_size((cddp_dtype)dtype);
        uint8_t *p = (uint8_t *)region->base + 3 * size;
        struct cdi_coll op = an_op(CDI_ALL_REDUCE, p, p, count, (cddp_dtype)dtype);

        op.op = cdi_dtype_is_float((cddp_dtype)dtype) ? CDDP_AVG : CDDP_SUM;
        if (!reduces(r, all_types[t], op.op))
            continue;
        op.region = region;
        op.lazy = dtype % 2;
        fill(x, count, (cddp_dtype)dtype, r->rank, (unsigned)dtype);
        RANK_CHECK(r->ops->copy(r->b, p, x, count * size, &r->err) == CDDP_OK);
        expect(want, r->size, count, (cddp_dtype)dtype, op.op, (unsigned)dtype);
        RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->copy(r->b, x, p, count * size, &r->err) == CDDP_OK);
        RANK_CHECK(agrees(r, x, want, count, (cddp_dtype)dtype), "%s", cdi_dtype_name((cddp_dtype)dtype));
    }
    r->ops->region_destroy(r->b, region);
    free(want);
    free(x);
    return 0;
}

/* -------------------------------------------------------------------------------------------------- elements ---- */

/* Waits until the work on the stream is done. */
static cddp_status settle(struct rank *r)
{
    return rank_do(r, &barrier);
}

static int pack_and_unpack(struct rank *r)
{
    static const uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t packed[8] = {0}, got[9] = {0}, *from, *flat, *to;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    from = rank_lend(r, bytes, 8);
    flat = rank_lend(r, packed, 8);
    to = rank_lend(r, got, 9);
    {
        const struct cdi_slice in[] = {{from, 3}, {NULL, 0}, {from + 3, 5}}, out[] = {{to + 4, 3}, {NULL, 0}, {to, 4}};

        RANK_CHECK(r->ops->pack(r->b, flat, in, 3, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->unpack(r->b, out, 3, flat, &r->err) == CDDP_OK);
    }
    RANK_CHECK(settle(r) == CDDP_OK);
    rank_return(r, packed, flat, 8);
    rank_return(r, got, to, 9);
    rank_return(r, NULL, from, 8);
    RANK_CHECK(memcmp(packed, bytes, 8) == 0);
    RANK_CHECK(memcmp(got, "\4\5\6\7\1\2\3\0", 9) == 0);
    return 0;
}

static int casts(struct rank *r)
{
    const float x[] = {0, -0.0f, 1, 65504, 65520, 1e-8f, 5.9604645e-8f, 3.14159274f, INFINITY, NAN};
    const uint16_t f16[] = {0, 0x8000, 0x3c00, 0x7bff, 0x7c00, 0, 1, 0x4248, 0x7c00, 0x7e00};
    const uint16_t bf16[] = {0, 0x8000, 0x3f80, 0x4780, 0x4780, 0x322c, 0x3380, 0x4049, 0x7f80, 0x7fc0};
    const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16};
    uint16_t h[10] = {0};
    float back[10] = {0};

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int k = 0; k < 2; k++) {
        const uint16_t *want = k == 0 ? f16 : bf16;
        void *wide = rank_lend(r, x, sizeof x), *narrow = rank_lend(r, h, sizeof h),
             *again = rank_lend(r, back, sizeof back);

        RANK_CHECK(r->ops->cast(r->b, narrow, types[k], wide, CDDP_FLOAT32, 10, 1, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->cast(r->b, again, CDDP_FLOAT32, narrow, types[k], 10, 1, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->cast(r->b, narrow, CDDP_INT32, wide, CDDP_FLOAT32, 1, 1, &r->err) == CDDP_E_INVALID);
        RANK_CHECK(settle(r) == CDDP_OK);
        rank_return(r, h, narrow, sizeof h);
        rank_return(r, back, again, sizeof back);
        rank_return(r, NULL, wide, sizeof x);
        for (int i = 0; i < 10; i++)
            RANK_CHECK(h[i] == want[i], "element %d is %04x and not %04x", i, h[i], want[i]);
        RANK_CHECK(back[2] == 1 && isinf(back[8]) && isnan(back[9]));
    }
    return 0;
}

/* Packing and casting with a factor: three elements and a gap, in float16 and as a cast of bfloat16. */
static int scaled_on_the_way(struct rank *r)
{
    const uint16_t half[] = {0x3c00, 0x4000, 0x7bff};  /* 1, 2, 65504 */
    const uint16_t brain[] = {0x3f80, 0x4040, 0x7f80}; /* 1, 3, infinity */
    uint16_t packed[4] = {9, 9, 9, 9}, *x, *b;
    float cast[3] = {0}, *y;
    void *flat;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    x = rank_lend(r, half, sizeof half);
    b = rank_lend(r, brain, sizeof brain);
    flat = rank_lend(r, packed, sizeof packed);
    y = rank_lend(r, cast, sizeof cast);
    {
        const struct cdi_slice in[] = {{x, 2}, {NULL, 2}, {x + 1, 4}};

        RANK_CHECK(r->ops->pack_scaled(r->b, flat, in, 3, CDDP_FLOAT16, 0.5, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->pack_scaled(r->b, flat, in, 3, CDDP_INT32, 0.5, &r->err) == CDDP_E_INVALID);
        RANK_CHECK(r->ops->cast(r->b, y, CDDP_FLOAT32, b, CDDP_BFLOAT16, 3, 0.25f, &r->err) == CDDP_OK);
    }
    RANK_CHECK(settle(r) == CDDP_OK);
    rank_return(r, packed, flat, sizeof packed);
    rank_return(r, cast, y, sizeof cast);
    rank_return(r, NULL, x, sizeof half);
    rank_return(r, NULL, b, sizeof brain);
    RANK_CHECK(packed[0] == 0x3800 && packed[1] == 9 && packed[2] == 0x3c00 && packed[3] == 0x77ff);
    RANK_CHECK(cast[0] == 0.25f && cast[1] == 0.75f && isinf(cast[2]));
    return 0;
}

static int scale_in_place(struct rank *r, void *p, size_t count, cddp_dtype dtype, double factor)
{
    size_t bytes = count * cddp_dtype_size(dtype);
    void *x = rank_lend(r, p, bytes);

    RANK_CHECK(r->ops->scale(r->b, x, count, dtype, factor, &r->err) == CDDP_OK);
    rank_return(r, p, x, bytes);
    return 0;
}

static int scales(struct rank *r)
{
    float f[] = {1, NAN, 3, INFINITY, -INFINITY};
    double d[] = {0.1, NAN, NAN};
    uint16_t h[] = {0x3c00, 0x7c01, 0xfc00}, b[] = {0x3f80};
    int32_t i = 1;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (scale_in_place(r, f, 5, CDDP_FLOAT32, 0.5) != 0 || scale_in_place(r, d, 3, CDDP_FLOAT64, 0.1) != 0 ||
        scale_in_place(r, h, 3, CDDP_FLOAT16, 2) != 0 || scale_in_place(r, b, 1, CDDP_BFLOAT16, 0.5) != 0)
        return 1;
    RANK_CHECK(f[0] == 0.5f && isnan(f[1]) && f[2] == 1.5f && isinf(f[3]) && isinf(f[4]));
    RANK_CHECK(d[0] == 0.1 * 0.1 && isnan(d[1]) && h[0] == 0x4000 && h[1] > 0x7c00 && h[2] == 0xfc00 && b[0] == 0x3f00);
    RANK_CHECK(r->ops->scale(r->b, &i, 1, CDDP_INT32, 1, &r->err) == CDDP_E_INVALID);
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- parts ---- */

/* Checks the sum over a part, whose ranks are who[0..n) of the parent, in that order. */
static int sum_in_part(struct rank *r, struct cdi_backend *part, const int *who, int n, size_t count, unsigned salt)
{
    float *x = malloc(count * 4), *want = malloc(count * 4);
    struct cdi_coll op = an_op(CDI_ALL_REDUCE, x, x, count, CDDP_FLOAT32);
    uint64_t ticket;

    fill(x, count, CDDP_FLOAT32, r->rank, salt);
    expect_of(want, who, n, count, CDDP_FLOAT32, CDDP_SUM, salt);
    RANK_CHECK(r->ops->enqueue(part, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(part, ticket, &r->err) == CDDP_OK);
    RANK_CHECK(agrees(r, x, want, count, CDDP_FLOAT32));
    free(x);
    free(want);
    return 0;
}

/* Odd and even ranks, each in reverse; then all in another order; one is in no part. */
static int splits(struct rank *r)
{
    const struct cdi_split halves = {.color = r->rank % 2, .key = -r->rank},
                           others = {.color = r->rank == 0 ? -2 : 0, .key = r->rank % 2};
    struct cdi_backend *part = NULL, *again = NULL;
    int who[RANKS_MAX], n = 0;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_split(r, &halves, &part) == CDDP_OK);
    for (int i = r->size - 1; i >= 0; i--)
        if (i % 2 == r->rank % 2)
            who[n++] = i;
    for (unsigned k = 0; k < 4; k++)
        if (sum_in_part(r, part, who, n, counts[k + 1], k) != 0)
            return 1;
    RANK_CHECK(rank_split(r, &others, &again) == CDDP_OK);
    RANK_CHECK((again == NULL) == (r->rank == 0));
    n = 0;
    for (int odd = 0; odd < 2; odd++)
        for (int i = 1; i < r->size; i++)
            if (i % 2 == odd)
                who[n++] = i;
    if (again != NULL && sum_in_part(r, again, who, n, 100000, 9) != 0)
        return 1;
    r->ops->destroy(part);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    r->ops->destroy(again);
    return 0;
}

/* ------------------------------------------------------------------------------------------- what goes wrong ---- */

static int differ(struct rank *r)
{
    float x[4] = {0};
    int other = r->size - 1;
    struct cdi_coll op = an_op(CDI_ALL_REDUCE, x, x, r->rank == other ? 4 : 3, CDDP_FLOAT32);
    char want[128];

    (void)snprintf(want, sizeof want, "rank %d called all_reduce(sum) of 4 float32", other);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    RANK_CHECK(rank_do(r, &op) == CDDP_E_MISMATCH);
    RANK_CHECK(strstr(r->err.msg, want) != NULL && strstr(r->err.msg, " called all_reduce(sum) of 3 float32") != NULL);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_MISMATCH, "the error stays");
    RANK_CHECK(r->ops->health(r->b, &r->err) == CDDP_E_MISMATCH);
    return 0;
}

static int parts_differ(struct rank *r)
{
    size_t len[RANKS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    int32_t x[RANKS_MAX + 1], out[RANKS_MAX + 1];
    struct cdi_coll op = an_op(CDI_ALL_GATHERV, x, out, 0, CDDP_INT32);

    len[r->rank == 0 ? 0 : 1]++; /* the same sum */
    op.counts = len;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    memset(x, 0, sizeof x);
    RANK_CHECK(rank_do(r, &op) == CDDP_E_MISMATCH);
    return 0;
}

/*
 * All ranks except the victim get an error about its death and of no other rank's. If the stand-in's abort never
 * returns, the first caller waits until it is given up, and no caller waits again.
 */
static int mourn(struct rank *r, int victim)
{
    const char *stuck = getenv("CDDP_STANDIN_STUCK_ABORT");
    const struct timespec moment = {.tv_nsec = 1000000};
    char want[32];
    int64_t t0 = cdi_now_ms(), limit_ms = cdi_within_ms(DEATH_MS + (stuck != NULL ? GIVEN_UP_MS : 0)), again_ms;
    cddp_status st = CDDP_OK;

    (void)snprintf(want, sizeof want, "rank %d (", victim);
    for (; stuck != NULL && st == CDDP_OK && cdi_now_ms() < t0 + limit_ms; (void)nanosleep(&moment, NULL)) {
        again_ms = cdi_now_ms();
        st = r->ops->peek(r->b, &r->err);
        RANK_CHECK(cdi_now_ms() - again_ms < cdi_within_ms(GIVEN_UP_MS / 5), "it does not wait for the abort");
    }
    RANK_CHECK(stuck == NULL || (st == CDDP_E_PEER && r->err.blamed == victim + 1));
    for (st = CDDP_OK; st == CDDP_OK && cdi_now_ms() < t0 + limit_ms;)
        st = rank_do(r, &barrier);
    RANK_CHECK(st == CDDP_E_PEER && r->err.blamed == victim + 1);
    RANK_CHECK(r->ops->peek(r->b, &r->err) == CDDP_E_PEER && r->err.blamed == victim + 1);
    RANK_CHECK(strstr(r->err.msg, want) != NULL && strstr(r->err.msg, "died") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < limit_ms);
    again_ms = cdi_now_ms();
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER, "the error stays");
    RANK_CHECK(cdi_now_ms() - again_ms < cdi_within_ms(DEATH_MS));
    return 0;
}

static int die(struct rank *r, int victim)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    /* On a device the victim may have passed it and died before the others have. */
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK || r->on_device);
    if (r->rank == victim)
        (void)raise(SIGKILL);
    return mourn(r, victim);
}

static int first_dies(struct rank *r)
{
    return die(r, 0);
}

static int second_dies(struct rank *r)
{
    return die(r, 1);
}

static int third_dies(struct rank *r)
{
    return die(r, 2);
}

/* In the middle of moving much data. */
static int dies_at_work(struct rank *r)
{
    size_t count = 4u << 20;
    float *x = calloc(count, sizeof *x);
    struct cdi_coll op = an_op(CDI_ALL_REDUCE, x, x, count, CDDP_FLOAT32);
    cddp_status st = CDDP_OK;
    int64_t t0, limit_ms = cdi_within_ms(2 * DEATH_MS);

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    atomic_fetch_add(&r->board->flag[1], 1); /* a rank may get its result late on a busy node */
    while (atomic_load(&r->board->flag[1]) < r->size)
        (void)usleep(1000);
    if (r->rank == 1 && fork() == 0) {
        pid_t parent = getppid();

        (void)usleep(20000);
        (void)kill(parent, SIGKILL);
        _exit(0);
    }
    t0 = cdi_now_ms();
    while (st == CDDP_OK && cdi_now_ms() - t0 < limit_ms)
        st = rank_do(r, &op);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL);
    free(x);
    return 0;
}

/* While the others reduce a bucket, perhaps in a kernel that checks only the network. */
static int dies_beside_a_bucket(struct rank *r)
{
    struct cdi_region *region;
    struct cdi_coll op;
    uint64_t ticket;
    cddp_status st;
    int64_t t0;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(r->ops->region_create(r->b, 4096, &region, &r->err) == CDDP_OK);
    op = an_op(CDI_ALL_REDUCE, region->base, region->base, 1000, CDDP_FLOAT32);
    op.region = region;
    op.bucket = 0;
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK || r->on_device);
    if (r->rank == 1)
        (void)raise(SIGKILL);
    t0 = cdi_now_ms();
    st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
    if (st == CDDP_OK)
        st = r->ops->join(r->b, ticket, &r->err);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < cdi_within_ms(DEATH_MS));
    r->ops->region_destroy(r->b, region);
    return 0;
}

/* Operations before a barrier without the last rank. */
enum before { NOTHING, MESSAGE, GROUP, PAUSE };

static struct cdi_coll message_of_0(const struct rank *r, uint32_t *x, int to)
{
    return (struct cdi_coll){.kind = r->rank == 0 ? CDI_SEND : CDI_RECV,
                             .in = x,
                             .out = x,
                             .count = 1,
                             .dtype = CDDP_UINT32,
                             .root = r->rank == 0 ? to : 0,
                             .bucket = -1};
}

/* Rank 0 sends to the last one. */
static int do_a_message(struct rank *r)
{
    uint32_t x = 7;
    const struct cdi_coll message = message_of_0(r, &x, r->size - 1);

    if (r->rank == 0 || r->rank == r->size - 1) {
        RANK_CHECK(rank_do(r, &message) == CDDP_OK);
        atomic_fetch_add(&r->board->flag[1], 1);
    }
    while (atomic_load(&r->board->flag[1]) < 2) /* the others' deadlines begin with theirs */
        (void)usleep(1000);
    return 0;
}

/* An all-reduce, on ranks 0 and 1 in a group with a message, before it or after it. */
static int do_a_group(struct rank *r)
{
    uint32_t x = 7, y = 1;
    struct cdi_coll ops[2];
    uint64_t ticket;
    size_t n = 0;

    if (r->rank == 0)
        ops[n++] = message_of_0(r, &x, 1);
    ops[n++] =
        (struct cdi_coll){.kind = CDI_ALL_REDUCE, .in = &y, .out = &y, .count = 1, .dtype = CDDP_UINT32, .bucket = -1};
    if (r->rank == 1)
        ops[n++] = message_of_0(r, &x, 1);
    RANK_CHECK(r->ops->enqueue_group(r->b, ops, n, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK && y == (uint32_t)r->size);
    return 0;
}

/* A barrier without the last rank. After a PAUSE rank 1 still waits when the time of the others is over. */
static int stay_away_after(struct rank *r, enum before before)
{
    int late = r->size - 1;
    cddp_status st;
    char want[64];

    (void)snprintf(want, sizeof want, "barrier: rank %d did not ", late);
    r->world.timeout_ms = r->rank == late ? 60000 : 2000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(before != MESSAGE || do_a_message(r) == 0);
    RANK_CHECK(before != GROUP || r->ops->enqueue_group == NULL || do_a_group(r) == 0);
    if (before == PAUSE && r->rank == 1)
        rank_sleep(1200);
    if (r->rank == late) /* arrives only after the others have timed out */
        while (atomic_load(&r->board->flag[0]) < r->size - 1)
            (void)usleep(1000);
    st = rank_do(r, &barrier);
    /* The others report the timeout before their kernels have ended, which may still meet this rank's. */
    if (st == CDDP_OK && r->rank == late && r->on_device)
        st = rank_do(r, &barrier);
    RANK_CHECK(st == CDDP_E_TIMEOUT);
    RANK_CHECK(strstr(r->err.msg, want) != NULL && strstr(r->err.msg, "within 2 s") != NULL, "%s", r->err.msg);
    RANK_CHECK(r->err.blamed == late + 1, "%d", r->err.blamed);
    atomic_fetch_add(&r->board->flag[0], 1);
    return 0;
}

static int stay_away(struct rank *r)
{
    return stay_away_after(r, NOTHING);
}

static int stay_away_after_a_message(struct rank *r)
{
    return stay_away_after(r, MESSAGE);
}

static int stay_away_after_a_group(struct rank *r)
{
    return stay_away_after(r, GROUP);
}

static int stay_away_after_a_pause(struct rank *r)
{
    return stay_away_after(r, PAUSE);
}

/* Rank 0 waits for a message of the last rank, which waits with all others in a barrier. The first error counts. */
static int message_beside_a_barrier(struct rank *r)
{
    uint32_t x[4];
    const struct cdi_coll recv = {
        .kind = CDI_RECV, .out = x, .count = 4, .dtype = CDDP_UINT32, .root = r->size - 1, .bucket = -1};
    char last[64];

    (void)snprintf(last, sizeof last, "rank %d did not ", r->size - 1);
    r->world.timeout_ms = 2000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, r->rank == 0 ? &recv : &barrier) == CDDP_E_TIMEOUT);
    RANK_CHECK(strstr(r->err.msg, last) != NULL || strstr(r->err.msg, "barrier: rank 0 did not ") != NULL, "%s",
               r->err.msg);
    RANK_CHECK(strstr(r->err.msg, "within 2 s") != NULL, "%s", r->err.msg);
    RANK_CHECK(r->err.blamed == 1 || r->err.blamed == r->size, "%d", r->err.blamed);
    atomic_fetch_add(&r->board->flag[1], 1);
    while (atomic_load(&r->board->flag[1]) < r->size)
        (void)usleep(1000);
    return 0;
}

static int leave(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    if (r->rank == 1)
        return 0;
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER);
    RANK_CHECK(strstr(r->err.msg, "rank 1 has left the job") != NULL);
    return 0;
}

/* It waits for the others before it leaves, as the host of a store does. */
static int say_goodbye(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    if (r->rank == 1 && r->ops->goodbye == NULL)
        return 0;
    if (r->rank == 1) {
        r->ops->goodbye(r->b);
        while (atomic_load(&r->board->flag[0]) + 1 < r->size)
            (void)usleep(1000);
        return 0;
    }
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER);
    RANK_CHECK(strstr(r->err.msg, "rank 1 has left the job") != NULL);
    atomic_fetch_add(&r->board->flag[0], 1);
    return 0;
}

static int stop_all(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1)
        r->ops->abort(r->b,
                      &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "rank 1 aborted the job: loss is NaN"});
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_ABORTED);
    RANK_CHECK(strstr(r->err.msg, "loss is NaN") != NULL);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_ABORTED, "the error stays");
    RANK_CHECK(r->ops->health(r->b, &r->err) == CDDP_E_ABORTED);
    r->ops->abort(r->b, &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "again"});
    return 0;
}

static int abandon(struct rank *r)
{
    struct cdi_coll op = barrier;
    cddp_status st = rank_open(r);
    uint64_t ticket;

    /* Another rank may have opened and aborted before this one has opened, or begun its own operation. */
    RANK_CHECK(st == CDDP_OK || st == CDDP_E_ABORTED);
    if (st != CDDP_OK)
        return 0;
    op.lazy = r->rank % 2;
    if (r->rank != 1) {
        st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
        RANK_CHECK(st == CDDP_OK || st == CDDP_E_ABORTED, "%s", r->err.msg);
    }
    return 0; /* destroyed with work in flight: must not hang */
}

static int never_starts(struct rank *r)
{
    r->world.init_timeout_ms = 2000;
    if (r->rank == r->size - 1)
        return 0;
    RANK_CHECK(rank_open(r) == CDDP_E_TIMEOUT);
    return 0;
}

const struct conformance_case conformance_cases[] = {
    {"all_reduce gives the sum in rank order, for every type and operation", all_reduce_all, 1, -1},
    {"reduce gives it to the root only", reduce_to_root, 1, -1},
    {"reduce_scatter gives each rank its block of it", reduce_scatter_all, 1, -1},
    {"sums are made in rank order and rounded once", order_matters, 2, -1, true},
    {"broadcast sends the data of the root to all", broadcast_all, 1, -1},
    {"all_gather collects the parts of all ranks", all_gather_all, 1, -1},
    {"all_gatherv collects parts of different lengths", all_gatherv_all, 1, -1},
    {"all_to_all gives every rank a block of every other", all_to_all_all, 1, -1},
    {"data of every type is moved unchanged", moves_every_type, 1, -1},
    {"unsupported reductions are rejected on every rank without harm", refuses_reductions, 1, -1},
    {"no rank begins a reduction that one device does not support", one_has_an_old_gpu, 2, -1},
    {"barrier ends only after all have begun it", barrier_holds, 1, -1},
    {"send and recv work between all pairs", pairs, 2, -1},
    {"send and recv can be mixed with collectives", ring, 2, -1},
    {"messages of different lengths are a mismatch on both ranks", message_differs, 2, -1, true},
    {"messages of a group do not block one another", group_of_messages, 1, -1},
    {"a group of collectives has one ticket", group_of_collectives, 1, -1},
    {"a group that does not fit is refused whole", group_that_does_not_fit, 1, -1},
    {"gather, scatter, all_to_allv and reduce_scatterv are made of others", group_made, 1, -1},
    {"a ticket is tested without a wait", group_asked_for, 2, -1},
    {"gathers to different roots are a mismatch that names both ranks", group_differs, 2, -1, true},
    {"messages of different lengths in a group are a mismatch on both ranks", group_length_differs, 2, -1, true},
    {"different counts of an all_to_allv are a mismatch on both ranks", group_counts_differ, 2, -1, true},
    {"a rank whose message is missing in a group is named at the deadline", group_stay_away, 2, -1},
    {"two ranks whose messages of a group are missing are named at the deadline", group_half_stays_away, 3, -1},
    {"a death in the middle of a group is noticed and named", group_dies, 2, 1},
    {"an abort in the middle of a group reaches every rank", group_aborted, 2, -1},
    {"buckets of a region are reduced in place, several in flight", regions, 1, -1},
    {"regions are destroyed in a different order on each rank", regions_in_any_order, 2, -1},
    {"work after stream_wait finds every operation done", leads, 1, -1},
    {"a region holds every type at every offset", region_types, 1, -1},
    {"shards of a region are reduced and gathered in place", region_shards, 1, -1},
    {"pack and cast multiply by a factor", scaled_on_the_way, 1, -1},
    {"pack and unpack are each other's inverse", pack_and_unpack, 1, -1},
    {"cast rounds to nearest and keeps NaN and infinity", casts, 1, -1},
    {"scale takes every floating-point type", scales, 1, -1},
    {"split makes communicators in the order of the keys", splits, 3, -1},
    {"different collectives are a mismatch that names both ranks", differ, 2, -1, true},
    {"parts of different lengths on two ranks are a mismatch", parts_differ, 2, -1, true},
    {"the death of rank 0 is noticed and named", first_dies, 2, 0},
    {"the death of rank 1 is noticed and named", second_dies, 2, 1},
    {"the death of rank 2 is noticed and named", third_dies, 3, 2},
    {"a death in the middle of moving data is noticed and named", dies_at_work, 2, 1},
    {"a death beside a bucket is noticed and named", dies_beside_a_bucket, 2, 1},
    {"a missing rank is named at the deadline", stay_away, 2, -1},
    {"messages before a barrier do not hide the rank that is missing in it", stay_away_after_a_message, 3, -1},
    {"a group before a barrier does not hide the rank that is missing in it", stay_away_after_a_group, 3, -1},
    {"a rank that came late to a barrier is not missing in it", stay_away_after_a_pause, 3, -1},
    {"a message and a barrier that wait for each other name each other's rank", message_beside_a_barrier, 2, -1},
    {"a rank that has left is named as such", leave, 2, -1, true},
    {"a rank that has said goodbye and waits is named as such", say_goodbye, 2, -1, true},
    {"an abort reaches every rank with its reason, and stays", stop_all, 2, -1},
    {"work that was not joined is abandoned", abandon, 2, -1},
    {"a rank that does not connect ends the wait at the deadline", never_starts, 2, -1},
};
const size_t conformance_n_cases = sizeof conformance_cases / sizeof conformance_cases[0];
