/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread with bounded queues for blocking writes: a reader that does not read (a pager, a stopped terminal) or a
 * hanging disk never blocks the event loop. cddprun's own stdout and stderr are shared with other processes, and so are
 * never made non-blocking. Every source (a worker) has its own quota, so that endless output fills only that. All
 * functions: the loop's thread.
 */
#ifndef WRITER_H
#define WRITER_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define WRITER_HIGH \
    (512u * 1024) /* writer_full() is true from these queued bytes of a source on; less with many sources */
#define WRITER_MAX (24u * 1024 * 1024) /* further bytes of a source are dropped */

struct writer;
struct writer_sink;

struct writer_events {
    /* A source that was full has room again: see writer_full(). */
    void (*room)(void *arg);
    /* The first file that cannot be written any more; later output to such a file is dropped. Called once.
     */
    void (*lost)(void *arg, const char *path, int error);
    /*
     * A source's output cannot be written to cddprun's stdout (fd 1) or stderr (2): EPIPE (its reader is gone), ENOSPC
     * and so on. It is dropped, as is all later output there. Once for each fd; never for the last source, which is
     * cddprun itself. May be NULL.
     */
    void (*unwritten)(void *arg, int fd, int error);
    /* A descriptor of writer_descriptor() cannot be written: the same as unwritten(), for any source. Called once.
     */
    void (*refused)(void *arg, int error);
};

/* Starts a writer; sources are 0 to n_sources - 1. CDDP_E_SYSTEM, CDDP_E_NOMEM. */
cddp_status writer_start(struct writer **out, uv_loop_t *loop, uint32_t n_sources, const struct writer_events *on,
                         void *arg, struct cdi_error *err);
/* Returns the sink of cddprun's stdout (1) or stderr (2); owned by the writer. */
struct writer_sink *writer_std(struct writer *w, int fd);
/*
 * Opens a file, created if it is not there. Output is added at its end; anew: to an empty file. Returns 0 or errno;
 * *out is written on success only.
 */
int writer_file(struct writer *w, struct writer_sink **out, const char *path, bool anew);
/* Returns a sink for a descriptor of the caller, which is never closed. NULL: out of memory. */
struct writer_sink *writer_descriptor(struct writer *w, int fd);
/* Ends the use of this file or descriptor; a file is closed after its queued output is written. NULL-safe. */
void writer_file_done(struct writer_sink *s);
/* Copies n bytes into the queue; they are written whole and in order. A NULL sink drops them. */
void writer_push(struct writer *w, struct writer_sink *s, uint32_t source, const void *bytes, size_t n);
/* Returns true if the caller must stop reading from this source until room() is called. */
bool writer_full(struct writer *w, uint32_t source);
/* Returns whether all output is written. */
bool writer_is_idle(struct writer *w);
/* Returns the number of chunks written or dropped: if it does not change while output is queued, writing hangs. */
uint64_t writer_progress(struct writer *w);
/*
 * Gives up the sink on which writing hangs: drops its queued and later output, and writes to the others by a new
 * thread, if one can be started. Does nothing if writing does not hang, or the second time.
 */
void writer_skip_hung(struct writer *w);
/*
 * Writes all queued output, frees w and calls closed(arg, true). writer_abandon() after it ends the wait: closed(arg,
 * false) is called, and the thread may still hang in write(2), so exit by _exit(). After writer_skip_hung(), closed()
 * waits for the hanging write.
 */
void writer_close(struct writer *w, void (*closed)(void *arg, bool flushed), void *arg);
void writer_abandon(struct writer *w);

#endif
