/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/kernels/kernel.h"

#include "worker/base/dtype.h"
#include "worker/math/optim_update.h"

/*
 * Returns enough blocks to fill the multiprocessors, which hold 2048 threads or fewer; they take the rest in strides.
 */
#define BLOCKS_PER_SM 8

_Static_assert(sizeof(struct cdi_pack_args) <= 4000, "kernel arguments of old drivers end at 4096 bytes");
_Static_assert(sizeof(struct cdi_pack_slice) == 32 && sizeof(struct cdi_cast_args) == 40 &&
                   sizeof(struct cdi_scale_args) == 48,
               "nvcc and the host compiler lay them out alike");
_Static_assert(sizeof(struct cdi_kernel_span) == 24 && sizeof(struct cdi_fold_args) == 32 &&
                   offsetof(struct cdi_tally_args, span) == 24 && offsetof(struct cdi_clip_args, span) == 48 &&
                   sizeof(struct cdi_clip_args) <= 4000,
               "as above");
_Static_assert(sizeof(struct cdi_optim_row) == 64 && sizeof(struct cdi_kernel_piece) == 64 &&
                   offsetof(struct cdi_count_args, idle) == 88 && offsetof(struct cdi_update_args, piece) == 96 &&
                   sizeof(struct cdi_update_args) <= 4000 && sizeof(struct cdi_signal_args) == 16 &&
                   sizeof(struct cdi_store_args) == 48,
               "as above");

_Static_assert(sizeof(struct cdi_lowrank_piece) == 72 && offsetof(struct cdi_lowrank_args, piece) == 24 &&
                   sizeof(struct cdi_lowrank_args) <= 4000,
               "as above");
_Static_assert(offsetof(struct cdi_find_args, span) == 24 && sizeof(struct cdi_find_args) <= 4000, "as above");
_Static_assert(sizeof(struct cdi_hash_piece) == 24 && offsetof(struct cdi_hash_args, piece) == 16 &&
                   sizeof(struct cdi_hash_args) <= 4000 && CDI_HASH_CHUNK % 16 == 0,
               "as above");
_Static_assert(offsetof(struct cdi_pack_args, slice) == 40, "as above");

static uint32_t grid_of(uint32_t n_sm, uint32_t per_sm, uint64_t blocks)
{
    uint64_t most = (uint64_t)(n_sm > 0 ? n_sm : 1) * per_sm;

    return (uint32_t)(blocks < most ? blocks : most);
}

static uint32_t grid(uint32_t n_sm, uint64_t blocks)
{
    return grid_of(n_sm, BLOCKS_PER_SM, blocks);
}

/* For kernels whose threads take CDI_KERNEL_UNIT elements at a time. */
static uint32_t grid_of_elements(uint32_t n_sm, uint64_t count)
{
    const uint64_t per_block = (uint64_t)CDI_KERNEL_THREADS * CDI_KERNEL_UNIT;

    return grid(n_sm, count / per_block + (count % per_block != 0));
}

const char *cdi_kernel_name(enum cdi_kernel kernel)
{
    static const char *const names[] = {
#define X(constant, name) [constant] = #name,
        CDI_KERNEL_MAP(X)
#undef X
    };

    return (unsigned)kernel < CDI_N_KERNELS ? names[kernel] : NULL;
}

size_t cdi_launch_pack(struct cdi_launch *out, enum cdi_kernel kernel, uint32_t n_sm, void *flat,
                       const struct cdi_slice *slice, size_t n, size_t *flat_bytes)
{
    struct cdi_pack_args *args = &out->args.pack;
    uint64_t chunks = 0, at = 0;
    size_t i;

    args->flat = flat;
    args->n = 0;
    args->factor = 1;
    args->dtype = CDDP_UINT8;
    args->flags = NULL;
    for (i = 0; i < n && args->n < CDI_KERNEL_SLICES; i++) {
        uint64_t more = slice[i].bytes / CDI_KERNEL_CHUNK + (slice[i].bytes % CDI_KERNEL_CHUNK != 0);

        if (slice[i].data == NULL)
            at += slice[i].bytes;
        if (slice[i].data == NULL || more == 0)
            continue;
        if (chunks + more > UINT32_MAX)
            break;
        args->slice[args->n++] = (struct cdi_pack_slice){
            .data = slice[i].data, .at = at, .bytes = slice[i].bytes, .first_chunk = (uint32_t)chunks};
        at += slice[i].bytes;
        chunks += more;
    }
    args->n_chunks = (uint32_t)chunks;
    out->kernel = kernel;
    out->grid = grid(n_sm, chunks);
    *flat_bytes = (size_t)at;
    return i;
}

