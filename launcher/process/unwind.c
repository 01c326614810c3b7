/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/unwind.h"

#ifdef CDI_LIBDW

#include "common/cleanup.h"
#include "common/clock.h"
#include "launcher/process/stack_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* DWARF's numbers; CALLER_REGISTER is or points to the return address after a call. */
#if defined __aarch64__
#define FRAME_POINTER 29
#define STACK_POINTER 31
#define RETURN_ADDRESS 30
#define CALLER_REGISTER RETURN_ADDRESS
#else
#define FRAME_POINTER 6
#define STACK_POINTER 7
#define RETURN_ADDRESS 16
#define CALLER_REGISTER STACK_POINTER
#endif

/* ------------------------------------------------------------------------------------------------- unwinding ---- */

/* No lookup of separate debugging information: it could ask servers of the network (debuginfod). */
static int find_debug_info(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, const char *file,
                           const char *link, GElf_Word crc, char **path)
{
    (void)module, (void)user, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)path;
    return -1;
}

static pid_t next_thread(Dwfl *dwfl, void *arg, void **thread_arg)
{
    (void)dwfl, (void)arg, (void)thread_arg;
    return 0;
}

static bool get_thread(Dwfl *dwfl, pid_t tid, void *arg, void **thread_arg)
{
    struct unwind *u = arg;

    (void)dwfl;
    *thread_arg = u;
    return tid == u->tid;
}

static bool read_memory(Dwfl *dwfl, Dwarf_Addr addr, Dwarf_Word *result, void *arg)
{
    const struct unwind *u = arg;

    (void)dwfl;
    return pread(u->mem, result, sizeof *result, (off_t)addr) == (ssize_t)sizeof *result;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
    struct unwind *u = arg;

    for (uint32_t i = 0; i < u->regs.n; i++)
        if ((u->regs.unknown >> i & 1) == 0 && !u->dw.set_registers(thread, (int)i, 1, &u->regs.value[i]))
            return false;
    u->dw.set_pc(thread, u->regs.pc);
    return true;
}

static const Dwfl_Thread_Callbacks thread_callbacks = {.next_thread = next_thread,
                                                       .get_thread = get_thread,
                                                       .memory_read = read_memory,
                                                       .set_initial_registers = set_registers};

static int on_frame(Dwfl_Frame *frame, void *arg)
{
    struct unwind *u = arg;
    struct stack_thread *t = u->thread;
    Dwarf_Addr pc;
    bool exact;

    if (!u->dw.frame_pc(frame, &pc, &exact))
        return DWARF_CB_ABORT;
    pc -= exact ? 0 : 1; /* a return address may lie in the next line, or in the next function */
    if (t->n > 0 && t->pc[t->n - 1] == pc && pc == 0)
        return DWARF_CB_ABORT;
    t->cut = t->n == u->frames || cdi_now_ns() >= u->deadline_ns;
    if (t->cut)
        return DWARF_CB_ABORT;
    /* An older library tells no registers: then that of the first frame is known, which the kernel has given. */
    u->has_sp =
        u->dw.frame_register != NULL ? u->dw.frame_register(frame, STACK_POINTER, &u->sp) == 0 : t->n == u->first;
    t->pc[t->n++] = pc;
    return DWARF_CB_OK;
}

/*
 * After a call of an address without code, such as NULL, no table describes the frame. The call has put its return
 * address on the stack (or, on Arm, into x30), and nothing has moved since: go on from there.
 */
static void leave_wild_address(struct unwind *u, struct stack_thread *t)
{
    uint64_t caller = 0;

    if (u->dw.module_of(u->dwfl, u->regs.pc) != NULL || (u->regs.unknown >> CALLER_REGISTER & 1) != 0)
        return;
#if defined __x86_64__
    if (pread(u->mem, &caller, sizeof caller, (off_t)u->regs.value[7]) != (ssize_t)sizeof caller)
        return;
    u->regs.value[7] += sizeof caller;
    u->regs.value[16] = caller;
#elif defined __aarch64__
    caller = u->regs.value[30];
#endif
    if (caller == 0 || u->dw.module_of(u->dwfl, caller - 1) == NULL)
        return;
    t->pc[t->n++] = u->regs.pc;
    u->regs.pc = caller - 1;
#if defined __x86_64__
    u->regs.value[16] = caller - 1;
#endif
}

/* Appends the frames that the tables give from u->regs on. */
static bool add_frames(struct unwind *u, struct stack_thread *t)
{
    u->first = t->n;
    u->has_sp = false;
    u->sp = u->regs.n > STACK_POINTER ? u->regs.value[STACK_POINTER] : 0;
    return u->dw.thread_frames(u->dwfl, t->tid, on_frame, u) != -1;
}

