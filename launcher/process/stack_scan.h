/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the caller of a function is, when the tables need the frame pointer, and that register is not known: its saved
 * value and the return address are looked for on the stack. A return address is accepted only with a proof beside it.
 * A stack may hold remains of earlier calls, so the result stays uncertain. Pure but for reading memory.
 */
#ifndef STACK_SCAN_H
#define STACK_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STACK_SCAN_BYTES 65536 /* of the stack that are looked at for one frame */

/* The process that is looked at. */
struct stack_scan {
    /* Reads at most n bytes, and returns how many there are from that address on. */
    size_t (*read)(void *arg, uint64_t at, void *to, size_t n);
    bool (*is_code)(void *arg, uint64_t at); /* is a function of the process there? */
    void *arg;
};

/* A caller: fp and sp are its registers after the call has returned, pc is the return address. */
struct stack_caller {
    uint64_t fp, sp, pc;
};

/*
 * x86-64: finds the caller of the function that begins at entry, executes pc, and has the stack pointer sp. The return
 * address is where the function's first instructions tell that its frame ends, and is after a call of entry or of a
 * pointer. Otherwise it is the lowest one that is after a call of entry: a direct call, or one through the linkage
 * table or the offset table. False: there is none.
 */
bool stack_scan_x86_64(const struct stack_scan *s, uint64_t entry, uint64_t pc, uint64_t sp, struct stack_caller *out);

/*
 * Arm64: finds the first frame record (frame pointer and return address, AAPCS64 section 6.4.6) from at on, or only at
 * that place. A function that has not saved its return address is not seen. out->sp is 0: not known.
 */
bool stack_scan_aarch64(const struct stack_scan *s, uint64_t at, bool only_there, struct stack_caller *out);

#endif