cddp_status cdi_launch_pack_scaled(struct cdi_launch *launch, cddp_dtype dtype, double factor, struct cdi_error *err)
{
    if (!cdi_dtype_is_float(dtype))
        return cdi_fail(err, CDDP_E_INVALID, "cannot scale %s", cdi_dtype_name(dtype));
    launch->args.pack.dtype = (int32_t)dtype;
    launch->args.pack.factor = dtype == CDDP_FLOAT64 ? factor : (float)factor;
    return CDDP_OK;
}

void cdi_launch_pack_unless(struct cdi_launch *launch, const struct cdi_slice *slice, size_t taken,
                            const uint8_t *flags, const uint32_t *of)
{
    struct cdi_pack_args *args = &launch->args.pack;
    uint32_t k = 0;

    for (size_t i = 0; i < taken; i++)
        if (slice[i].data != NULL && slice[i].bytes > 0)
            args->slice[k++].flag = of[i];
    args->flags = flags;
}

cddp_status cdi_launch_cast(struct cdi_launch *out, uint32_t n_sm, void *to, cddp_dtype to_type, const void *from,
                            cddp_dtype from_type, size_t count, float factor, struct cdi_error *err)
{
    cddp_dtype narrow = from_type == CDDP_FLOAT32 ? to_type : from_type;

    if ((from_type != CDDP_FLOAT32 && to_type != CDDP_FLOAT32) || (narrow != CDDP_FLOAT16 && narrow != CDDP_BFLOAT16))
        return cdi_fail(err, CDDP_E_INVALID, "cannot cast %s to %s", cdi_dtype_name(from_type),
                        cdi_dtype_name(to_type));
    out->kernel = CDI_KERNEL_CAST;
    out->grid = grid_of_elements(n_sm, count);
    out->args.cast = (struct cdi_cast_args){.to = to,
                                            .from = from,
                                            .count = count,
                                            .factor = factor,
                                            .to_type = (int32_t)to_type,
                                            .from_type = (int32_t)from_type};
    return CDDP_OK;
}

cddp_status cdi_launch_scale(struct cdi_launch *out, uint32_t n_sm, void *x, size_t count, cddp_dtype dtype,
                             double factor, struct cdi_error *err)
{
    if (!cdi_dtype_is_float(dtype))
        return cdi_fail(err, CDDP_E_INVALID, "cannot scale %s", cdi_dtype_name(dtype));
    out->kernel = CDI_KERNEL_SCALE;
    out->grid = grid_of_elements(n_sm, count);
    out->args.scale = (struct cdi_scale_args){
        .x = x, .count = count, .factor = dtype == CDDP_FLOAT64 ? factor : (float)factor, .dtype = (int32_t)dtype};
    return CDDP_OK;
}

void cdi_launch_scale_signals(struct cdi_launch *launch, void *word, uint32_t value, void *arrived)
{
    launch->args.scale.word = word;
    launch->args.scale.value = value;
    launch->args.scale.arrived = arrived;
}

/* Stores as many spans as fit, `cap` at most, and returns how many of x they were. */
static size_t take_spans(struct cdi_kernel_span *span, size_t cap, uint32_t *n_spans, uint32_t *n_chunks,
                         const struct cdi_span *x, size_t n)
{
    uint64_t chunks = 0;
    size_t i;

    *n_spans = 0;
    for (i = 0; i < n && *n_spans < cap; i++) {
        uint64_t more = x[i].count / CDI_SPAN_CHUNK + (x[i].count % CDI_SPAN_CHUNK != 0);

        if (more == 0)
            continue;
        if (chunks + more > UINT32_MAX)
            break;
        span[(*n_spans)++] = (struct cdi_kernel_span){
            .x = x[i].x, .count = x[i].count, .first_chunk = (uint32_t)chunks, .dtype = (int32_t)x[i].dtype};
        chunks += more;
    }
    *n_chunks = (uint32_t)chunks;
    return i;
}

size_t cdi_launch_tally(struct cdi_launch *out, uint32_t n_sm, const struct cdi_span *x, size_t n, bool largest,
                        uint64_t *words)
{
    struct cdi_tally_args *args = &out->args.tally;
    size_t taken = take_spans(args->span, CDI_KERNEL_SPANS, &args->n, &args->n_chunks, x, n);

    args->words = words;
    args->largest = largest;
    out->kernel = CDI_KERNEL_TALLY;
    out->grid = grid_of(n_sm, CDI_TALLY_BLOCKS, args->n_chunks);
    return taken;
}

void cdi_launch_fold(struct cdi_launch *out, uint64_t *from, uint64_t *words, bool largest, double *result)
{
    out->kernel = CDI_KERNEL_FOLD;
    out->grid = 1;
    out->args.fold = (struct cdi_fold_args){.from = from, .words = words, .out = result, .largest = largest};
}

