/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's wire format, which is that of PyTorch's TCPStore (c10d): operations, limits, encoders for both sides, and
 * the server's resumable request decoder. Little-endian; a string is a u64 length and that many bytes; a list is a u64
 * count and that many strings; a request is its operation (u8) and then the arguments as listed below. Replies carry no
 * tag and come in the order of the requests, except CDI_C10D_STOP_WAITING, which comes when the wait ends.
 * Pure: no sockets. One thread at a time.
 */
#ifndef CDI_C10D_H
#define CDI_C10D_H

#include "common/buf.h"
#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

#define CDI_C10D_KEY_MAX 8192u                   /* bytes of a key */
#define CDI_C10D_VALUE_MAX (8u * 1024 * 1024)    /* bytes of a value */
#define CDI_C10D_LIST_MAX 131072u                /* keys of a list */
#define CDI_C10D_REQUEST_MAX (64u * 1024 * 1024) /* bytes of a request: lists of large values are cut here */

/* A connection opens with this, and is not answered; then any requests, in PyTorch a PING first. */
#define CDI_C10D_HELLO "\x00\xce\xf7\x85\x3c"
#define CDI_C10D_HELLO_LEN 5
#define CDI_C10D_MAGIC 0x3C85F7CEu

/*
 * libcddp's first PING has a nonce of this kind: a server that has no room for the connection may then send a REFUSED
 * frame (hello.h) instead of the answer. PyTorch's nonces are process ids, which are never so large; nor is the length
 * with which a frame begins.
 */
static inline uint32_t cdi_c10d_own_ping(uint32_t random)
{
    return 0xCDD00000u | (random & 0xFFFFFu);
}
/* Of the first bytes of a plain connection, from CDI_C10D_HELLO on: CDDP_OK, and *own, whether such a PING follows;
 * CDDP_IN_PROGRESS: more bytes are needed. */
cddp_status cdi_c10d_sniff_ping(const uint8_t *bytes, size_t len, bool *own);

enum cdi_c10d_op {                        /* arguments              reply */
                   CDI_C10D_VALIDATE = 0, /* u32 magic              none */
                   CDI_C10D_SET = 1,      /* key, value             none */
                   CDI_C10D_COMPARE_SET =
                       2,              /* key, expected, desired string: the value that is now there (see store/kv.h) */
                   CDI_C10D_GET = 3,   /* key                    string; empty where there is no such key */
                   CDI_C10D_ADD = 4,   /* key, i64 delta         i64 new value */
                   CDI_C10D_CHECK = 5, /* keys                   u8 CDI_C10D_READY or CDI_C10D_NOT_READY */
                   CDI_C10D_WAIT = 6,  /* keys                   u8 CDI_C10D_STOP_WAITING once all are there */
                   CDI_C10D_GETNUMKEYS = 7,   /*                        i64 */
                   CDI_C10D_DELETE_KEY = 8,   /* key                    i64 keys deleted */
                   CDI_C10D_APPEND = 9,       /* key, value             none */
                   CDI_C10D_MULTI_GET = 10,   /* keys                   one string each, no count */
                   CDI_C10D_MULTI_SET = 11,   /* u64 count, (key, value)...  none */
                   CDI_C10D_CANCEL_WAIT = 12, /*                        u8 CDI_C10D_WAIT_CANCELED, always */
                   CDI_C10D_PING = 13,        /* u32 nonce              u32 the nonce */
                   CDI_C10D_QUEUE_PUSH = 14,  /* key, value             none */
                   CDI_C10D_QUEUE_POP =
                       15, /* key                    i64 length before the pop; if > 0, then the value, a string */
                   CDI_C10D_QUEUE_LEN = 16, /* key                    i64 */
                   CDI_C10D_LIST_KEYS = 17, /*                        i64 count, strings */
                   CDI_C10D_BARRIER = 18,   /* key, i64 world size    u8 CDI_C10D_STOP_WAITING once so many have come */
                   CDI_C10D_N_OPS = 19,
};

