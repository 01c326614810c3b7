/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the output of this node's workers goes: shown, into files, or both, in torchrun's layout:
 *
 *   <log_dir>/<run id>_XXXXXX/attempt_<restart>/<local rank>/{stdout.log,stderr.log,error.json}
 *                             attempt_<restart>/filtered_{stdout,stderr}.log
 *
 * --tee without --log_dir has them in <TMPDIR>/cddprun-logs-<run id>_XXXXXX, which is said.
 * Files are written by a thread of their own. Without the run's directory nothing starts. Whatever fails later, the job
 * goes on: cddprun reports the first failure, and shows what cannot go to a file from its start. The loop's thread.
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
    const char *run_dir;    /* for error files where there is no --log_dir; private, and gone after the run */
    void (*room)(void *arg);
    void (*lost)(void *arg, int error); /* a file took no more: some output is in no file; once, with an errno */
    void *arg;
};

/* Makes the run's directory in --log_dir. CDDP_E_NOMEM, CDDP_E_SYSTEM (it cannot be made; no thread). */
cddp_status logs_start(struct logs **out, uv_loop_t *loop, const struct logs_options *opt, struct cdi_error *err);
/* A round begins: make the directory of this attempt, empty where it was there. */
void logs_begin(struct logs *l, uint32_t restart_count);
/* TORCHELASTIC_ERROR_FILE of a worker in this attempt. */
void logs_error_file(const struct logs *l, uint32_t local_rank, char path[PATH_MAX]);
/* The file that this stream goes to; false: none. */
bool logs_file(const struct logs_stream *s, char path[PATH_MAX]);
/* rank is the global one. logs_release() is due; a zeroed stream may be released too. */
void logs_open(struct logs *l, struct logs_stream *s, uint32_t local_rank, uint32_t rank, int number);
/*
 * Is this stream to be a pseudo-terminal? --pty=always: every stdout; auto: one that is shown while cddprun's own
 * stdout is a terminal, unless --interactive gives that terminal to a rank.
 */
bool logs_wants_pty(const struct logs_stream *s);
/* Warns, once in l's life, that a pseudo-terminal could not be opened and that a pipe takes its place. */
void logs_say_no_pty(struct logs *l, int error);
/* Columns of a terminal that the prefix of this stream's lines takes. */
uint32_t logs_front(const struct logs_stream *s);
/*
 * Does the cursor of our stderr stand at the beginning of text that waits to be drawn over? Then RANKLOG_ERASE has to
 * come before what is written there next; asking again gives false.
 */
bool logs_take_drawn(struct logs *l);
/* n 0: the stream has ended. */
void logs_feed(struct logs_stream *s, const char *bytes, size_t n);
void logs_release(struct logs_stream *s);
/* As writer_progress(), of the files. */
uint64_t logs_progress(struct logs *l);
/* Stop reading from this worker until room() is called. */
bool logs_full(struct logs *l, uint32_t local_rank);
/* The streams are released. Write out what is queued and free l, then closed(arg). logs_abandon(): as writer_abandon.
 */
void logs_close(struct logs *l, void (*closed)(void *arg, bool flushed), void *arg);
void logs_abandon(struct logs *l);

#endif
