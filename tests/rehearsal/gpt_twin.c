/* SPDX-License-Identifier: Apache-2.0 */
/* GPT's kernels (examples/gpt/gpu_kernels.h) as twins for the stand-in, which opens this library. */
#include "gpu_kernels.h"
#include "standin.h"

static void usable(void *const *args)
{
    struct gpu_args *a = args[0];

    for (size_t i = 0; i < sizeof a->in / sizeof a->in[0]; i++)
        a->in[i].at = standin_host(a->in[i].at);
    for (size_t i = 0; i < sizeof a->out / sizeof a->out[0]; i++)
        a->out[i].at = standin_host(a->out[i].at);
}

/* Each launch says how much memory it uses. */
static void ranges(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    const struct gpu_args *a = args[0];

    (void)grid;
    for (size_t i = 0; i < sizeof a->in / sizeof a->in[0]; i++)
        if (a->in[i].bytes > 0)
            standin_reads(r, a->in[i].at, a->in[i].bytes);
    for (size_t i = 0; i < sizeof a->out / sizeof a->out[0]; i++)
        if (a->out[i].bytes > 0)
            standin_writes(r, a->out[i].at, a->out[i].bytes);
}

static uint64_t place(const struct standin_thread *t)
{
    return (uint64_t)t->at.x * t->block.x + t->thread.x;
}

/* The first lane of a warp does the work of all. */
#define BODY(kernel, type)                                                               \
    static void run_##kernel##_##type(const struct standin_thread *t, void *const *args) \
    {                                                                                    \
        const struct gpu_args *a = args[0];                                              \
                                                                                         \
        if (place(t) < a->n)                                                             \
            gpu_##kernel##_##type(a, place(t));                                          \
    }
#define ROW_BODY(kernel, type)                                                           \
    static void run_##kernel##_##type(const struct standin_thread *t, void *const *args) \
    {                                                                                    \
        const struct gpu_args *a = args[0];                                              \
                                                                                         \
        if (place(t) % GPU_LANES == 0 && place(t) / GPU_LANES < a->n)                    \
            gpu_##kernel##_##type(a, place(t) / GPU_LANES, 0);                           \
    }
#define X(kernel) BODY(kernel, f32) BODY(kernel, bf16)
#define Y(kernel) ROW_BODY(kernel, f32) ROW_BODY(kernel, bf16)
GPU_MAP(X, Y)
#undef X
#undef Y

#define TWIN(kernel, type)                                                                    \
    {                                                                                         \
        .name = "gpt_" #kernel "_" #type, .n_args = 1, .arg_size = {sizeof(struct gpu_args)}, \
        .thread = run_##kernel##_##type, .usable = usable, .ranges = ranges                   \
    }
#define X(kernel) TWIN(kernel, f32), TWIN(kernel, bf16),

extern const struct standin_kernel standin_kernels[];
STANDIN_API const struct standin_kernel standin_kernels[] = {GPU_MAP(X, X){.name = NULL}};
