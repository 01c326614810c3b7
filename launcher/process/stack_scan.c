/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/stack_scan.h"

#include "common/cleanup.h"

#include <stdlib.h>
#include <string.h>

#define CODE_BYTES 64  /* of a function's beginning */
#define CALL_BYTES 7   /* of the longest call with two or more bytes of address */
#define FRAME_ALIGN 16 /* of frame pointers, by both ABIs */
#define RECORD_APART_MAX (UINT64_C(8) << 20)

static uint64_t load_64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static int32_t load_i32(const uint8_t *p)
{
    int32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static bool read_64(const struct stack_scan *s, uint64_t at, uint64_t *value)
{
    return s->read(s->arg, at, value, sizeof *value) == sizeof *value;
}

/* ---------------------------------------------------------------------------------------------------- x86-64 ---- */

/*
 * Intel 64 and IA-32 manual, volume 2, CALL: E8 rel32, or FF /2 with a register or a memory operand. code has the
 * CALL_BYTES bytes before the return address.
 */
static bool is_indirect_call(const uint8_t *code)
{
    for (int n = 2; n <= CALL_BYTES; n++) {
        const uint8_t *p = code + (CALL_BYTES - n);
        const int mod = p[1] >> 6, rm = p[1] & 7;
        int length = 2;

        if (p[0] != 0xff || (p[1] >> 3 & 7) != 2)
            continue;
        if (mod != 3 && rm == 4)
            length++; /* an index */
        if (mod == 1)
            length++;
        else if (mod == 2 || (mod == 0 && rm == 5) || (mod == 0 && rm == 4 && n > 2 && (p[2] & 7) == 5))
            length += 4;
        if (length == n)
            return true;
    }
    return false;
}

/* Is there a stub of the linkage table at this address that jumps to entry? [endbr64] [bnd] jmp *OFFSET(%rip) */
static bool is_stub_of(const struct stack_scan *s, uint64_t at, uint64_t entry)
{
    uint8_t code[16] = {0};
    uint64_t to;
    size_t i = 0;

    if (s->read(s->arg, at, code, sizeof code) != sizeof code)
        return false;
    if (memcmp(code, "\xf3\x0f\x1e\xfa", 4) == 0)
        i = 4;
    i += code[i] == 0xf2;
    if (code[i] != 0xff || code[i + 1] != 0x25)
        return false;
    return read_64(s, at + i + 6 + (uint64_t)(int64_t)load_i32(code + i + 2), &to) && to == entry;
}

/* Is the instruction before this return address a call of entry, as far as the code tells? */
static bool calls_entry(const struct stack_scan *s, const uint8_t *code, uint64_t back, uint64_t entry)
{
    const uint64_t to = back + (uint64_t)(int64_t)load_i32(code + (CALL_BYTES - 4));
    uint64_t pointed;

    if (code[CALL_BYTES - 5] == 0xe8)
        return to == entry || is_stub_of(s, to, entry);
    if (code[CALL_BYTES - 6] == 0xff && code[CALL_BYTES - 5] == 0x15)
        return read_64(s, to, &pointed) && pointed == entry;
    return false;
}

static bool read_call(const struct stack_scan *s, uint64_t back, uint8_t code[CALL_BYTES])
{
    return back > CALL_BYTES && s->is_code(s->arg, back - 1) &&
           s->read(s->arg, back - CALL_BYTES, code, CALL_BYTES) == CALL_BYTES;
}

/* What a function's beginning tells about its frame. */
struct frame_start {
    uint64_t size;   /* how far above the stack pointer the saved frame pointer is */
    bool is_certain; /* no later instruction is expected to move the stack pointer */
};

/*
 * Reads push %rbp; mov %rsp,%rbp; then pushes; then a subtraction from %rsp, which a compiler may also put later,
 * or repeat for a large frame (orq $0,(%rsp) follows each). False: it begins in another way, or executes this.
 */
static bool read_start(const uint8_t *code, size_t n, uint64_t pc_offset, struct frame_start *out)
{
    int64_t size = 0;
    size_t i = 0, moves;

    if (n < CODE_BYTES)
        return false;
    i += memcmp(code, "\xf3\x0f\x1e\xfa", 4) == 0 ? 4 : 0;
    if (code[i++] != 0x55 || (memcmp(code + i, "\x48\x89\xe5", 3) != 0 && memcmp(code + i, "\x48\x8b\xec", 3) != 0))
        return false;
    for (i += 3; i + 16 < CODE_BYTES; size += 8) {
        const size_t prefix = code[i] == 0x41;

        if (code[i + prefix] < 0x50 || code[i + prefix] > 0x57)
            break;
        i += prefix + 1;
    }
    moves = memcmp(code + i, "\x48\x83\xec", 3) == 0 ? 4 : memcmp(code + i, "\x48\x81\xec", 3) == 0 ? 7 : 0;
    size += moves == 4 ? (int8_t)code[i + 3] : moves == 7 ? load_i32(code + i + 3) : 0;
    i += moves;
    *out = (struct frame_start){.size = (uint64_t)size,
                                .is_certain = moves != 0 && memcmp(code + i, "\x48\x83\x0c\x24", 4) != 0};
    return pc_offset >= i && size >= 0;
}

static bool take_expected(const struct stack_scan *s, uint64_t entry, uint64_t pc, uint64_t sp,
                          struct stack_caller *out)
{
    uint8_t code[CODE_BYTES], call[CALL_BYTES];
    struct frame_start start;
    uint64_t pair[2], at;

    if (!read_start(code, s->read(s->arg, entry, code, sizeof code), pc - entry, &start))
        return false;
    at = sp + start.size;
    if (at % FRAME_ALIGN != 0 || s->read(s->arg, at, pair, sizeof pair) != sizeof pair || !read_call(s, pair[1], call))
        return false;
    if (!calls_entry(s, call, pair[1], entry) && !(start.is_certain && is_indirect_call(call)))
        return false;
    *out = (struct stack_caller){.fp = pair[0], .sp = at + sizeof pair, .pc = pair[1]};
    return true;
}

static bool find_call(const struct stack_scan *s, uint64_t entry, uint64_t sp, struct stack_caller *out)
{
    CDI_AUTOFREE uint8_t *stack = malloc(STACK_SCAN_BYTES);
    const uint64_t first = (sp + FRAME_ALIGN - 1) / FRAME_ALIGN * FRAME_ALIGN;
    const size_t n = stack == NULL ? 0 : s->read(s->arg, first, stack, STACK_SCAN_BYTES);
    uint8_t call[CALL_BYTES];

    for (size_t i = 0; i + 16 <= n; i += FRAME_ALIGN) {
        const uint64_t back = load_64(stack + i + 8);

        if (!read_call(s, back, call) || !calls_entry(s, call, back, entry))
            continue;
        *out = (struct stack_caller){.fp = load_64(stack + i), .sp = first + i + 16, .pc = back};
        return true;
    }
    return false;
}

bool stack_scan_x86_64(const struct stack_scan *s, uint64_t entry, uint64_t pc, uint64_t sp, struct stack_caller *out)
{
    if (entry == 0 || pc < entry || sp > UINT64_MAX / 2)
        return false;
    return take_expected(s, entry, pc, sp, out) || find_call(s, entry, sp, out);
}

/* ----------------------------------------------------------------------------------------------------- arm64 ---- */

/* Arm Architecture Reference Manual, C6.2: BL, BLR, and BLRAA, BLRAB, BLRAAZ, BLRABZ with a signed address. */
static bool is_arm_call(uint32_t code)
{
    return code >> 26 == 0x25 || (code & 0xfffffc1f) == 0xd63f0000 || (code & 0xfefff800) == 0xd63f0800;
}

static bool take_record(const struct stack_scan *s, uint64_t at, const uint8_t pair[16], struct stack_caller *out)
{
    const uint64_t fp = load_64(pair), back = load_64(pair + 8) & ((UINT64_C(1) << 48) - 1); /* without a signature */
    uint32_t code;

    if (fp != 0 && (fp % FRAME_ALIGN != 0 || fp <= at || fp - at > RECORD_APART_MAX))
        return false;
    if (back < 8 || back % 4 != 0 || !s->is_code(s->arg, back - 1) ||
        s->read(s->arg, back - 4, &code, sizeof code) != sizeof code || !is_arm_call(code))
        return false;
    *out = (struct stack_caller){.fp = fp, .pc = back};
    return true;
}

bool stack_scan_aarch64(const struct stack_scan *s, uint64_t at, bool only_there, struct stack_caller *out)
{
    const size_t most = only_there ? 16 : STACK_SCAN_BYTES;
    CDI_AUTOFREE uint8_t *stack = malloc(most);
    const uint64_t first = (at + FRAME_ALIGN - 1) / FRAME_ALIGN * FRAME_ALIGN;
    const size_t n = stack == NULL || at > UINT64_MAX / 2 ? 0 : s->read(s->arg, first, stack, most);

    for (size_t i = 0; i + 16 <= n; i += FRAME_ALIGN)
        if (take_record(s, first + i, stack + i, out))
            return true;
    return false;
}
