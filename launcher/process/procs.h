/* SPDX-License-Identifier: Apache-2.0 */
/* All processes, and what /proc/PID/stat says of one. No libuv, no thread. */
#ifndef CDI_PROCESS_PROCS_H
#define CDI_PROCESS_PROCS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct procs_stat {
    char state; /* 'R', 'S', 'T' (stopped by a signal), 't' (by a tracer), ...: proc_pid_stat(5) */
    pid_t parent, group;
    uint64_t cpu_ms; /* processor time of all its threads */
};

/* Reads the state of a process; false: it is gone. */
bool procs_stat(pid_t pid, struct procs_stat *out);
/* Calls found for each process. Returns false if /proc cannot be read. */
bool procs_each(void (*found)(void *arg, pid_t pid), void *arg);

#endif
