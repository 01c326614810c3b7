/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kernel_twin.h"

#include "worker/base/dtype.h"

static void run_pack(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_pack_body(t, args, 0);
}

static void run_unpack(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_pack_body(t, args, 1);
}

static void run_cast(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_cast_body(t, args);
}

static void signal_end(const struct cdi_kernel_thread *t, const struct cdi_scale_args *a)
{
    if (a->word == NULL || __atomic_add_fetch(a->arrived, 1, __ATOMIC_ACQ_REL) != t->n_blocks * t->n_threads)
        return;
    *a->arrived = 0;
    __atomic_store_n(a->word, a->value, __ATOMIC_RELEASE);
}

static void run_scale(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_scale_body(t, args);
    signal_end(t, args);
}

static void put(struct cdi_kernel_range *out, size_t cap, size_t i, const void *base, size_t bytes, bool written)
{
    if (i < cap)
        out[i] = (struct cdi_kernel_range){base, bytes, written};
}

static size_t slices_ranges(const struct cdi_pack_args *a, bool unpack, struct cdi_kernel_range *out, size_t cap)
{
    uint32_t first = UINT32_MAX, last = 0;

    for (size_t i = 0; i < a->n; i++) {
        const struct cdi_pack_slice *s = &a->slice[i];

        put(out, cap, 2 * i, (const uint8_t *)a->flat + s->at, s->bytes, !unpack);
        put(out, cap, 2 * i + 1, s->data, s->bytes, unpack);
        first = s->flag < first ? s->flag : first;
        last = s->flag > last ? s->flag : last;
    }
    if (a->flags == NULL || a->n == 0)
        return (size_t)a->n * 2;
    put(out, cap, (size_t)a->n * 2, a->flags + first, last - first + 1, false);
    return (size_t)a->n * 2 + 1;
}

static size_t pack_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    return slices_ranges(args, false, out, cap);
}

static size_t unpack_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    return slices_ranges(args, true, out, cap);
}

static size_t cast_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_cast_args *a = args;

    put(out, cap, 0, a->from, a->count * cddp_dtype_size((cddp_dtype)a->from_type), false);
    put(out, cap, 1, a->to, a->count * cddp_dtype_size((cddp_dtype)a->to_type), true);
    return 2;
}

static size_t scale_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_scale_args *a = args;

    put(out, cap, 0, a->x, a->count * cddp_dtype_size((cddp_dtype)a->dtype), true);
    if (a->word == NULL)
        return 1;
    put(out, cap, 1, a->word, sizeof *a->word, true);
    put(out, cap, 2, a->arrived, sizeof *a->arrived, true);
    return 3;
}

/* --- Norms and clipping ------------------------------------------------------------------------------------------- */

static void block_tally(const struct cdi_kernel_thread *block, const void *args)
{
    struct cdi_tally_room room = {.of_unit = {0}};

    cdi_tally_body(block, args, &room);
}

static void block_fold(const struct cdi_kernel_thread *block, const void *args)
{
    uint64_t room[CDI_EXACT_WORDS] = {0};

    cdi_fold_body(block, args, room);
}

static void run_clip(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_clip_body(t, args);
}

static void put_spans(struct cdi_kernel_range *out, size_t cap, const struct cdi_kernel_span *s, size_t n, bool written)
{
    for (size_t i = 0; i < n; i++)
        put(out, cap, i + 1, s[i].x, s[i].count * cddp_dtype_size((cddp_dtype)s[i].dtype), written);
}

static size_t tally_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_tally_args *a = args;

    put(out, cap, 0, a->words, CDI_EXACT_WORDS * sizeof *a->words, true);
    put_spans(out, cap, a->span, a->n, false);
    return (size_t)a->n + 1;
}

static size_t fold_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_fold_args *a = args;

    put(out, cap, 0, a->from, CDI_EXACT_WORDS * sizeof *a->from, true);
    put(out, cap, 1, a->words, CDI_EXACT_WORDS * sizeof *a->words, true);
    put(out, cap, 2, a->out, sizeof *a->out, true);
    return 3;
}

static size_t clip_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_clip_args *a = args;

    put(out, cap, 0, a->sum, sizeof *a->sum, false);
    put_spans(out, cap, a->span, a->n, true);
    if (a->factor_at == NULL)
        return (size_t)a->n + 1;
    put(out, cap, (size_t)a->n + 1, a->factor_at, sizeof *a->factor_at, false);
    return (size_t)a->n + 2;
}

/* --- The optimizer ------------------------------------------------------------------------------------------------ */

static void run_count(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_count_body(t, args);
}

static void run_update(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_update_body(t, args);
}

