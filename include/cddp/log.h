/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a program that has many ranks: which of them print, and lines that name the rank and the step. */
#ifndef CDDP_LOG_H
#define CDDP_LOG_H

#include <cddp/comm.h>
#include <stdarg.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------------- log ---- */

/* The ranks that write a message which every rank logs. */
typedef enum cddp_log_scope {
    CDDP_LOG_RANK0 = 0, /* rank 0 of the communicator */
    CDDP_LOG_NODE = 1,  /* one rank of each node: local rank 0 */
    CDDP_LOG_ALL = 2,   /* every rank that calls it */
    CDDP_ENUM_32(CDDP_LOG_SCOPE)
} cddp_log_scope;

/* The levels, from the least important one. */
typedef enum cddp_log_level {
    CDDP_LOG_DEBUG = 0,
    CDDP_LOG_INFO = 1,
    CDDP_LOG_WARN = 2,
    CDDP_LOG_ERROR = 3,
    CDDP_ENUM_32(CDDP_LOG_LEVEL)
} cddp_log_level;

/*
 * Logs one line, if this rank belongs to the scope, and the level is at least $CDDP_LOG_LEVEL (debug, info, warning,
 * error or off; info where it is unset). The line is "[rank 3, step 17] text", with a name before the rank if the
 * communicator has one, and without the step before the first reducer of the communicator is made. The step is that of
 * the first reducer, counted from 0, and does not depend on the steps of others. After that reducer's end it is that of
 * the next reducer that is made or completes a step. A NULL comm logs the text alone, on every rank.
 *
 * The line goes to the function of cddp_set_log_callback(), or else to stderr, in one write(2), so that lines of
 * several ranks do not mix. Line ends at the end of the text are dropped. Other control characters and bytes that are
 * not UTF-8 become \n, \t or \x1b. A line has 4000 bytes at most; a longer one ends with "...". NULL is logged as
 * "(null)".
 *
 * Local: no rank waits for another one, and no collective waits for a message. Any thread, also in a child of fork(),
 * which logs in the name of its parent. Reports no error: a line that cannot be written is lost. libcddp itself logs
 * what CDDP_NAN_CHECK=warn asks for, and what a program must know of a checkpoint that it loads (cddp_checkpoint_load).
 */
CDDP_API void cddp_log(const cddp_comm *comm, cddp_log_scope scope, cddp_log_level level, const char *text);

/*
 * Receives a line of cddp_log(), without a line end; the text is the library's, until the function returns. Several
 * threads may call it at once, and the thread may be inside a function of libcddp (such as cddp_ddp_grad_ready): it
 * calls no function of libcddp but cddp_log, whose lines then go to stderr, and returns soon.
 */
typedef void (*cddp_log_fn)(void *arg, cddp_log_level level, const char *line);

/*
 * Passes the lines of all communicators of this process to fn(arg, ...) from now on; NULL: to stderr again. Any thread.
 * A thread that logs at this moment may still call the previous function after this returns. The library keeps 24 bytes
 * for each different pair of fn and arg until the process ends. Without memory for them lines go to stderr.
 */
CDDP_API void cddp_set_log_callback(cddp_log_fn fn, void *arg);

/*
 * Formats a message like printf, and logs it like cddp_log(). A text of more than 1999 bytes is cut. Any thread.
 * Inline: the library has no variadic functions.
 */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5), unused))
#endif
static inline void
cddp_logf(const cddp_comm *comm, cddp_log_scope scope, cddp_log_level level, const char *format, ...)
{
    char text[2000];
    va_list args;

    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    cddp_log(comm, scope, level, text);
}

#ifdef __cplusplus
}
#endif

#endif
