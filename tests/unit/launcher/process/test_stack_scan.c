/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/stack_scan.h"

#include <string.h>

CDI_SUITE(stack_scan);

/* A process with two pieces of memory: code, and a stack. */
#define CODE UINT64_C(0x400000)
#define STACK UINT64_C(0x7ffc00000000)
#define SIZE 4096
#define ENTRY (CODE + 0x100) /* the function whose caller is looked for */
#define PC (ENTRY + 0x40)
#define CALLER (CODE + 0x800) /* a place in its caller, after the call */
#define SAVED UINT64_C(0x7ffc00000f00)

static uint8_t code[SIZE], stack[SIZE];

static size_t planted_read(void *arg, uint64_t at, void *to, size_t n)
{
    const uint8_t *from = at >= STACK ? stack : code;
    const uint64_t base = at >= STACK ? STACK : CODE;

    (void)arg;
    if (at < base || at - base >= SIZE)
        return 0;
    n = n < SIZE - (at - base) ? n : SIZE - (size_t)(at - base);
    memcpy(to, from + (at - base), n);
    return n;
}

static bool planted_is_code(void *arg, uint64_t at)
{
    (void)arg;
    return at >= CODE && at < CODE + SIZE;
}

static const struct stack_scan scan = {.read = planted_read, .is_code = planted_is_code};

static void put_code(uint64_t at, const char *bytes, size_t n)
{
    memcpy(code + (at - CODE), bytes, n);
}

/* Writes a 32-bit distance from the end of an instruction to a place. */
static void put_distance(uint64_t at, uint64_t to)
{
    const uint32_t distance = (uint32_t)(to - (at + 4));

    memcpy(code + (at - CODE), &distance, sizeof distance);
}

static void put_pair(uint64_t at, uint64_t fp, uint64_t back)
{
    memcpy(stack + (at - STACK), &fp, sizeof fp);
    memcpy(stack + (at - STACK) + 8, &back, sizeof back);
}

static void put_pointer(uint64_t at, uint64_t to)
{
    memcpy(code + (at - CODE), &to, sizeof to);
}

static void clear(void)
{
    memset(code, 0x90, sizeof code);
    memset(stack, 0, sizeof stack);
}

/* call ENTRY, right before a place */
static void put_direct_call(uint64_t back, uint64_t to)
{
    put_code(back - 5, "\xe8", 1);
    put_distance(back - 4, to);
}

static void check_found(uint64_t at)
{
    struct stack_caller caller;

    cr_assert(stack_scan_x86_64(&scan, ENTRY, PC, STACK + 0x20, &caller));
    cr_assert_eq(caller.fp, SAVED);
    cr_assert_eq(caller.sp, at + 16);
    cr_assert_eq(caller.pc, CALLER);
}

static void check_none(void)
{
    struct stack_caller caller;

    cr_assert_not(stack_scan_x86_64(&scan, ENTRY, PC, STACK + 0x20, &caller));
}

Test(stack_scan, finds_a_direct_call_of_the_function)
{
    clear();
    put_pair(STACK + 0x60, SAVED, CALLER);
    check_none(); /* no call is before that place */
    put_direct_call(CALLER, ENTRY + 0x400);
    check_none(); /* a call of another function */
    put_direct_call(CALLER, ENTRY);
    check_found(STACK + 0x60);
    put_pair(STACK + 0xa0, SAVED + 16, CALLER);
    check_found(STACK + 0x60); /* the lowest: the other one is of a recursion */
    put_pair(STACK + 0x10, SAVED + 16, CALLER);
    check_found(STACK + 0x60); /* below the stack pointer is nothing that counts */
    put_pair(STACK + 0x48, SAVED, CALLER);
    check_found(STACK + 0x60); /* a frame pointer is aligned */
}