static size_t count_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_count_args *a = args;

    size_t n = 0;

    put(out, cap, n++, a->rows + a->first, a->n * sizeof *a->rows, true);
    if (a->lr_at != NULL)
        put(out, cap, n++, a->lr_at, sizeof *a->lr_at, false);
    if (a->bad != NULL)
        put(out, cap, n++, a->bad, sizeof *a->bad, false);
    if (a->largest == NULL)
        return n;
    put(out, cap, n++, a->largest, sizeof *a->largest, false);
    put(out, cap, n++, a->skipped, sizeof *a->skipped, true);
    return n;
}

static size_t update_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_update_args *a = args;
    size_t n = 0;

    if (!a->collect)
        put(out, cap, n++, a->rows, a->n_rows * sizeof *a->rows, false);
    if (a->factor_at != NULL)
        put(out, cap, n++, a->factor_at, sizeof *a->factor_at, false);
    for (size_t i = 0; i < a->n; i++) {
        const struct cdi_kernel_piece *p = &a->piece[i];
        size_t size = cddp_dtype_size((cddp_dtype)p->dtype), state = size < sizeof(float) ? sizeof(float) : size;

        put(out, cap, n++, p->w, p->count * size, true);
        put(out, cap, n++, p->g, p->count * (p->long_g ? sizeof(float) : size), a->publish != 0);
        if (p->m != NULL)
            put(out, cap, n++, p->m, p->count * state, true);
        if (p->v != NULL)
            put(out, cap, n++, p->v, p->count * state, true);
        if (p->master != NULL)
            put(out, cap, n++, p->master, p->count * sizeof *p->master, true);
    }
    return n;
}

/* --- PowerSGD ------------------------------------------------------------------------------------------------------
 */

static void run_feed(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_feed_body(t, args);
}

static void run_right(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_right_body(t, args);
}

static void run_product(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_product_body(t, args);
}

static void block_left(const struct cdi_kernel_thread *block, const void *args)
{
    struct cdi_lowrank_room room = {.lane = {0}};

    cdi_left_body(block, args, &room);
}

static void block_basis(const struct cdi_kernel_thread *block, const void *args)
{
    struct cdi_lowrank_room room = {.lane = {0}};

    cdi_basis_body(block, args, &room);
}

/* Lists the memory of a matrix that a kernel reads and writes. */
struct touch {
    bool m, p, q, error, fresh;
    bool writes_m, writes_p, writes_q;
};

static size_t lowrank_ranges(const void *args, struct touch touch, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_lowrank_args *a = args;
    size_t n = 0;

    for (size_t i = 0; i < a->n; i++) {
        const struct cdi_lowrank_piece *p = &a->piece[i];
        size_t size = cddp_dtype_size((cddp_dtype)p->dtype), m = p->rows * p->cols * size;

        if (touch.m)
            put(out, cap, n++, p->m, m, touch.writes_m);
        if (touch.p)
            put(out, cap, n++, p->p, p->rows * p->rank * size, touch.writes_p);
        if (touch.q)
            put(out, cap, n++, p->q, p->cols * p->rank * size, touch.writes_q);
        if (touch.error && p->error != NULL)
            put(out, cap, n++, p->error, m, true);
        if (touch.fresh)
            put(out, cap, n++, p->fresh, p->cols * p->rank * size, false);
    }
    return n;
}

static size_t feed_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    return lowrank_ranges(args, (struct touch){.m = true, .writes_m = true, .error = true}, out, cap);
}

static size_t left_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    return lowrank_ranges(args, (struct touch){.m = true, .q = true, .p = true, .writes_p = true}, out, cap);
}

static size_t basis_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_lowrank_args *a = args;
    bool q = a->of_q != 0;

    return lowrank_ranges(args, (struct touch){.p = !q, .writes_p = true, .q = q, .writes_q = true, .fresh = q}, out,
                          cap);
}

static size_t right_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    return lowrank_ranges(args, (struct touch){.m = true, .p = true, .q = true, .writes_q = true}, out, cap);
}

static size_t product_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    return lowrank_ranges(args, (struct touch){.m = true, .writes_m = true, .p = true, .q = true, .error = true}, out,
                          cap);
}

static void run_find(const struct cdi_kernel_thread *t, const void *args)
{
    const struct cdi_find_args *a = args;

    cdi_find_tell(a->word, cdi_find_body(t, a));
}

static size_t find_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_find_args *a = args;

    put(out, cap, 0, a->word, sizeof *a->word, true);
    put_spans(out, cap, a->span, a->n, false);
    return (size_t)a->n + 1;
}

/* --- Looking on the way ------------------------------------------------------------------------------------------- */

/* ------------------------------------------------------------------------------------------------------------------ */

static void run_hash(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_hash_body(t, args);
}

