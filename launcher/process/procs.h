/* SPDX-License-Identifier: Apache-2.0 */
/* States of processes, from /proc. No libuv, no thread. */
#ifndef CDI_PROCESS_PROCS_H
#define CDI_PROCESS_PROCS_H

#include <stdbool.h>
#include <sys/types.h>

#define PROCS_STAT 512

/*
 * Reads /proc/PID/stat, "PID (name, with anything in it) S PPID PGRP ...", into text. path is relative to dir, or
 * absolute. Returns the text from the letter of the state on; NULL if the process is gone.
 */
const char *procs_stat(int dir, const char *path, char text[PROCS_STAT]);

/*
 * Calls found for each process that a signal has stopped (state T), but not for those that a tracer has stopped (t).
 * Returns false if /proc cannot be read.
 */
bool procs_stopped(void (*found)(void *arg, pid_t pid, pid_t group), void *arg);

/* Calls found for each process. Returns false if /proc cannot be read. */
bool procs_each(void (*found)(void *arg, pid_t pid), void *arg);

#endif
