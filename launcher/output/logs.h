/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of this node's workers: shown, written to files, or both, in torchrun's layout:
 *   <log_dir>/<run id>_XXXXXX/attempt_<restart>/<local rank>/{stdout.log,stderr.log,error.json}
 *                             attempt_<restart>/filtered_{stdout,stderr}.log
 * With --tee and no --log_dir they are in <TMPDIR>/cddprun-logs-<run id>_XXXXXX, which cddprun prints. A separate
 * thread writes the files. Without the run's directory nothing starts. After later failures the job continues: cddprun
 * reports the first one, and shows the output of files that it could not open. The loop's thread.
 */
#ifndef LOGS_H
#define LOGS_H

#include "launcher/output/ranklog.h"
#include "launcher/output/writer.h"
#include "launcher/plan/plan.h"

#include <limits.h>

struct logs;

/* One of the two outputs of one worker. */
struct logs_stream {
    struct logs *logs;
    struct ranklog log;
    uint32_t local_rank;
    int number;               /* 1 or 2 */
    struct writer_sink *file; /* all its bytes; NULL: none */
    bool shown;
};

struct logs_options {
    const struct plan *plan;
    struct writer *console; /* its sources are the local ranks */
    const char *run_dir;    /* for error files without --log_dir; private, and removed after the run */
    void (*room)(void *arg);
    void (*lost)(void *arg,
                 int error); /* a file could not be written: some output is in no file; once, with an errno */
    void *arg;
};

/* Creates the run's directory in --log_dir. CDDP_E_NOMEM, CDDP_E_SYSTEM (no directory; no thread). */
cddp_status logs_start(struct logs **out, uv_loop_t *loop, const struct logs_options *opt, struct cdi_error *err);
/* Begins a round: creates its directory, or empties an existing one. */
void logs_begin(struct logs *l, uint32_t restart_count);
/* Writes the path of a worker's TORCHELASTIC_ERROR_FILE in this round. */
void logs_error_file(const struct logs *l, uint32_t local_rank, char path[PATH_MAX]);
/* Writes the path of this stream's file; false: none. */
bool logs_file(const struct logs_stream *s, char path[PATH_MAX]);
/* Opens a stream; rank is the global one. Call logs_release() later; a zeroed stream may be released, too. */
void logs_open(struct logs *l, struct logs_stream *s, uint32_t local_rank, uint32_t rank, int number);
/*
 * Returns whether this stream is to be a pseudo-terminal. --pty=always: every stdout; auto: one that is shown while
 * cddprun's own stdout is a terminal, unless --interactive gives that terminal to a rank.
 */
bool logs_wants_pty(const struct logs_stream *s);
/* Warns, once for each l, that a pseudo-terminal could not be opened and that a pipe is used instead. */
void logs_warn_no_pty(struct logs *l, int error);
/* Returns the columns of a terminal that the prefix of this stream's lines takes. */
uint32_t logs_front(const struct logs_stream *s);
/*
 * Returns whether the cursor of cddprun's stderr is at the beginning of text to be overwritten, and resets that state.
 * Then write RANKLOG_ERASE before the next output there.
 */
bool logs_reset_drawn(struct logs *l);
/* Returns whether cddprun's stderr is the terminal of its session, on which a line can be overwritten. */
bool logs_has_terminal(const struct logs *l);
/*
 * Draws a line of cddprun's own at the end of what that terminal shows, without a newline: the next output overwrites
 * it.
 * "" erases it. Draws nothing while older output waits to be written, or where a worker's own text is to be
 * overwritten.
 */
void logs_draw_line(struct logs *l, const char *text);
/* Adds n bytes of a stream; n 0: the stream has ended. */
void logs_feed(struct logs_stream *s, const char *bytes, size_t n);
void logs_release(struct logs_stream *s);
/* Returns the same as writer_progress(), for the files. */
uint64_t logs_progress(struct logs *l);
/* Returns true if the caller must stop reading from this worker until room() is called. */
bool logs_full(struct logs *l, uint32_t local_rank);
/*
 * Writes all queued output, frees l, and then calls closed(arg); the streams must be released before. logs_abandon():
 * see writer_abandon.
 */
void logs_close(struct logs *l, void (*closed)(void *arg, bool flushed), void *arg);
void logs_abandon(struct logs *l);

#endif
