/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registers of a thread that cannot be stopped, because it waits in the kernel: it is frozen by its cgroup, or in
 * uninterruptible sleep. The kernel prints some of them while it waits. Nothing here stops or changes the thread.
 */
#ifndef BLOCKED_H
#define BLOCKED_H

#include "launcher/process/tasks.h"

#define BLOCKED_LINE 256 /* bytes that hold the kernel's line; NUL included */

/* A look at a waiting thread. Two equal looks show that it has not run between them. */
struct blocked_look {
    char line[BLOCKED_LINE]; /* of /proc/PID/task/TID/syscall */
    int64_t switches;        /* how often it has left a core; -1: not known */
};

/*
 * Reads the registers from a line of /proc/PID/task/TID/syscall, for this machine. Its program counter and its stack
 * pointer are known, and the registers of a system call's arguments if it waits in one; regs->unknown has the others.
 * False: the line is that of a running thread, of one without a stack, or broken. Pure.
 */
bool blocked_parse(const char *line, struct task_registers *regs);

/* Takes a look; false: the thread is gone, or may not be traced, or the kernel has no such file. */
bool blocked_look(pid_t pid, pid_t tid, struct blocked_look *look);
bool blocked_is_same(const struct blocked_look *a, const struct blocked_look *b);

/* Is pid a 64-bit program of this machine? The registers of others have other numbers. False: or it is gone. */
bool blocked_is_native(pid_t pid);

#endif