Test(stack_scan, finds_calls_through_tables)
{
    clear();
    put_pair(STACK + 0x60, SAVED, CALLER);
    put_direct_call(CALLER, CODE + 0x40); /* a stub: jmp *0xc00(%rip) */
    put_code(CODE + 0x40, "\xff\x25", 2);
    put_distance(CODE + 0x42, CODE + 0xc00);
    put_pointer(CODE + 0xc00, ENTRY + 1);
    check_none();
    put_pointer(CODE + 0xc00, ENTRY);
    check_found(STACK + 0x60);
    put_code(CODE + 0x40, "\xf3\x0f\x1e\xfa\xf2\xff\x25", 7); /* endbr64; bnd jmp */
    put_distance(CODE + 0x47, CODE + 0xc00);
    check_found(STACK + 0x60);

    clear();
    put_pair(STACK + 0x60, SAVED, CALLER);
    put_code(CALLER - 6, "\xff\x15", 2); /* call *0xc00(%rip) */
    put_distance(CALLER - 4, CODE + 0xc00);
    check_none();
    put_pointer(CODE + 0xc00, ENTRY);
    check_found(STACK + 0x60);
}

Test(stack_scan, expects_a_call_of_a_pointer_where_the_frame_ends)
{
    static const char start[] = "\xf3\x0f\x1e\xfa\x55\x48\x89\xe5\x41\x54\x53\x48\x83\xec\x20";
    static const char *const calls[] = {"\xff\xd0",
                                        "\x41\xff\xd4",
                                        "\xff\x50\x08",
                                        "\xff\x14\xc3",
                                        "\xff\x54\x24\x08",
                                        "\xff\x90\x40\x06\x01\x01",
                                        "\xff\x14\x25\x10\x20\x30\x40",
                                        "\xff\x94\x24\x01\x01\x01\x01"};

    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        clear();
        put_code(ENTRY, start, sizeof start - 1);
        put_code(CALLER - strlen(calls[i]), calls[i], strlen(calls[i]));
        put_pair(STACK + 0x70, SAVED, CALLER);
        check_none();                          /* elsewhere */
        put_pair(STACK + 0x50, SAVED, CALLER); /* 0x20 + two registers above the stack pointer */
        check_found(STACK + 0x50);
    }
    put_code(CALLER - 7, "\x90\x90\x90\x90\x90\xff\xe0", 7); /* a jump calls nothing */
    check_none();
}

Test(stack_scan, believes_a_frame_size_only_if_it_is_whole)
{
    struct stack_caller caller;

    clear();
    put_code(CALLER - 2, "\xff\xd0", 2);
    put_pair(STACK + 0x20, SAVED, CALLER);
    put_code(ENTRY, "\x55\x48\x89\xe5\x89\xf8\x90", 7); /* a subtraction may follow later */
    check_none();
    put_code(ENTRY, "\x55\x48\x89\xe5\x48\x83\xec\x00", 8);
    check_found(STACK + 0x20);
    put_code(ENTRY, "\x55\x48\x89\xe5\x48\x83\xec\x00\x48\x83\x0c\x24\x00", 13); /* the first of several */
    check_none();
    put_code(ENTRY, "\x55\x48\x89\xe5\x48\x81\xec\x00\x01\x00\x00", 11);
    put_code(ENTRY + 11, "\x90\x90\x90\x90", 4);
    put_pair(STACK + 0x120, SAVED, CALLER);
    check_found(STACK + 0x120);
    cr_assert_not(stack_scan_x86_64(&scan, ENTRY, ENTRY + 4, STACK + 0x20, &caller), "it has no frame yet");
    put_code(ENTRY, "\x55\x48\x89\xe5\x48\x81\xec\x00\x00\x00\xff", 11); /* a negative size */
    check_none();
}

