/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output on its way out: a thread with bounded queues that does blocking writes, so that a reader that stands still (a
 * pager, a stopped terminal) or a disk that does not answer never blocks the event loop. cddprun's own stdout and
 * stderr are shared with whoever started it and so are never made non-blocking. Every source (a worker) has a queue's
 * worth of its own, so that one that prints without end fills only that. All functions: the loop's thread.
 */
#ifndef WRITER_H
#define WRITER_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define WRITER_HIGH (512u * 1024)      /* queued bytes of a source from which on writer_full() is true; of many: less */
#define WRITER_MAX (24u * 1024 * 1024) /* what a source pushes beyond this is dropped */

struct writer;
struct writer_sink;

struct writer_events {
    /* A source that was full has room again: ask writer_full(). */
    void (*room)(void *arg);
    /* The first file that cannot be written any more; what is pushed to such a one is dropped. Once in a writer's life.
     */
    void (*lost)(void *arg, const char *path, int error);
    /*
     * What a source wrote to our stdout (fd 1) or stderr (2) cannot be written: EPIPE (nobody reads it any more),
     * ENOSPC and so on. It is dropped, as is all that is pushed there later. Once for each fd; never for the last
     * source, which is the program itself. NULL: nobody asks.
     */
    void (*unwritten)(void *arg, int fd, int error);
    /* A descriptor of writer_descriptor() takes no more: as unwritten(), of whatever source. Once in a writer's life.
     */
    void (*refused)(void *arg, int error);
};

/* Sources are 0 to n_sources - 1. CDDP_E_SYSTEM, CDDP_E_NOMEM. */
cddp_status writer_start(struct writer **out, uv_loop_t *loop, uint32_t n_sources, const struct writer_events *on,
                         void *arg, struct cdi_error *err);
/* Our stdout (1) or stderr (2); the writer's. */
struct writer_sink *writer_std(struct writer *w, int fd);
/* A file, made or emptied. Returns 0 or errno; *out is written on success only. */
int writer_file(struct writer *w, struct writer_sink **out, const char *path);
/* An open descriptor of somebody's, which stays open. NULL: no memory. */
struct writer_sink *writer_descriptor(struct writer *w, int fd);
/* Nothing more is pushed to this file or descriptor; a file is closed when what was has been
 * written. NULL-safe. */
void writer_file_done(struct writer_sink *s);
/* Copy n bytes into the queue; they are written whole and in order. A sink that is NULL drops. */
void writer_push(struct writer *w, struct writer_sink *s, uint32_t source, const void *bytes, size_t n);
/* Stop reading from this source until room() is called. */
bool writer_full(struct writer *w, uint32_t source);
/* Counts what has been written or dropped: while it stands still although something is queued, the writing hangs. */
uint64_t writer_progress(struct writer *w);
/*
 * Gives up the sink in which the writing hangs: drops what is queued for it, now and later, and writes to the others by
 * a new thread, if one can be started. Does nothing where the writing does not hang, or after it has done so once.
 */
void writer_pass_by(struct writer *w);
/*
 * Write out what is queued, then free w and call closed(arg, true). writer_abandon() after it does not wait any longer:
 * closed(arg, false), and the thread may still hang in write(2): leave by _exit(). After
 * writer_pass_by(), closed() waits for the write that hangs.
 */
void writer_close(struct writer *w, void (*closed)(void *arg, bool flushed), void *arg);
void writer_abandon(struct writer *w);

#endif
