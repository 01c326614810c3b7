/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/frame.h"

#include <string.h>

static uint16_t frame_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

cddp_status cdi_frame_next(const struct cdi_buf *in, struct cdi_frame *f, struct cdi_error *err)
{
    const uint8_t *p = cdi_buf_data(in);
    uint32_t len;

    if (in->len < CDI_FRAME_HEADER)
        return CDDP_IN_PROGRESS;
    len = (uint32_t)frame_get_u16(p) | (uint32_t)frame_get_u16(p + 2) << 16;
    if (len > CDI_FRAME_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, "a control frame of %u bytes; the limit is %u", len, CDI_FRAME_MAX);
    if (frame_get_u16(p + 6) != 0)
        return cdi_fail(err, CDDP_E_PROTOCOL, "a control frame of type %u with unknown flags 0x%x",
                        frame_get_u16(p + 4), frame_get_u16(p + 6));
    if (in->len - CDI_FRAME_HEADER < len)
        return CDDP_IN_PROGRESS;
    *f = (struct cdi_frame){
        .type = frame_get_u16(p + 4), .payload = p + CDI_FRAME_HEADER, .len = len, .size = CDI_FRAME_HEADER + len};
    return CDDP_OK;
}

cddp_status cdi_frame_put_opening(struct cdi_buf *out)
{
    return cdi_buf_append(out, CDI_CONTROL_OPENING, CDI_CONTROL_OPENING_LEN);
}

cddp_status cdi_frame_put(struct cdi_buf *out, uint16_t type, const void *payload, size_t len)
{
    if (len > CDI_FRAME_MAX || out->len > out->limit || CDI_FRAME_HEADER + len > out->limit - out->len)
        return CDDP_E_LIMIT;
    if (cdi_buf_reserve(out, CDI_FRAME_HEADER + len) == NULL)
        return CDDP_E_NOMEM;
    /* The memory is reserved: none of these can fail. */
    (void)cdi_buf_put_u32(out, (uint32_t)len);
    (void)cdi_buf_put_u32(out, type);
    return cdi_buf_append(out, payload, len);
}

cddp_status cdi_frame_take_opening(struct cdi_buf *in)
{
    size_t n = in->len < CDI_CONTROL_OPENING_LEN ? in->len : CDI_CONTROL_OPENING_LEN;

    if (memcmp(cdi_buf_data(in), CDI_CONTROL_OPENING, n) != 0)
        return CDDP_E_PROTOCOL;
    if (n < CDI_CONTROL_OPENING_LEN)
        return CDDP_IN_PROGRESS;
    cdi_buf_consume(in, CDI_CONTROL_OPENING_LEN);
    return CDDP_OK;
}
