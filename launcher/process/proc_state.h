/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process of this node does: whether it runs, sleeps and in what, is stopped, frozen, swapping, or held back by
 * its cgroup's limit of memory. Two looks at /proc and at its cgroup are compared. Taking a sample reads a dozen small
 * files, and never stops the process; the text is pure. Any thread.
 */
#ifndef PROC_STATE_H
#define PROC_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROC_STATE_TEXT 128 /* bytes that hold every text, NUL included */

/* Numbers are -1, and texts "", where the kernel does not tell. */
struct proc_sample {
    pid_t pid;            /* 0: no sample */
    int64_t at_ns;        /* cdi_now_ns() */
    uint64_t started;     /* of the process, in ticks since the start of the system: distinguishes pids in use again */
    char state;           /* of its main thread: R, S, D, T, t, Z, X, I; '\0': the process is gone */
    int stop_signal;      /* of a stopped process */
    pid_t tracer;         /* 0: none */
    int32_t threads;      /* -1: not known */
    int64_t cpu_ns;       /* processor time of all its threads */
    int64_t waited_ns;    /* its main thread was ready to run, but on no core */
    int64_t switches;     /* of its main thread from a core */
    int64_t major_faults; /* pages that were read from a disk */
    int64_t swap_bytes;
    char wchan[40];       /* the kernel's function in which its main thread sleeps */
    char call[64];        /* the system call and its object: "read of a pipe" */
    bool frozen;          /* by its cgroup */
    int64_t memory_limit; /* of the cgroup that is at its limit; 0: none is */
    int64_t memory_waits; /* how often that cgroup has reached it */
};

/*
 * Looks at a process. Returns 0, or ESRCH: it is gone, and *out is a sample of that. Facts that need a permission stay
 * unknown, without an error.
 */
int proc_sample_take(pid_t pid, struct proc_sample *out);

/* Does the same with a prefix for the paths of /proc and /sys; for tests. */
int proc_sample_take_below(const char *root, pid_t pid, struct proc_sample *out);

/* Has a cgroup frozen the process? It runs no instruction until that ends. False: or it is gone. */
bool proc_is_frozen(pid_t pid);

/*
 * Writes what the process does, by two samples of it: "running, 99 % of a core", "sleeping in read of a pipe", "stopped
 * by SIGSTOP", "in D state (nfs_wait) for 12 s", "frozen by its cgroup", "at its memory limit of 2.0 GiB", "swapping",
 * "exited". before: NULL, or an older sample of the same process; without it there is no share of processor time. Times
 * are those between the samples, so that they are true for the whole of them.
 */
void proc_state_text(const struct proc_sample *before, const struct proc_sample *now, char *buf, size_t cap);

#endif
