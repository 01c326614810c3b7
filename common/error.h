/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A status with an error message. Functions that can fail take `struct cdi_error *err` last and return the status; err
 * may be NULL. The message names the object ("rank 3: exec '/x/y': permission denied"), and has no final newline.
 */
#ifndef CDI_ERROR_H
#define CDI_ERROR_H

#include <cddp/status.h>

#define CDI_ERROR_TEXT 1024

struct cdi_error {
    cddp_status status;
    char msg[CDI_ERROR_TEXT];
    /* Facts for programs; 0: unknown, or there is none. */
    int blamed;       /* the rank in the world that caused it, plus 1 */
    int os_error;     /* errno */
    int device_error; /* CUDA's or NCCL's code */
};

/* Sets err, unless it is NULL, and returns status. Cuts a text that is too long. */
cddp_status cdi_fail(struct cdi_error *err, cddp_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Does the same, and notes the rank of the world that has caused the error; -1: unknown. */
cddp_status cdi_fail_by(struct cdi_error *err, int rank, cddp_status status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Does the same with an error message that another rank has sent: as one visible line (common/visible.h). blamed: the
 * rank plus 1, as sent; below 1: unknown.
 */
cddp_status cdi_fail_told(struct cdi_error *err, int blamed, cddp_status status, const char *text);

/* Does the same as cdi_fail with the status and the facts of *why. The text includes why->msg if it should. */
cddp_status cdi_fail_since(struct cdi_error *err, const struct cdi_error *why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Does the same as cdi_fail with CDDP_E_SYSTEM, and appends ": " and strerror(errnum). */
cddp_status cdi_fail_errno(struct cdi_error *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "text: " in front of err's message, and returns err's status. */
cddp_status cdi_error_wrap(struct cdi_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__ /* which sees one file at a time: these return what they are given, never CDDP_OK */
#define cdi_fail(err, status, ...) ((void)(cdi_fail)(err, status, __VA_ARGS__), (status))
#define cdi_fail_by(err, rank, status, ...) ((void)(cdi_fail_by)(err, rank, status, __VA_ARGS__), (status))
#define cdi_fail_told(err, blamed, status, text) ((void)(cdi_fail_told)(err, blamed, status, text), (status))
#define cdi_fail_since(err, why, ...) ((void)(cdi_fail_since)(err, why, __VA_ARGS__), (why)->status)
#define cdi_fail_errno(err, errnum, ...) ((void)(cdi_fail_errno)(err, errnum, __VA_ARGS__), CDDP_E_SYSTEM)
#endif

#endif