#define CDI_C10D_READY 0
#define CDI_C10D_NOT_READY 1
#define CDI_C10D_STOP_WAITING 0
#define CDI_C10D_WAIT_CANCELED 1

/* "COMPARE_SET"; "?" for a number that is none. */
const char *cdi_c10d_op_name(unsigned op);

/* -------------------------------------------------------------------------------------------------- encoders ---- */

/*
 * Append to buf; a request is its op and then its arguments, in the order above: cdi_c10d_put_op(b, CDI_C10D_SET),
 * cdi_c10d_put_string(b, key, key_len), cdi_c10d_put_string(b, value, len). The PING nonce is cdi_buf_put_u32, a count
 * in front of a list cdi_buf_put_u64. CDDP_OK, CDDP_E_NOMEM, CDDP_E_LIMIT (buf's); on failure that one item was not
 * appended, so a caller that goes on must drop what it had begun. The length limits above are the caller's to keep:
 * a server closes the connection of a client that exceeds them.
 */
static inline cddp_status cdi_c10d_put_op(struct cdi_buf *b, enum cdi_c10d_op op)
{
    return cdi_buf_put_u8(b, (uint8_t)op);
}
static inline cddp_status cdi_c10d_put_i64(struct cdi_buf *b, int64_t v)
{
    return cdi_buf_put_u64(b, (uint64_t)v);
}
cddp_status cdi_c10d_put_string(struct cdi_buf *b, const void *data, size_t len);

/* Little-endian integers at p, for who reads replies. */
static inline uint32_t cdi_c10d_get_u32(const void *p)
{
    const uint8_t *b = p;

    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t cdi_c10d_get_u64(const void *p)
{
    return cdi_c10d_get_u32(p) | (uint64_t)cdi_c10d_get_u32((const uint8_t *)p + 4) << 32;
}

/* --------------------------------------------------------------------------------------------------- decoder ---- */

struct cdi_c10d_bytes {
    const uint8_t *data; /* never NULL */
    size_t len;
};

/* One whole request. All pointers lead into the buffer it was read from. */
struct cdi_c10d_request {
    enum cdi_c10d_op op;
    size_t size;                 /* bytes of the request: consume so many when done with it */
    struct cdi_c10d_bytes key;   /* where the operation has one */
    struct cdi_c10d_bytes value; /* of SET, APPEND, QUEUE_PUSH; COMPARE_SET: expected */
    struct cdi_c10d_bytes desired;
    uint64_t count;              /* keys of a list, or pairs of MULTI_SET */
    struct cdi_c10d_bytes items; /* all strings of the list; walk them with cdi_c10d_next_item */
    int64_t number;              /* delta, world size, nonce, magic */
};

/* Where the decoder stands in a request that is not complete: what was looked at once is never looked at again. */
struct cdi_c10d_reader {
    size_t pos;     /* bytes of the request that are in order; 0: it begins */
    unsigned arg;   /* which argument comes next */
    uint64_t left;  /* strings of the list still to come */
    size_t list_at; /* where the list's first string is */
    uint64_t count;
    size_t at[3]; /* where the string arguments are (their length field) */
    int64_t number;
};

/*
 * The next request at the front of `in`; *r is all zero at the start of a connection. CDDP_OK: *req is whole; consume
 * req->size bytes before the next call. CDDP_IN_PROGRESS: more bytes are needed; bytes may be appended to `in`, nothing
 * consumed. CDDP_E_PROTOCOL, CDDP_E_LIMIT: the connection is beyond help; the sentence says why. Time is linear in the
 * bytes however they are cut.
 */
cddp_status cdi_c10d_next(struct cdi_c10d_reader *r, const struct cdi_buf *in, struct cdi_c10d_request *req,
                          struct cdi_error *err);
/* Walk req->items: start with *at = 0; false at the end. */
bool cdi_c10d_next_item(const struct cdi_c10d_request *req, size_t *at, struct cdi_c10d_bytes *item);

#endif