size_t cdi_launch_clip(struct cdi_launch *out, uint32_t n_sm, const struct cdi_span *x, size_t n,
                       const struct cdi_clip *how, const double *sum)
{
    struct cdi_clip_args *args = &out->args.clip;
    size_t taken = take_spans(args->span, CDI_KERNEL_SPANS, &args->n, &args->n_chunks, x, n);

    args->sum = sum;
    args->max_norm = how->max_norm;
    args->factor = how->factor;
    args->factor_at = how->factor_at;
    args->largest = how->largest;
    out->kernel = CDI_KERNEL_CLIP;
    out->grid = grid(n_sm, args->n_chunks);
    return taken;
}

size_t cdi_launch_count(struct cdi_launch *out, const struct cdi_optim_step *s, size_t first)
{
    size_t n = s->n_rows - first < CDI_KERNEL_ROWS ? s->n_rows - first : CDI_KERNEL_ROWS;
    struct cdi_count_args *args = &out->args.count;

    *args = (struct cdi_count_args){.rows = s->rows,
                                    .largest = s->largest,
                                    .skipped = s->skipped,
                                    .bad = s->bad,
                                    .lr_at = s->lr_at,
                                    .lr = s->rule->lr,
                                    .beta1 = s->rule->beta1,
                                    .beta2 = s->rule->beta2,
                                    .first = first,
                                    .n = n,
                                    .kind = (int32_t)s->rule->kind};
    for (size_t i = 0; i < n && s->idle != NULL; i++)
        args->idle[i / 64] |= (uint64_t)(s->idle[first + i] != 0) << i % 64;
    out->kernel = CDI_KERNEL_COUNT;
    out->grid = (uint32_t)((n + CDI_KERNEL_THREADS - 1) / CDI_KERNEL_THREADS);
    return n;
}

size_t cdi_launch_update(struct cdi_launch *out, uint32_t n_sm, const struct cdi_optim_step *s,
                         const struct cdi_optim_piece *piece, size_t n)
{
    const struct cdi_optim_rule *r = s->rule;
    struct cdi_update_args *args = &out->args.update;
    uint64_t chunks = 0;
    size_t i;

    args->rows = s->rows;
    args->n_rows = s->n_rows;
    args->momentum = r->momentum;
    args->dampening = r->dampening;
    args->beta1 = r->beta1;
    args->beta2 = r->beta2;
    args->eps = r->eps;
    args->factor = r->factor;
    args->factor_at = s->factor_at;
    args->kind = (int32_t)r->kind;
    args->nesterov = r->nesterov;
    args->publish = s->publish;
    args->collect = s->collect;
    args->n = 0;
    for (i = 0; i < n && args->n < CDI_KERNEL_PIECES; i++) {
        const struct cdi_optim_piece *p = &piece[i];
        uint64_t more = p->count / CDI_PIECE_CHUNK + (p->count % CDI_PIECE_CHUNK != 0);

        if (more == 0)
            continue;
        if (chunks + more > UINT32_MAX)
            break;
        args->piece[args->n++] = (struct cdi_kernel_piece){.w = p->w,
                                                           .g = p->g,
                                                           .m = p->state[0],
                                                           .v = p->state[1],
                                                           .master = p->master,
                                                           .count = p->count,
                                                           .first_chunk = (uint32_t)chunks,
                                                           .row = (uint32_t)p->row,
                                                           .dtype = (int32_t)p->dtype,
                                                           .long_g = p->long_g};
        chunks += more;
    }
    args->n_chunks = (uint32_t)chunks;
    out->kernel = CDI_KERNEL_UPDATE;
    out->grid = grid(n_sm, chunks);
    return i;
}

/* Returns the chunks of a matrix; 0: there is nothing to do. */
static uint64_t lowrank_chunks(enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m)
{
    const uint64_t all = (uint64_t)m->of.rows * m->of.cols;
    uint64_t count = all, chunk = CDI_PIECE_CHUNK;

    if (all == 0 || (step == CDI_LOWRANK_FEED && m->error == NULL))
        return 0;
    if (step == CDI_LOWRANK_BASIS_P || step == CDI_LOWRANK_BASIS_Q)
        return 1;
    if (step == CDI_LOWRANK_LEFT) {
        count = (uint64_t)m->of.rows * m->of.rank;
        chunk = CDI_LEFT_CHUNK;
    } else if (step == CDI_LOWRANK_RIGHT) {
        count = (uint64_t)m->of.cols * m->of.rank;
        chunk = CDI_KERNEL_THREADS;
    }
    return count / chunk + (count % chunk != 0);
}

