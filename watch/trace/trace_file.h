/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a trace, written while the job runs by a separate thread (writer.h). When FILE has half of the allowed
 * size it becomes FILE.old, which replaces an earlier one, and a new FILE begins: so the newest records are kept. The
 * loop's thread.
 */
#ifndef WATCH_TRACE_TRACE_FILE_H
#define WATCH_TRACE_TRACE_FILE_H

#include "watch/trace/trace_format.h"

#include <uv.h>

struct trace_file;

struct trace_file_options {
    const char *path; /* copied */
    const char *job;
    uint64_t max_bytes; /* of FILE and FILE.old together */
    /* The file cannot be written any more. Called once. */
    void (*lost)(void *arg, const char *path, int error);
    void *arg;
};

/* Creates the file, or empties it. CDDP_E_SYSTEM, CDDP_E_NOMEM. *out is written on success only. */
cddp_status trace_file_open(struct trace_file **out, uv_loop_t *loop, const struct trace_file_options *opt,
                            struct cdi_error *err);
/* Writes records. If the disk is slower than the job they are dropped, and counted as lost by those that follow. */
void trace_file_add(struct trace_file *f, const struct cdi_records *r, const struct trace_clock *clock);
/* Returns the state of the trace, for its counts. */
const struct trace_format *trace_file_format(const struct trace_file *f);
/* Returns whether FILE.old exists. */
bool trace_file_has_old(const struct trace_file *f);
const char *trace_file_path(const struct trace_file *f);
/* Returns whether the file cannot be written any more: lost() was called. */
bool trace_file_is_broken(const struct trace_file *f);
/* Returns whether the path has no file, or another one. It is this one's for a pipe or a device. */
bool trace_file_is_gone(const struct trace_file *f);
/*
 * Completes the file, calls closed(arg, true) when it is written, and frees f after that. If writing hangs for WAIT_MS,
 * calls closed(arg, false): exit by _exit().
 */
#define TRACE_FILE_WAIT_MS 5000
void trace_file_close(struct trace_file *f, void (*closed)(void *arg, bool flushed), void *arg);

#endif
