/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that touches the program's memory: instrumented like the program, so that sanitizers see it. */
#include "core.h"

#include <string.h>

void si_touch_copy(void *to, const void *from, size_t bytes)
{
    memmove(to, from, bytes);
}

void si_touch_word(uint32_t *at, uint32_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

void si_touch_store(void **to, void *value)
{
    *to = value;
}

void si_touch_fill(void *to, uint32_t value, size_t width, size_t count)
{
    uint32_t *words = to;

    if (width == 1) {
        memset(to, (int)(value & 0xff), count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        words[i] = value;
}

/* Every thread of every block, those beyond the data too: so a missing bounds check shows. */
static void run_block(const struct standin_kernel *k, struct standin_thread *t, void *const *args)
{
    if (k->block != NULL) {
        k->block(t, args);
        return;
    }
    for (t->thread.z = 0; t->thread.z < t->block.z; t->thread.z++)
        for (t->thread.y = 0; t->thread.y < t->block.y; t->thread.y++)
            for (t->thread.x = 0; t->thread.x < t->block.x; t->thread.x++)
                k->thread(t, args);
    t->thread = (struct standin_dim){0, 0, 0};
}

void si_touch_kernel(const struct standin_kernel *k, const struct standin_thread *grid, void *const *args)
{
    struct standin_thread t = *grid;

    if (k->usable != NULL)
        k->usable(args);
    for (t.at.z = 0; t.at.z < t.grid.z; t.at.z++)
        for (t.at.y = 0; t.at.y < t.grid.y; t.at.y++)
            for (t.at.x = 0; t.at.x < t.grid.x; t.at.x++)
                run_block(k, &t, args);
}