static size_t hash_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_hash_args *a = args;
    uint32_t first = UINT32_MAX, last = 0;

    for (size_t i = 0; i < a->n; i++) {
        put(out, cap, i, a->piece[i].x, a->piece[i].bytes, false);
        first = a->piece[i].index < first ? a->piece[i].index : first;
        last = a->piece[i].index > last ? a->piece[i].index : last;
    }
    if (a->n == 0)
        return 0;
    put(out, cap, a->n, a->sum + first, (last - first + 1) * sizeof *a->sum, true);
    return (size_t)a->n + 1;
}

static void run_tell(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_signal_body(t, args);
}

static size_t signal_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_signal_args *a = args;

    put(out, cap, 0, a->count, sizeof *a->count, true);
    put(out, cap, 1, a->word, sizeof *a->word, true);
    return 2;
}

static void run_store(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_store_body(t, args);
}

static size_t store_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_store_args *a = args;

    put(out, cap, 0, a->to, a->n * sizeof *a->to, true);
    return 1;
}

static void run_report(const struct cdi_kernel_thread *t, const void *args)
{
    cdi_report_body(t, args);
}

static size_t report_ranges(const void *args, struct cdi_kernel_range *out, size_t cap)
{
    const struct cdi_report_args *a = args;

    put(out, cap, 0, a->words, 3 * sizeof *a->words, true);
    put(out, cap, 1, a->report, sizeof *a->report, true);
    return 2;
}

const struct cdi_kernel_twin cdi_kernel_twins[CDI_N_KERNELS] = {
    [CDI_KERNEL_PACK] = {"cdi_pack", sizeof(struct cdi_pack_args), run_pack, NULL, pack_ranges},
    [CDI_KERNEL_UNPACK] = {"cdi_unpack", sizeof(struct cdi_pack_args), run_unpack, NULL, unpack_ranges},
    [CDI_KERNEL_CAST] = {"cdi_cast", sizeof(struct cdi_cast_args), run_cast, NULL, cast_ranges},
    [CDI_KERNEL_SCALE] = {"cdi_scale", sizeof(struct cdi_scale_args), run_scale, NULL, scale_ranges},
    [CDI_KERNEL_TALLY] = {"cdi_tally", sizeof(struct cdi_tally_args), NULL, block_tally, tally_ranges},
    [CDI_KERNEL_FOLD] = {"cdi_fold", sizeof(struct cdi_fold_args), NULL, block_fold, fold_ranges},
    [CDI_KERNEL_CLIP] = {"cdi_clip", sizeof(struct cdi_clip_args), run_clip, NULL, clip_ranges},
    [CDI_KERNEL_COUNT] = {"cdi_count", sizeof(struct cdi_count_args), run_count, NULL, count_ranges},
    [CDI_KERNEL_UPDATE] = {"cdi_update", sizeof(struct cdi_update_args), run_update, NULL, update_ranges},
    [CDI_KERNEL_FEED] = {"cdi_feed", sizeof(struct cdi_lowrank_args), run_feed, NULL, feed_ranges},
    [CDI_KERNEL_LEFT] = {"cdi_left", sizeof(struct cdi_lowrank_args), NULL, block_left, left_ranges},
    [CDI_KERNEL_BASIS] = {"cdi_basis", sizeof(struct cdi_lowrank_args), NULL, block_basis, basis_ranges},
    [CDI_KERNEL_RIGHT] = {"cdi_right", sizeof(struct cdi_lowrank_args), run_right, NULL, right_ranges},
    [CDI_KERNEL_PRODUCT] = {"cdi_product", sizeof(struct cdi_lowrank_args), run_product, NULL, product_ranges},
    [CDI_KERNEL_FIND] = {"cdi_find", sizeof(struct cdi_find_args), run_find, NULL, find_ranges},
    [CDI_KERNEL_HASH] = {"cdi_hash", sizeof(struct cdi_hash_args), run_hash, NULL, hash_ranges},
    [CDI_KERNEL_SIGNAL] = {"cdi_signal", sizeof(struct cdi_signal_args), run_tell, NULL, signal_ranges},
    [CDI_KERNEL_STORE] = {"cdi_store", sizeof(struct cdi_store_args), run_store, NULL, store_ranges},
    [CDI_KERNEL_REPORT] = {"cdi_report", sizeof(struct cdi_report_args), run_report, NULL, report_ranges},
};

void cdi_launch_on_host(const struct cdi_launch *launch)
{
    struct cdi_kernel_thread t = {.n_blocks = launch->grid, .n_threads = CDI_KERNEL_THREADS};
    const struct cdi_kernel_twin *twin = &cdi_kernel_twins[launch->kernel];

    for (t.block = 0; t.block < t.n_blocks; t.block++) {
        for (t.thread = 0; t.thread < t.n_threads && twin->run != NULL; t.thread++)
            twin->run(&t, &launch->args);
        t.thread = 0;
        if (twin->block != NULL)
            twin->block(&t, &launch->args);
    }
}
