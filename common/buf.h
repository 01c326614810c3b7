/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growable bytes with a limit: the only realloc in the tree. A buffer is a queue: bytes are appended at the end and
 * consumed at the front. One thread at a time.
 */
#ifndef CDI_BUF_H
#define CDI_BUF_H

#include <cddp/status.h>
#include <stddef.h>
#include <stdint.h>

struct cdi_buf {
    uint8_t *mem; /* the allocation */
    size_t start; /* first unread byte */
    size_t len;   /* unread bytes */
    size_t cap;   /* bytes allocated */
    size_t limit; /* len never exceeds it; 0: SIZE_MAX / 4 */
};

/* Initializes b without an allocation. limit 0: as much as memory allows. */
void cdi_buf_init(struct cdi_buf *b, size_t limit);
/* Frees the contents. The buffer is then as after cdi_buf_init with the same limit. NULL-safe. */
void cdi_buf_release(struct cdi_buf *b);

static inline const uint8_t *cdi_buf_data(const struct cdi_buf *b)
{
    return b->mem == NULL ? (const uint8_t *)"" : b->mem + b->start;
}

/* Returns room for `more` bytes after the last one; NULL: the limit is exceeded, or out of memory. */
uint8_t *cdi_buf_reserve(struct cdi_buf *b, size_t more);
/* Adds to the buffer n bytes that the caller has written to the room of cdi_buf_reserve. */
void cdi_buf_commit(struct cdi_buf *b, size_t n);
/* Appends n bytes. CDDP_OK, CDDP_E_LIMIT, CDDP_E_NOMEM; appends nothing on failure. data may be NULL if n is 0. */
cddp_status cdi_buf_append(struct cdi_buf *b, const void *data, size_t n);
/* Appends formatted text, without its final NUL. */
cddp_status cdi_buf_printf(struct cdi_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops n bytes (at most len) from the front. */
void cdi_buf_consume(struct cdi_buf *b, size_t n);

/* Append little-endian integers. */
cddp_status cdi_buf_put_u8(struct cdi_buf *b, uint8_t v);
cddp_status cdi_buf_put_u32(struct cdi_buf *b, uint32_t v);
cddp_status cdi_buf_put_u64(struct cdi_buf *b, uint64_t v);

#endif
