/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control frames: u32 length of the payload (little-endian) | u16 type | u16 flags (0) | payload. A control connection
 * opens with CDI_CONTROL_OPENING, sent once by the agent, and carries frames in both directions after it.
 * Pure: from bytes to frames. One thread at a time.
 */
#ifndef CDI_FRAME_H
#define CDI_FRAME_H

#include "common/buf.h"
#include "common/error.h"

#include <stdint.h>

#define CDI_CONTROL_OPENING "CDDP\x01\r\n\0"
#define CDI_CONTROL_OPENING_LEN 8
#define CDI_FRAME_HEADER 8
#define CDI_FRAME_MAX (1024u * 1024) /* bytes of a payload */

struct cdi_frame {
    uint16_t type;
    const uint8_t *payload; /* in the input buffer */
    size_t len;             /* bytes of payload */
    size_t size;            /* bytes of header and payload, to consume afterwards */
};

/*
 * Parses the frame in `in` without consuming it: call cdi_buf_consume(in, f->size) after using *f. Returns CDDP_OK,
 * CDDP_IN_PROGRESS (not complete yet), CDDP_E_LIMIT or CDDP_E_PROTOCOL (with an error message: close the connection).
 */
cddp_status cdi_frame_next(const struct cdi_buf *in, struct cdi_frame *f, struct cdi_error *err);

/* Append the opening, or a frame. Return CDDP_OK, CDDP_E_NOMEM or CDDP_E_LIMIT; after an error nothing is appended. */
cddp_status cdi_frame_put_opening(struct cdi_buf *out);
cddp_status cdi_frame_put(struct cdi_buf *out, uint16_t type, const void *payload, size_t len);

/* Consumes the opening in `in`. Returns CDDP_OK, CDDP_IN_PROGRESS (nothing is consumed) or CDDP_E_PROTOCOL. */
cddp_status cdi_frame_take_opening(struct cdi_buf *in);

#endif
