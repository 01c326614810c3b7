/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of cddp_log: how they look, and the level below which they are dropped. */
#ifndef CDI_COMM_LOG_H
#define CDI_COMM_LOG_H

#include "common/error.h"

#include <cddp/cddp.h>
#include <stdbool.h>

#define CDI_LOG_LINE_BYTES 4001 /* with the byte of 0 or the line end */

/* The part of a line before the text. */
struct cdi_log_head {
    const char *name; /* of the communicator; "": none */
    int rank;         /* -1: no head */
    bool has_step;
    uint64_t step;
};

/* Writes head and text, escaped, into line. Returns its length, without the byte of 0. Pure. */
size_t cdi_log_line(char line[CDI_LOG_LINE_BYTES], const struct cdi_log_head *head, const char *text);

/* Returns CDDP_E_INVALID if CDDP_LOG_LEVEL has no level. The first call in the process reads it. Any thread. */
cddp_status cdi_log_check_level(struct cdi_error *err);

#endif