size_t cdi_launch_lowrank(struct cdi_launch *out, uint32_t n_sm, enum cdi_lowrank_step step,
                          const struct cdi_lowrank_matrix *m, size_t n, double epsilon)
{
    static const enum cdi_kernel kernels[] = {
        [CDI_LOWRANK_FEED] = CDI_KERNEL_FEED,     [CDI_LOWRANK_LEFT] = CDI_KERNEL_LEFT,
        [CDI_LOWRANK_BASIS_P] = CDI_KERNEL_BASIS, [CDI_LOWRANK_BASIS_Q] = CDI_KERNEL_BASIS,
        [CDI_LOWRANK_RIGHT] = CDI_KERNEL_RIGHT,   [CDI_LOWRANK_PRODUCT] = CDI_KERNEL_PRODUCT,
    };
    struct cdi_lowrank_args *args = &out->args.lowrank;
    uint64_t chunks = 0;
    size_t i;

    args->epsilon = epsilon;
    args->of_q = step == CDI_LOWRANK_BASIS_Q;
    args->n = 0;
    args->unused = 0;
    for (i = 0; i < n && args->n < CDI_KERNEL_PIECES; i++) {
        uint64_t more = lowrank_chunks(step, &m[i]);

        if (more == 0)
            continue;
        if (chunks + more > UINT32_MAX)
            break;
        args->piece[args->n++] = (struct cdi_lowrank_piece){.m = m[i].m,
                                                            .p = m[i].p,
                                                            .q = m[i].q,
                                                            .error = m[i].error,
                                                            .fresh = m[i].fresh,
                                                            .rows = m[i].of.rows,
                                                            .cols = m[i].of.cols,
                                                            .rank = (uint32_t)m[i].of.rank,
                                                            .first_chunk = (uint32_t)chunks,
                                                            .dtype = (int32_t)m[i].of.dtype};
        chunks += more;
    }
    args->n_chunks = (uint32_t)chunks;
    out->kernel = kernels[step];
    out->grid = grid(n_sm, chunks);
    return i;
}

size_t cdi_launch_find(struct cdi_launch *out, uint32_t n_sm, const struct cdi_span *x, const uint64_t *word_of,
                       size_t n, uint64_t limit, uint64_t *word)
{
    struct cdi_find_args *args = &out->args.find;
    size_t taken = take_spans(args->span, CDI_KERNEL_FINDS, &args->n, &args->n_chunks, x, n);

    for (size_t i = 0, k = 0; i < taken; i++)
        if (x[i].count > 0)
            args->word_of[k++] = word_of[i];
    args->word = word;
    args->limit = limit;
    out->kernel = CDI_KERNEL_FIND;
    out->grid = grid(n_sm, args->n_chunks);
    return taken;
}

size_t cdi_launch_hash(struct cdi_launch *out, uint32_t n_sm, const struct cdi_slice *x, size_t n, size_t first,
                       uint64_t *sum)
{
    struct cdi_hash_args *args = &out->args.hash;
    uint64_t chunks = 0;
    size_t i;

    args->sum = sum;
    args->n = 0;
    for (i = 0; i < n && args->n < CDI_KERNEL_HASHES; i++) {
        uint64_t more = x[i].bytes / CDI_HASH_CHUNK + (x[i].bytes % CDI_HASH_CHUNK != 0);

        if (more == 0 || x[i].data == NULL)
            continue;
        if (chunks + more > UINT32_MAX)
            break;
        args->piece[args->n++] = (struct cdi_hash_piece){
            .x = x[i].data, .bytes = x[i].bytes, .first_chunk = (uint32_t)chunks, .index = (uint32_t)(first + i)};
        chunks += more;
    }
    args->n_chunks = (uint32_t)chunks;
    out->kernel = CDI_KERNEL_HASH;
    out->grid = grid(n_sm, chunks);
    return i;
}

void cdi_launch_signal(struct cdi_launch *out, uint32_t *count, uint32_t *word)
{
    out->kernel = CDI_KERNEL_SIGNAL;
    out->grid = 1;
    out->args.signal = (struct cdi_signal_args){.count = count, .word = word};
}

void cdi_launch_store(struct cdi_launch *out, double *to, const double *value, size_t n)
{
    out->kernel = CDI_KERNEL_STORE;
    out->grid = 1;
    out->args.store = (struct cdi_store_args){.to = to, .n = n};
    for (size_t k = 0; k < n && k < CDI_STORE_MAX; k++)
        out->args.store.value[k] = value[k];
}

void cdi_launch_report(struct cdi_launch *out, uint64_t *words, struct cdi_nan_report *report)
{
    out->kernel = CDI_KERNEL_REPORT;
    out->grid = 1;
    out->args.report = (struct cdi_report_args){.words = words, .report = report};
}
