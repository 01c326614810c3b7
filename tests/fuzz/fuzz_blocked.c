/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that cannot be stopped: the kernel's line about it, a zero byte, then the memory of its code and its stack.
 */
#include "launcher/process/blocked.h"
#include "launcher/process/stack_scan.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY UINT64_C(0x10000)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct memory {
    const uint8_t *bytes;
    size_t n;
};

static size_t read_memory(void *arg, uint64_t at, void *to, size_t n)
{
    const struct memory *m = arg;

    if (at < MEMORY || at - MEMORY >= m->n)
        return 0;
    n = n < m->n - (size_t)(at - MEMORY) ? n : m->n - (size_t)(at - MEMORY);
    memcpy(to, m->bytes + (at - MEMORY), n);
    return n;
}

static bool is_code(void *arg, uint64_t at)
{
    const struct memory *m = arg;

    return at >= MEMORY && at - MEMORY < m->n;
}

static void check(const struct memory *m, const struct stack_caller *c)
{
    if (c->pc <= MEMORY || c->pc - MEMORY > m->n || (c->sp != 0 && (c->sp < MEMORY || c->sp - MEMORY > m->n)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data, 0, size < BLOCKED_LINE ? size : BLOCKED_LINE);
    struct task_registers regs;
    struct stack_caller caller;
    struct memory m;
    struct stack_scan scan = {.read = read_memory, .is_code = is_code, .arg = &m};
    uint64_t entry;

    if (end == NULL)
        return 0;
    m = (struct memory){.bytes = end + 1, .n = size - (size_t)(end + 1 - data)};
    if (blocked_parse((const char *)data, &regs) && (regs.n == 0 || regs.n > TASK_REGISTERS || regs.pc == 0))
        abort();
    entry = MEMORY + (m.n > 0 ? m.bytes[0] : 0);
    if (stack_scan_x86_64(&scan, entry, entry + 64, MEMORY, &caller))
        check(&m, &caller);
    caller.fp = MEMORY;
    for (int i = 0; caller.fp != 0 && stack_scan_aarch64(&scan, caller.fp, i > 0, &caller); i++) {
        check(&m, &caller);
        if (i > 1 << 20)
            abort();
    }
    return 0;
}