void unwind_thread(struct unwind *u, struct stack_thread *t, const struct task_registers *regs)
{
    u->thread = t;
    u->tid = t->tid;
    u->regs = *regs;
    if (u->frames > 1)
        leave_wild_address(u, t);
    if (!add_frames(u, t) && t->n == 0)
        t->why_none = "its frames cannot be read";
}

/* ---------------------------------------------------------------------------------- without some registers ---- */

/* Whether a frame has a caller, by the tables. */
enum outwards {
    OUTWARDS_NONE,          /* it is a thread's or the program's outermost function */
    OUTWARDS_FRAME_POINTER, /* by the frame pointer, and libdw has given up without it */
    OUTWARDS_UNKNOWN,
};

/* The row of the tables for an address, which the caller frees; NULL: there is none. */
static Dwarf_Frame *unwind_table(const struct unwind *u, uint64_t pc)
{
    Dwfl_Module *module = u->dw.module_of(u->dwfl, pc);
    Dwarf_Frame *frame = NULL;
    Dwarf_Addr bias = 0;
    Dwarf_CFI *table = module == NULL ? NULL : u->dw.frames_eh(module, &bias);

    if (table != NULL && u->dw.frame_at(table, pc - bias, &frame) == 0)
        return frame;
    table = module == NULL ? NULL : u->dw.frames_debug(module, &bias);
    return table != NULL && u->dw.frame_at(table, pc - bias, &frame) == 0 ? frame : NULL;
}

/*
 * libdw ends at a frame whose address it cannot compute as it does at the outermost one: elfutils,
 * libdwfl/frame_unwind.c, handle_cfi() leaves a register unset if expr_eval() lacks another one that its rule needs,
 * and takes an unset return address for the end. So the tables are asked for the difference.
 */
static enum outwards outwards_of(const struct unwind *u, uint64_t pc)
{
    CDI_AUTOFREE Dwarf_Frame *frame = unwind_table(u, pc);
    Dwarf_Op memory[3], *ops = NULL;
    size_t n = 0;
    uint64_t number, back;

    if (frame == NULL)
        return OUTWARDS_UNKNOWN;
    if (u->dw.frame_rule(frame, RETURN_ADDRESS, memory, &ops, &n) == 0 && n == 0 && ops == memory)
        return OUTWARDS_NONE;
    if (u->dw.frame_address(frame, &ops, &n) != 0 || n != 1)
        return OUTWARDS_UNKNOWN;
    number = ops[0].atom == DW_OP_bregx ? ops[0].number : (uint64_t)ops[0].atom - DW_OP_breg0;
    if (number == FRAME_POINTER)
        return OUTWARDS_FRAME_POINTER;
    if (number != STACK_POINTER || !u->has_sp || CALLER_REGISTER != STACK_POINTER)
        return OUTWARDS_UNKNOWN;
    /* Other languages and libraries end with a return address of 0. */
    back = u->sp + (ops[0].atom == DW_OP_bregx ? ops[0].number2 : ops[0].number) - sizeof back;
    return pread(u->mem, &back, sizeof back, (off_t)back) == (ssize_t)sizeof back && back == 0 ? OUTWARDS_NONE
                                                                                               : OUTWARDS_UNKNOWN;
}

static size_t scan_read(void *arg, uint64_t at, void *to, size_t n)
{
    const struct unwind *u = arg;
    const ssize_t got = at > INT64_MAX ? -1 : pread(u->mem, to, n, (off_t)at);

    return got < 0 ? 0 : (size_t)got;
}

static bool scan_is_code(void *arg, uint64_t at)
{
    const CDI_AUTOFREE Dwarf_Frame *frame = unwind_table(arg, at);

    return frame != NULL;
}

/* The first instruction of the function that executes pc; 0: not known. */
static uint64_t entry_of(const struct unwind *u, uint64_t pc)
{
    Dwfl_Module *module = u->dw.module_of(u->dwfl, pc);
    GElf_Off offset = 0;
    GElf_Sym symbol;

    if (module == NULL || u->dw.symbol_at(module, pc, &offset, &symbol, NULL, NULL, NULL) == NULL)
        return 0;
    return symbol.st_size != 0 && offset >= symbol.st_size ? 0 : pc - offset;
}

/* Arm64: a list of records, each with the address of the next one. It ends with 0. */
static void add_records(struct unwind *u, struct stack_thread *t, const struct stack_scan *scan)
{
    struct stack_caller caller = {.fp = u->sp};

    for (bool only_there = false; stack_scan_aarch64(scan, caller.fp, only_there, &caller); only_there = true) {
        t->cut = t->n == u->frames || cdi_now_ns() >= u->deadline_ns;
        if (t->cut)
            return;
        t->pc[t->n++] = caller.pc - 1;
        if (caller.fp == 0)
            return;
    }
    t->lost = true;
}

