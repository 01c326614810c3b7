/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linux, fs/proc/base.c, proc_pid_syscall() prints "running", "-1 SP PC" for a thread that waits outside of a system
 * call (a page fault, or a signal), or "NUMBER ARG1 ... ARG6 SP PC". The values are those with which the thread has
 * entered the kernel, also if it is frozen there. lib/syscall.c, collect_syscall() gives SP and PC 0 for a thread
 * without a stack. Both need the permission to trace.
 */
#include "launcher/process/blocked.h"

#include "launcher/process/small_file.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS 6

/* DWARF's numbers of the stack pointer, and of the registers of a system call's arguments; -1: it has changed. */
#if defined __x86_64__
#define REGISTERS 17
#define REGISTER_SP 7
#define MACHINE EM_X86_64
static const int argument_registers[ARGUMENTS] = {5, 4, 1, 10, 8, 9}; /* rdi rsi rdx r10 r8 r9 */
#elif defined __aarch64__
#define REGISTERS 32
#define REGISTER_SP 31
#define MACHINE EM_AARCH64
static const int argument_registers[ARGUMENTS] = {-1, 1, 2, 3, 4, 5}; /* x0 gets the result */
#endif

#ifdef REGISTERS

/* Reads " 0xHEX"; NULL: the line has none here. */
static const char *read_hex(const char *p, uint64_t *value)
{
    char *end;

    if (strncmp(p, " 0x", 3) != 0 || !isxdigit((unsigned char)p[3]))
        return NULL;
    *value = strtoull(p + 1, &end, 16);
    return end;
}

static void set(struct task_registers *regs, int number, uint64_t value)
{
    regs->value[number] = value;
    regs->unknown &= ~(UINT64_C(1) << number);
}

static const char *read_arguments(const char *p, struct task_registers *regs)
{
    uint64_t value;

    for (int i = 0; p != NULL && i < ARGUMENTS; i++) {
        p = read_hex(p, &value);
        if (p != NULL && argument_registers[i] >= 0)
            set(regs, argument_registers[i], value);
    }
    return p;
}

bool blocked_parse(const char *line, struct task_registers *regs)
{
    uint64_t sp, pc;
    char *end;
    const long call = strtol(line, &end, 10);
    const char *p = end;

    *regs = (struct task_registers){.n = REGISTERS, .unknown = (UINT64_C(1) << REGISTERS) - 1};
    if (end == line || call < -1)
        return false;
    if (call >= 0)
        p = read_arguments(p, regs);
    p = p == NULL ? NULL : read_hex(p, &sp);
    p = p == NULL ? NULL : read_hex(p, &pc);
    if (p == NULL || (*p != '\n' && *p != '\0') || sp == 0 || pc == 0)
        return false;
    regs->pc = pc;
    set(regs, REGISTER_SP, sp);
#if defined __x86_64__
    set(regs, 16, pc);
#endif
    return true;
}

bool blocked_is_native(pid_t pid)
{
    char path[64];
    Elf64_Ehdr head;
    ssize_t n;

    (void)snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    {
        CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

        n = fd < 0 ? -1 : read(fd, &head, sizeof head);
    }
    return n == (ssize_t)sizeof head && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
           head.e_ident[EI_CLASS] == ELFCLASS64 && head.e_machine == MACHINE;
}

#else

bool blocked_parse(const char *line, struct task_registers *regs)
{
    (void)line;
    *regs = (struct task_registers){.n = 0};
    return false;
}

bool blocked_is_native(pid_t pid)
{
    (void)pid;
    return false;
}

#endif

/* voluntary_ctxt_switches and nonvoluntary_ctxt_switches of a thread's status. */
static int64_t read_switches(pid_t pid, pid_t tid)
{
    char path[96], text[4096];
    int64_t sum = -1;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, (int)tid);
    if (!small_file_read(path, text, sizeof text))
        return -1;
    for (const char *p = strstr(text, "voluntary_ctxt_switches:"); p != NULL;
         p = strstr(p + 1, "voluntary_ctxt_switches:"))
        sum = (sum < 0 ? 0 : sum) + strtoll(p + strlen("voluntary_ctxt_switches:"), NULL, 10);
    return sum;
}

bool blocked_look(pid_t pid, pid_t tid, struct blocked_look *look)
{
    char path[96];

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)pid, (int)tid);
    look->switches = read_switches(pid, tid);
    return small_file_read(path, look->line, sizeof look->line);
}

bool blocked_is_same(const struct blocked_look *a, const struct blocked_look *b)
{
    return a->switches == b->switches && strcmp(a->line, b->line) == 0;
}
