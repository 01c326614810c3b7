/* SPDX-License-Identifier: Apache-2.0 */
#include "common/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_MIN 256

void cdi_buf_init(struct cdi_buf *b, size_t limit)
{
    *b = (struct cdi_buf){.limit = limit == 0 ? SIZE_MAX / 4 : limit};
}

void cdi_buf_release(struct cdi_buf *b)
{
    if (b == NULL)
        return;
    free(b->mem);
    cdi_buf_init(b, b->limit);
}

uint8_t *cdi_buf_reserve(struct cdi_buf *b, size_t more)
{
    size_t need, cap;
    uint8_t *mem;

    assert(b->mem != NULL || (b->cap == 0 && b->start == 0 && b->len == 0));
    if (more > b->limit || b->len > b->limit - more)
        return NULL;
    need = b->len + more;
    if (b->mem != NULL && need <= b->cap - b->start)
        return b->mem + b->start + b->len;

    /* Slide only when at least half of the memory is free, so that each byte moves a bounded number of times. */
    if (need <= b->cap / 2) {
        if (b->len > 0)
            memmove(b->mem, b->mem + b->start, b->len);
        b->start = 0;
        return b->mem + b->len;
    }
    cap = b->cap < BUF_MIN ? BUF_MIN : b->cap;
    while (cap < need)
        cap *= 2;
    if (b->start > 0 && b->len > 0)
        memmove(b->mem, b->mem + b->start, b->len);
    b->start = 0;
    mem = realloc(b->mem, cap);
    if (mem == NULL)
        return NULL;
    b->mem = mem;
    b->cap = cap;
    return mem + b->len;
}

void cdi_buf_commit(struct cdi_buf *b, size_t n)
{
    b->len += n;
}

cddp_status cdi_buf_append(struct cdi_buf *b, const void *data, size_t n)
{
    uint8_t *to;

    if (n == 0)
        return CDDP_OK;
    if (n > b->limit || b->len > b->limit - n)
        return CDDP_E_LIMIT;
    to = cdi_buf_reserve(b, n);
    if (to == NULL)
        return CDDP_E_NOMEM;
    memcpy(to, data, n);
    b->len += n;
    return CDDP_OK;
}

cddp_status cdi_buf_printf(struct cdi_buf *b, const char *fmt, ...)
{
    va_list ap;
    int n;
    uint8_t *to;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return CDDP_E_INVALID;
    if ((size_t)n + 1 > b->limit || b->len > b->limit - ((size_t)n + 1))
        return CDDP_E_LIMIT;
    to = cdi_buf_reserve(b, (size_t)n + 1);
    if (to == NULL)
        return CDDP_E_NOMEM;
    va_start(ap, fmt);
    (void)vsnprintf((char *)to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return CDDP_OK;
}

void cdi_buf_consume(struct cdi_buf *b, size_t n)
{
    if (n >= b->len) {
        b->start = 0;
        b->len = 0;
        return;
    }
    b->start += n;
    b->len -= n;
}

cddp_status cdi_buf_put_u8(struct cdi_buf *b, uint8_t v)
{
    return cdi_buf_append(b, &v, 1);
}

cddp_status cdi_buf_put_u32(struct cdi_buf *b, uint32_t v)
{
    uint8_t le[4];

    for (int i = 0; i < 4; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    return cdi_buf_append(b, le, sizeof le);
}

cddp_status cdi_buf_put_u64(struct cdi_buf *b, uint64_t v)
{
    uint8_t le[8];

    for (int i = 0; i < 8; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    return cdi_buf_append(b, le, sizeof le);
}
