/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stacks of workers that crash: a pipe by which they call this agent (flight_crash.h), and the reading of a stack
 * on a thread of libuv's. The loop's thread, but for that.
 */
#ifndef CRASH_H
#define CRASH_H

#include "common/error.h"
#include "protocol/flight_crash.h"

#include <uv.h>

#define CRASH_TEXT 2048

/* The pipe. Zeroed before crash_watch_start(). */
struct crash_watch {
    uv_poll_t poll;
    int ends[2]; /* 0: not open */
    bool open;
    void (*called)(void *arg); /* a worker has called: from the loop */
    void *arg;
};

cddp_status crash_watch_start(struct crash_watch *w, uv_loop_t *loop, struct cdi_error *err);
/* Closes it; the loop ends the handle later. Does nothing if it is not open. */
void crash_watch_close(struct crash_watch *w);

/* The reading of one stack. */
struct crash_read;

/*
 * Begins to read the stack of a worker that has noted its crash and waits, and lets it go on when that is done.
 * ended(arg) follows from the loop, within a few seconds. NULL: it cannot be read; the worker goes on.
 */
struct crash_read *crash_read_start(uv_loop_t *loop, struct cdi_flight_crash *page, void (*ended)(void *arg),
                                    void *arg);
/* Has ended() been called? */
bool crash_read_is_over(const struct crash_read *r);
/*
 * Releases it. If it has not ended, neither the page nor ended() is used any more, and the rest follows from the loop.
 * NULL-safe.
 */
void crash_read_drop(struct crash_read *r);

/*
 * Writes the lines for the report about a worker that this signal has killed: "its stack (thread 'NAME'):" and the
 * frames, a line for each, or one line with the reason why there is no stack. r may be NULL. early: the worker has not
 * called cddp_init, but its program uses libcddp. false: there is nothing to say, since nothing is known of libcddp in
 * the worker, or it does not want stacks.
 */
bool crash_text(const struct cdi_flight_crash *page, const struct crash_read *r, int signal, bool early, char *buf,
                size_t cap);

#endif
