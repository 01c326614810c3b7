/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of another process: their names and states, and stopping one for a moment, by ptrace(2). Nothing here
 * waits beyond its deadline, or takes the end of a process from its parent.
 */
#ifndef TASKS_H
#define TASKS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define TASK_NAME 32 /* bytes of a thread's name, NUL included */

/*
 * Writes the ids of pid's threads in ascending order, the main thread first, at most `most` of them. Returns how many
 * there are in all; -1: pid is gone.
 */
int tasks_list(pid_t pid, pid_t *task, int most);
/* Reads a thread's name, with '?' for bytes that no terminal should get, and the letter of its state; false: it is
 * gone. */
bool task_look(pid_t pid, pid_t tid, char name[TASK_NAME], char *state);
/*
 * Is a thread of pid in uninterruptible sleep (D state), and stays so for a moment? It may hold the lock of the
 * process's memory: a read of that memory would then not return either. Threads that are frozen by their cgroup do not
 * count, although the kernel calls it the same: they are frozen where they hold no such lock.
 */
bool tasks_are_stuck(pid_t pid);

/*
 * Stops a thread. Returns 0, and then task_let_go() with *signal lets it go on; or an errno: EPERM (it may not be
 * traced), ESRCH (it is gone), ETIMEDOUT (it has not stopped until deadline_ns, since it is in uninterruptible sleep).
 * After ETIMEDOUT it stays traced until the calling thread ends. A stopped thread stays stopped. The calls for one
 * thread must come from one thread.
 */
int task_hold(pid_t pid, pid_t tid, int64_t deadline_ns, int *signal);
void task_let_go(pid_t tid, int signal);

#endif
