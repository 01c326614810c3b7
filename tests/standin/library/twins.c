/* SPDX-License-Identifier: Apache-2.0 */
/* The project's own kernels: their twins (tests/support/kernel_twin.h), made known to the stand-in. */
#include "core.h"

#include "tests/support/kernel_twin.h"

/* Called for the arguments' pointers once a launch. */
static void usable(enum cdi_kernel kernel, void *args)
{
    struct cdi_pack_args *pack = args;
    struct cdi_cast_args *cast = args;
    struct cdi_scale_args *scale = args;
    struct cdi_tally_args *tally = args;
    struct cdi_fold_args *fold = args;
    struct cdi_clip_args *clip = args;
    struct cdi_count_args *count = args;
    struct cdi_update_args *update = args;
    struct cdi_lowrank_args *lowrank = args;
    struct cdi_find_args *find = args;
    struct cdi_hash_args *hash = args;
    struct cdi_signal_args *tell = args;
    struct cdi_store_args *store = args;
    struct cdi_report_args *report = args;

    switch (kernel) {
    case CDI_KERNEL_PACK:
    case CDI_KERNEL_UNPACK:
        pack->flat = standin_host(pack->flat);
        pack->flags = standin_host(pack->flags);
        for (uint32_t i = 0; i < pack->n; i++)
            pack->slice[i].data = standin_host(pack->slice[i].data);
        break;
    case CDI_KERNEL_CAST:
        cast->to = standin_host(cast->to);
        cast->from = standin_host(cast->from);
        break;
    case CDI_KERNEL_SCALE:
        scale->x = standin_host(scale->x);
        scale->word = standin_host(scale->word);
        scale->arrived = standin_host(scale->arrived);
        break;
    case CDI_KERNEL_TALLY:
        tally->words = standin_host(tally->words);
        for (uint32_t i = 0; i < tally->n; i++)
            tally->span[i].x = standin_host(tally->span[i].x);
        break;
    case CDI_KERNEL_FIND:
        find->word = standin_host(find->word);
        for (uint32_t i = 0; i < find->n; i++)
            find->span[i].x = standin_host(find->span[i].x);
        break;
    case CDI_KERNEL_HASH:
        hash->sum = standin_host(hash->sum);
        for (uint32_t i = 0; i < hash->n; i++)
            hash->piece[i].x = standin_host(hash->piece[i].x);
        break;
    case CDI_KERNEL_FOLD:
        fold->from = standin_host(fold->from);
        fold->words = standin_host(fold->words);
        fold->out = standin_host(fold->out);
        break;
    case CDI_KERNEL_CLIP:
        clip->sum = standin_host(clip->sum);
        clip->factor_at = standin_host(clip->factor_at);
        for (uint32_t i = 0; i < clip->n; i++)
            clip->span[i].x = standin_host(clip->span[i].x);
        break;
    case CDI_KERNEL_COUNT:
        count->rows = standin_host(count->rows);
        count->largest = standin_host(count->largest);
        count->skipped = standin_host(count->skipped);
        count->lr_at = standin_host(count->lr_at);
        count->bad = standin_host(count->bad);
        break;
    case CDI_KERNEL_UPDATE:
        update->rows = standin_host(update->rows);
        update->factor_at = standin_host(update->factor_at);
        for (uint32_t i = 0; i < update->n; i++) {
            struct cdi_kernel_piece *p = &update->piece[i];

            p->w = standin_host(p->w);
            p->g = standin_host(p->g);
            p->m = standin_host(p->m);
            p->v = standin_host(p->v);
            p->master = standin_host(p->master);
        }
        break;
    case CDI_KERNEL_FEED:
    case CDI_KERNEL_LEFT:
    case CDI_KERNEL_BASIS:
    case CDI_KERNEL_RIGHT:
    case CDI_KERNEL_PRODUCT:
        for (uint32_t i = 0; i < lowrank->n; i++) {
            struct cdi_lowrank_piece *p = &lowrank->piece[i];

            p->m = standin_host(p->m);
            p->p = standin_host(p->p);
            p->q = standin_host(p->q);
            p->error = standin_host(p->error);
            p->fresh = standin_host(p->fresh);
        }
        break;
    case CDI_KERNEL_SIGNAL:
        tell->count = standin_host(tell->count);
        tell->word = standin_host(tell->word);
        break;
    case CDI_KERNEL_STORE:
        store->to = standin_host(store->to);
        break;
    case CDI_KERNEL_REPORT:
        report->words = standin_host(report->words);
        report->report = standin_host(report->report);
        break;
    case CDI_N_KERNELS:
        break;
    }
}

static void ranges(enum cdi_kernel kernel, const void *args, struct standin_ranges *r)
{
    struct cdi_kernel_range range[SI_RANGES];
    size_t n = cdi_kernel_twins[kernel].ranges(args, range, SI_RANGES);

    for (size_t i = 0; i < n && i < SI_RANGES; i++)
        si_range_add(r, range[i].base, range[i].bytes, range[i].written);
    r->full = n > SI_RANGES;
}

static void run(enum cdi_kernel kernel, const struct standin_thread *t, const void *args)
{
    const struct cdi_kernel_thread at = {
        .block = t->at.x, .n_blocks = t->grid.x, .thread = t->thread.x, .n_threads = t->block.x};

    if (cdi_kernel_twins[kernel].run != NULL)
        cdi_kernel_twins[kernel].run(&at, args);
    else
        cdi_kernel_twins[kernel].block(&at, args);
}

#define X(constant, name_)                                                                                     \
    static void usable_##name_(void *const *args)                                                              \
    {                                                                                                          \
        usable(constant, args[0]);                                                                             \
    }                                                                                                          \
    static void ranges_##name_(const struct standin_thread *grid, void *const *args, struct standin_ranges *r) \
    {                                                                                                          \
        (void)grid;                                                                                            \
        ranges(constant, args[0], r);                                                                          \
    }                                                                                                          \
    static void run_##name_(const struct standin_thread *t, void *const *args)                                 \
    {                                                                                                          \
        run(constant, t, args[0]);                                                                             \
    }                                                                                                          \
    static struct standin_kernel kernel_##name_ = {                                                            \
        .name = #name_, .n_args = 1, .usable = usable_##name_, .ranges = ranges_##name_};
CDI_KERNEL_MAP(X)
#undef X

__attribute__((constructor)) static void register_twins(void)
{
#define X(constant, name)                                             \
    kernel_##name.arg_size[0] = cdi_kernel_twins[constant].args_size; \
    if (cdi_kernel_twins[constant].run != NULL)                       \
        kernel_##name.thread = run_##name;                            \
    else                                                              \
        kernel_##name.block = run_##name;                             \
    standin_kernel_register(&kernel_##name);
    CDI_KERNEL_MAP(X)
#undef X
}
