/* SPDX-License-Identifier: Apache-2.0 */
/* What a program named py-spy prints: names in it are those of a worker. */
#include "launcher/process/python_stack.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text, size_t cap)
{
    if (strlen(text) >= cap)
        abort();
    for (; *text != '\0'; text++)
        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7F)
            abort();
}

static void check_thread(const struct python_thread *t)
{
    if (t->n_frames < 1 || t->n_frames > 8)
        abort();
    check_text(t->name, sizeof t->name);
    for (uint32_t i = 0; i < t->n_frames; i++) {
        check_text(t->frames[i].function, sizeof t->frames[i].function);
        check_text(t->frames[i].file, sizeof t->frames[i].file);
        if (t->frames[i].line < 0)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct python_stack_limits limits = {.max_threads = 4, .max_frames = 8};
    struct python_stacks s;
    struct cdi_error err;
    const cddp_status st = python_stacks_parse((const char *)data, size, 77, &limits, &s, &err);

    if (s.n > limits.max_threads || (st == CDDP_OK) != (s.n > 0) || (st != CDDP_OK && err.msg[0] == '\0'))
        abort();
    for (uint32_t i = 0; i < s.n; i++)
        check_thread(&s.threads[i]);
    python_stacks_release(&s);
    return 0;
}
