/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"

#include "common/visible.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef cdi_fail
#undef cdi_fail_by
#undef cdi_fail_told
#undef cdi_fail_since
#undef cdi_fail_errno

static void error_fill(struct cdi_error *err, cddp_status status, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

static void error_fill(struct cdi_error *err, cddp_status status, const char *fmt, va_list ap)
{
    if (err == NULL)
        return;
    err->status = status;
    err->blamed = err->os_error = err->device_error = 0;
    (void)vsnprintf(err->msg, sizeof err->msg, fmt, ap);
}

cddp_status cdi_fail(struct cdi_error *err, cddp_status status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    error_fill(err, status, fmt, ap);
    va_end(ap);
    return status;
}

cddp_status cdi_fail_by(struct cdi_error *err, int rank, cddp_status status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    error_fill(err, status, fmt, ap);
    va_end(ap);
    if (err != NULL)
        err->blamed = rank + 1;
    return status;
}

cddp_status cdi_fail_told(struct cdi_error *err, int blamed, cddp_status status, const char *text)
{
    char line[CDI_ERROR_TEXT];

    (void)cdi_visible_line(line, sizeof line, text, strlen(text));
    return cdi_fail_by(err, blamed > 0 ? blamed - 1 : -1, status, "%s", line);
}

cddp_status cdi_fail_since(struct cdi_error *err, const struct cdi_error *why, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    error_fill(err, why->status, fmt, ap);
    va_end(ap);
    if (err != NULL) {
        err->blamed = why->blamed;
        err->os_error = why->os_error;
        err->device_error = why->device_error;
    }
    return why->status;
}

/* Returns the text of an errno value; thread-safe. GNU's strerror_r returns it, and POSIX's writes it to buf. */
static const char *errno_text(int errnum, char *buf, size_t cap)
{
#ifdef __GLIBC__
    return strerror_r(errnum, buf, cap);
#else
    return strerror_r(errnum, buf, cap) == 0 ? buf : "unknown error";
#endif
}

/* What the user may do about it. */
static const char *errno_cure(int errnum)
{
    return errnum == EMFILE  ? "; raise the limit of open files (ulimit -n)"
           : errnum == EFBIG ? "; raise the limit of file sizes (ulimit -f)"
                             : "";
}

cddp_status cdi_fail_errno(struct cdi_error *err, int errnum, const char *fmt, ...)
{
    if (err != NULL) {
        va_list ap;
        char why[128];
        size_t len;

        va_start(ap, fmt);
        error_fill(err, CDDP_E_SYSTEM, fmt, ap);
        va_end(ap);
        err->os_error = errnum;
        len = strlen(err->msg);
        (void)snprintf(err->msg + len, sizeof err->msg - len, ": %s%s", errno_text(errnum, why, sizeof why),
                       errno_cure(errnum));
    }
    return CDDP_E_SYSTEM;
}

cddp_status cdi_error_wrap(struct cdi_error *err, const char *fmt, ...)
{
    va_list ap;
    char inner[CDI_ERROR_TEXT];
    size_t len;

    if (err == NULL)
        return CDDP_E_SYSTEM;
    memcpy(inner, err->msg, sizeof inner);
    va_start(ap, fmt);
    (void)vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    len = strlen(err->msg);
    (void)snprintf(err->msg + len, sizeof err->msg - len, ": %.900s", inner);
    return err->status;
}