/* Sets the registers that are known of the outermost frame's caller; false: it is not found. */
static bool find_caller(struct unwind *u, const struct stack_thread *t, const struct stack_scan *scan)
{
    const uint64_t pc = t->pc[t->n - 1];
    struct stack_caller caller;

    if (!u->has_sp || outwards_of(u, pc) != OUTWARDS_FRAME_POINTER ||
        !stack_scan_x86_64(scan, entry_of(u, pc), pc, u->sp, &caller))
        return false;
    u->regs.unknown = ~(UINT64_C(1) << FRAME_POINTER | UINT64_C(1) << STACK_POINTER | UINT64_C(1) << RETURN_ADDRESS);
    u->regs.value[FRAME_POINTER] = caller.fp;
    u->regs.value[STACK_POINTER] = caller.sp;
    u->regs.value[RETURN_ADDRESS] = u->regs.pc = caller.pc - 1; /* in the call: the tables' row of it counts */
    return true;
}

void unwind_blocked(struct unwind *u, struct stack_thread *t, const struct task_registers *regs)
{
    const struct stack_scan scan = {.read = scan_read, .is_code = scan_is_code, .arg = u};

    t->blocked = true;
    unwind_thread(u, t, regs);
    while (t->n > 0 && !t->cut && t->why_none == NULL && outwards_of(u, t->pc[t->n - 1]) != OUTWARDS_NONE) {
        const int before = t->n;

        if (FRAME_POINTER == 29 && u->has_sp) {
            t->found = t->n;
            add_records(u, t, &scan);
            break;
        }
        t->lost = !find_caller(u, t, &scan);
        if (t->lost)
            break;
        t->found = t->found == 0 ? t->n : t->found;
        t->lost = !add_frames(u, t) && t->n == before;
        if (t->n == before)
            break;
    }
    if (t->found >= t->n)
        t->found = 0;
}

/* ------------------------------------------------------------------------------------------------ the process ---- */

cddp_status unwind_denied(pid_t pid, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_DENIED,
                    "process %d may not be traced, so its stacks cannot be read: see kernel.yama.ptrace_scope, or give "
                    "the container SYS_PTRACE",
                    (int)pid);
}

/*
 * The kernel opens a process's memory to the processes that may trace it (ptrace(2), "Ptrace access mode checking"), so
 * this also asks whether its threads may be stopped.
 */
static cddp_status open_memory(struct unwind *u, struct cdi_error *err)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/%d/mem", (int)u->pid);
    u->mem = open(path, O_RDONLY | O_CLOEXEC);
    u->opened = u->mem >= 0;
    if (u->opened)
        return CDDP_OK;
    if (errno == ENOENT || errno == ESRCH)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "process %d is gone", (int)u->pid);
    if (errno == EPERM || errno == EACCES)
        return unwind_denied(u->pid, err);
    return cdi_fail_errno(err, errno, "%s", path);
}

static cddp_status open_modules(struct unwind *u, struct cdi_error *err)
{
    int result;

    u->dwfl = u->dw.begin(&u->callbacks);
    if (u->dwfl == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory (the stacks of process %d)", (int)u->pid);
    result = u->dw.report(u->dwfl, u->pid);
    if (result == 0)
        result = u->dw.report_end(u->dwfl, NULL, NULL);
    if (result == 0)
        result = u->dw.attach(u->dwfl, NULL, u->pid, &thread_callbacks, u) ? 0 : -1;
    if (result == ENOENT || result == ESRCH)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "process %d is gone", (int)u->pid);
    if (result > 0)
        return cdi_fail_errno(err, result, "cannot read the stacks of process %d", (int)u->pid);
    if (result < 0)
        return cdi_fail(err, CDDP_E_SYSTEM, "cannot read the stacks of process %d: %s", (int)u->pid,
                        u->dw.error_text(-1));
    return CDDP_OK;
}

cddp_status unwind_open(struct unwind *u, struct cdi_error *err)
{
    cddp_status st = open_memory(u, err);

    u->callbacks = (Dwfl_Callbacks){.find_elf = u->dw.find_elf, .find_debuginfo = find_debug_info};
    return st == CDDP_OK ? open_modules(u, err) : st;
}

void unwind_close(struct unwind *u)
{
    if (u->dwfl != NULL)
        u->dw.end(u->dwfl);
    if (u->opened)
        (void)close(u->mem);
    u->opened = false;
    u->dwfl = NULL;
}

#else

typedef int unwind_is_not_used; /* C has no empty sources */

#endif
