/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/unwind.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
    return tid == u->thread->tid;
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
        if (!u->dw.set_registers(thread, (int)i, 1, &u->regs.value[i]))
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

    if (u->regs.n == 0 || u->dw.module_of(u->dwfl, u->regs.pc) != NULL)
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

void unwind_thread(struct unwind *u, struct stack_thread *t)
{
    u->thread = t;
    if (u->is_waiting && u->frames > 1)
        leave_wild_address(u, t);
    if (u->dw.thread_frames(u->dwfl, t->tid, on_frame, u) == -1 && t->n == 0)
        (void)snprintf(t->why_none, sizeof t->why_none, "its frames cannot be read");
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
    if (result == 0 && u->is_waiting)
        result = u->dw.attach_state(u->dwfl, NULL, u->pid, &thread_callbacks, u) ? 0 : -1;
    else if (result == 0)
        result = u->dw.attach(u->dwfl, u->pid, true);
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
