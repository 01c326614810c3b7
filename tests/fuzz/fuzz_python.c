/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a process that says it is Python: the first byte selects the version, the rest is all of its memory. */
#include "../support/planted_python.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text, size_t cap)
{
    if (strlen(text) >= cap)
        abort();
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            abort();
}

static void check_thread(const struct python_thread *t)
{
    if (t->n_frames > 8)
        abort();
    for (uint32_t i = 0; i < t->n_frames; i++) {
        check_text(t->frames[i].function, sizeof t->frames[i].function);
        check_text(t->frames[i].file, sizeof t->frames[i].file);
        if (t->frames[i].line < 0)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct planted p = {.bytes = data + 1, .n = size - 1, .reads_left = 5000};
    const struct python_memory m = {.read = planted_read, .arg = &p};
    const struct python_stack_limits limits = {.max_threads = 4, .max_frames = 8};
    uint64_t offsets[PYTHON_DEBUG_OFFSETS] = {0};
    struct python_layout l;
    struct python_stacks s;
    struct cdi_error err;
    uint32_t version;
    cddp_status st;

    if (size < 1)
        return 0;
    version = (3u << 8 | (9 + data[0] % 8)) << 16;
    memcpy(offsets, p.bytes, p.n < sizeof offsets ? p.n : sizeof offsets);
    if (python_layout_of(&l, version, offsets, &err) != CDDP_OK)
        return 0;
    st = python_decode(&m, &l, PLANTED_BASE, &limits, &s, &err);
    if (s.n > limits.max_threads || (st != CDDP_OK && err.msg[0] == '\0'))
        abort();
    for (uint32_t i = 0; i < s.n; i++)
        check_thread(&s.threads[i]);
    python_stacks_release(&s);
    return 0;
}
