/* SPDX-License-Identifier: Apache-2.0 */
/* The twins in the type REAL; wine_twin.c includes it once for float and once for double. */

static void NAME(usable)(void *const *args)
{
    struct NAME(wine_args) *a = args[0];

    a->w = standin_host(a->w);
    a->m = standin_host(a->m);
    a->v = standin_host(a->v);
    a->g_w1 = standin_host(a->g_w1);
    a->g_b1 = standin_host(a->g_b1);
    a->g_w2 = standin_host(a->g_w2);
    a->g_b2 = standin_host(a->g_b2);
    a->x = standin_host(a->x);
    a->label = standin_host(a->label);
    a->row = standin_host(a->row);
    a->h = standin_host(a->h);
    a->dz = standin_host(a->dz);
    a->loss = standin_host(a->loss);
    a->epoch_loss = standin_host(a->epoch_loss);
}

/* The work of thread i of each kernel, for the threads that gpu.c starts. */
#define X(kernel, threads)                                                            \
    static void NAME(run_##kernel)(const struct standin_thread *t, void *const *args) \
    {                                                                                 \
        const struct NAME(wine_args) *a = args[0];                                    \
        const int n = a->n, i = (int)(t->at.x * t->block.x + t->thread.x);            \
                                                                                      \
        if (i < (threads) && n > 0)                                                   \
            NAME(wine_##kernel)(a, i);                                                \
    }
WINE_GPU_MAP(X)
#undef X

static void NAME(ranges_hidden)(const struct standin_thread *t, void *const *args, struct standin_ranges *r)
{
    const struct NAME(wine_args) *a = args[0];

    (void)t;
    standin_reads(r, a->w, WEIGHTS_BYTES);
    standin_reads(r, a->x, WINE_ROWS * IN * sizeof(REAL));
    standin_reads(r, a->row, (size_t)a->n * sizeof *a->row);
    standin_writes(r, a->h, (size_t)a->n * HIDDEN * sizeof(REAL));
}

static void NAME(ranges_output)(const struct standin_thread *t, void *const *args, struct standin_ranges *r)
{
    const struct NAME(wine_args) *a = args[0];

    (void)t;
    standin_reads(r, a->w, WEIGHTS_BYTES);
    standin_reads(r, a->h, (size_t)a->n * HIDDEN * sizeof(REAL));
    standin_reads(r, a->label, WINE_ROWS * sizeof *a->label);
    standin_reads(r, a->row, (size_t)a->n * sizeof *a->row);
    standin_writes(r, a->dz, (size_t)a->n * OUT * sizeof(REAL));
    standin_writes(r, a->loss, (size_t)a->n * sizeof(REAL));
}

static void NAME(ranges_second)(const struct standin_thread *t, void *const *args, struct standin_ranges *r)
{
    const struct NAME(wine_args) *a = args[0];

    (void)t;
    standin_reads(r, a->dz, (size_t)a->n * OUT * sizeof(REAL));
    standin_reads(r, a->h, (size_t)a->n * HIDDEN * sizeof(REAL));
    standin_reads(r, a->loss, (size_t)a->n * sizeof(REAL));
    standin_writes(r, a->g_w2, OUT * HIDDEN * sizeof(REAL));
    standin_writes(r, a->g_b2, OUT * sizeof(REAL));
    standin_writes(r, a->epoch_loss, 2 * sizeof(double));
}

static void NAME(ranges_first)(const struct standin_thread *t, void *const *args, struct standin_ranges *r)
{
    const struct NAME(wine_args) *a = args[0];

    (void)t;
    standin_reads(r, a->w, WEIGHTS_BYTES);
    standin_reads(r, a->dz, (size_t)a->n * OUT * sizeof(REAL));
    standin_reads(r, a->h, (size_t)a->n * HIDDEN * sizeof(REAL));
    standin_reads(r, a->x, WINE_ROWS * IN * sizeof(REAL));
    standin_reads(r, a->row, (size_t)a->n * sizeof *a->row);
    standin_writes(r, a->g_w1, HIDDEN * IN * sizeof(REAL));
    standin_writes(r, a->g_b1, HIDDEN * sizeof(REAL));
}

static void NAME(ranges_adam)(const struct standin_thread *t, void *const *args, struct standin_ranges *r)
{
    const struct NAME(wine_args) *a = args[0];

    (void)t;
    standin_reads(r, a->g_w1, HIDDEN * IN * sizeof(REAL));
    standin_reads(r, a->g_b1, HIDDEN * sizeof(REAL));
    standin_reads(r, a->g_w2, OUT * HIDDEN * sizeof(REAL));
    standin_reads(r, a->g_b2, OUT * sizeof(REAL));
    standin_writes(r, a->w, WEIGHTS_BYTES);
    standin_writes(r, a->m, WEIGHTS_BYTES);
    standin_writes(r, a->v, WEIGHTS_BYTES);
}
