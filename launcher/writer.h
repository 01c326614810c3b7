/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddprun's own stdout and stderr: a thread with a bounded queue that does blocking writes, so that a reader that
 * stands still (a pager, a stopped terminal) never blocks the event loop. The descriptors are shared with whoever
 * started cddprun and so are never made non-blocking. All functions: the loop's thread.
 */
#ifndef WRITER_H
#define WRITER_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define WRITER_HIGH (512u * 1024)     /* queued bytes from which on writer_full() is true */
#define WRITER_LOW (128u * 1024)      /* and below which room() is called */
#define WRITER_MAX (8u * 1024 * 1024) /* what is pushed beyond this is dropped */

struct writer;

/* room(arg) is called on the loop's thread when a full queue has emptied. CDDP_E_SYSTEM, CDDP_E_NOMEM. */
cddp_status writer_start(struct writer **out, uv_loop_t *loop, void (*room)(void *arg), void *arg,
                         struct cdi_error *err);
/* Copy n bytes into the queue; they are written whole and in order. A descriptor that fails (EPIPE, ENOSPC) drops. */
void writer_push(struct writer *w, int fd, const void *bytes, size_t n);
/* Stop reading from workers until room() is called. */
bool writer_full(struct writer *w);
/*
 * Write out what is queued, then free w and call closed(arg, true). writer_abandon() after it does not wait any longer:
 * closed(arg, false), and the thread may still hang in write(2): leave by _exit().
 */
void writer_close(struct writer *w, void (*closed)(void *arg, bool flushed), void *arg);
void writer_abandon(struct writer *w);

#endif