Test(stack_scan, ends_where_memory_ends)
{
    struct stack_caller caller;

    clear();
    put_direct_call(CALLER, ENTRY);
    put_pair(STACK + SIZE - 16, SAVED, CALLER);
    check_found(STACK + SIZE - 16);
    cr_assert_not(stack_scan_x86_64(&scan, ENTRY, PC, STACK + SIZE - 8, &caller));
    cr_assert_not(stack_scan_x86_64(&scan, ENTRY, PC, STACK + 2 * SIZE, &caller));
    cr_assert_not(stack_scan_x86_64(&scan, ENTRY, PC, UINT64_MAX - 4, &caller));
    cr_assert_not(stack_scan_x86_64(&scan, 0, PC, STACK, &caller), "not a known function");
    cr_assert_not(stack_scan_x86_64(&scan, PC, ENTRY, STACK, &caller));
    put_pair(STACK + 0x40, SAVED, 3);
    put_pair(STACK + 0x50, SAVED, UINT64_MAX);
    put_pair(STACK + 0x60, SAVED, CODE + 2); /* a call before it would begin before the memory */
    check_found(STACK + SIZE - 16);
}

/* ----------------------------------------------------------------------------------------------------- arm64 ---- */

static void put_arm(uint64_t back, uint32_t instruction)
{
    memcpy(code + (back - 4 - CODE), &instruction, sizeof instruction);
}

Test(stack_scan, follows_records_of_arm64)
{
    struct stack_caller caller;

    clear();
    put_arm(CALLER, 0x97fffe00);                                                 /* bl */
    put_arm(CALLER + 0x40, 0xd63f0100);                                          /* blr x8 */
    put_arm(CALLER + 0x80, 0xd73f0920);                                          /* blraa x9, x0 */
    put_pair(STACK + 0x40, STACK + 0x80, UINT64_C(0x00a5000000000000) | CALLER); /* with a signature */
    put_pair(STACK + 0x80, STACK + 0x100, CALLER + 0x40);
    put_pair(STACK + 0x100, 0, CALLER + 0x80);
    cr_assert(stack_scan_aarch64(&scan, STACK + 0x18, false, &caller));
    cr_assert(caller.fp == STACK + 0x80 && caller.pc == CALLER && caller.sp == 0);
    cr_assert(stack_scan_aarch64(&scan, caller.fp, true, &caller));
    cr_assert(caller.fp == STACK + 0x100 && caller.pc == CALLER + 0x40);
    cr_assert(stack_scan_aarch64(&scan, caller.fp, true, &caller));
    cr_assert(caller.fp == 0 && caller.pc == CALLER + 0x80);
}

Test(stack_scan, rejects_other_words_as_records_of_arm64)
{
    struct stack_caller caller;

    clear();
    put_arm(CALLER, 0x97fffe00);
    put_pair(STACK + 0x40, STACK + 0x40, CALLER); /* it would go on forever */
    cr_assert_not(stack_scan_aarch64(&scan, STACK, false, &caller));
    put_pair(STACK + 0x40, STACK + 0x88, CALLER);
    cr_assert_not(stack_scan_aarch64(&scan, STACK, false, &caller));
    put_pair(STACK + 0x40, STACK + (UINT64_C(1) << 30), CALLER);
    cr_assert_not(stack_scan_aarch64(&scan, STACK, false, &caller));
    put_pair(STACK + 0x40, STACK + 0x80, CALLER + 8); /* no call is before it */
    cr_assert_not(stack_scan_aarch64(&scan, STACK, false, &caller));
    put_pair(STACK + 0x40, STACK + 0x80, 4);
    cr_assert_not(stack_scan_aarch64(&scan, STACK, false, &caller));
    put_pair(STACK + 0x40, STACK + 0x80, CALLER);
    cr_assert_not(stack_scan_aarch64(&scan, STACK + 0x30, true, &caller), "not there");
    cr_assert(stack_scan_aarch64(&scan, STACK + 0x30, false, &caller));
    cr_assert_not(stack_scan_aarch64(&scan, UINT64_MAX, false, &caller));
}
