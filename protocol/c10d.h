/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's wire format, which is that of PyTorch's TCPStore (c10d): operations, limits, encoders for both sides, and
 * the server's resumable request decoder. Integers are little-endian. A string is a u64 length and its bytes, a list a
 * u64 count and its strings, a request its operation (u8) and the arguments listed below. Replies have no tag. They are
 * sent in the order of the requests, except CDI_C10D_STOP_WAITING, which is sent when the wait ends.
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
#define CDI_C10D_REQUEST_MAX (64u * 1024 * 1024) /* bytes of a request, which limits lists of large values */

/* A connection begins with this, which has no reply. Any requests follow; PyTorch sends a PING first. */
#define CDI_C10D_HELLO "\x00\xce\xf7\x85\x3c"
#define CDI_C10D_HELLO_LEN 5
#define CDI_C10D_MAGIC 0x3C85F7CEu

/*
 * Returns a nonce for libcddp's first PING. It tells the server that the client accepts a REFUSED frame (hello.h)
 * instead of the reply if there is no room for the connection. PyTorch's nonces are process ids, which are never this
 * large, and neither is the length at the start of a frame.
 */
static inline uint32_t cdi_c10d_own_ping(uint32_t random)
{
    return 0xCDD00000u | (random & 0xFFFFFu);
}
/*
 * Detects such a PING in the first bytes of a plain connection, from CDI_C10D_HELLO on. Returns CDDP_OK (*own is set)
 * or CDDP_IN_PROGRESS (more bytes are needed).
 */
cddp_status cdi_c10d_sniff_ping(const uint8_t *bytes, size_t len, bool *own);

enum cdi_c10d_op {                            /* arguments              reply */
                   CDI_C10D_VALIDATE = 0,     /* u32 magic              none */
                   CDI_C10D_SET = 1,          /* key, value             none */
                   CDI_C10D_COMPARE_SET = 2,  /* key, expected, desired string: the value afterwards (see store/kv.h) */
                   CDI_C10D_GET = 3,          /* key                    string; empty if there is no such key */
                   CDI_C10D_ADD = 4,          /* key, i64 delta         i64 new value */
                   CDI_C10D_CHECK = 5,        /* keys                   u8 CDI_C10D_READY or CDI_C10D_NOT_READY */
                   CDI_C10D_WAIT = 6,         /* keys                   u8 CDI_C10D_STOP_WAITING when all exist */
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
                   CDI_C10D_BARRIER = 18, /* key, i64 world size    u8 CDI_C10D_STOP_WAITING after that many requests */
                   CDI_C10D_N_OPS = 19,
};

#define CDI_C10D_READY 0
#define CDI_C10D_NOT_READY 1
#define CDI_C10D_STOP_WAITING 0
#define CDI_C10D_WAIT_CANCELED 1

/* Returns a name such as "COMPARE_SET"; "?" for an invalid number. */
const char *cdi_c10d_op_name(unsigned op);

/* -------------------------------------------------------------------------------------------------- encoders ---- */

/*
 * Append one item. A request is its operation and then its arguments, in the order above: cdi_c10d_put_op(b,
 * CDI_C10D_SET), cdi_c10d_put_string(b, key, key_len), cdi_c10d_put_string(b, value, len). Use cdi_buf_put_u32 for the
 * PING nonce, and cdi_buf_put_u64 for the count of a list. Return CDDP_OK, CDDP_E_NOMEM or CDDP_E_LIMIT (of b). After
 * an error that item is not appended, and the caller must discard the incomplete request. The caller must respect the
 * length limits above: a server closes the connection of a client that exceeds them.
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

/* Return a little-endian integer, for reading replies. */
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

/* One complete request. All pointers refer to the input buffer. */
struct cdi_c10d_request {
    enum cdi_c10d_op op;
    size_t size;                 /* bytes to consume after processing the request */
    struct cdi_c10d_bytes key;   /* if the operation has one */
    struct cdi_c10d_bytes value; /* of SET, APPEND, QUEUE_PUSH; COMPARE_SET: expected */
    struct cdi_c10d_bytes desired;
    uint64_t count;              /* keys of a list, or pairs of MULTI_SET */
    struct cdi_c10d_bytes items; /* all strings of the list; walk them with cdi_c10d_next_item */
    int64_t number;              /* delta, world size, nonce, magic */
};

/* State of the decoder in an incomplete request, so that no byte is parsed twice. */
struct cdi_c10d_reader {
    size_t pos;     /* bytes parsed; 0: at the start */
    unsigned arg;   /* index of the next argument */
    uint64_t left;  /* strings of the list not parsed yet */
    size_t list_at; /* offset of the list's first string */
    uint64_t count;
    size_t at[3]; /* offsets of the string arguments (of their length) */
    int64_t number;
};

/*
 * Parses the next request in `in`; *r is all zero at the start of a connection. Returns CDDP_OK (*req is complete;
 * consume req->size bytes before the next call), CDDP_IN_PROGRESS (append more bytes to `in`, without consuming any),
 * CDDP_E_PROTOCOL or CDDP_E_LIMIT (close the connection). The time is linear in the number of bytes, in any pieces.
 */
cddp_status cdi_c10d_next(struct cdi_c10d_reader *r, const struct cdi_buf *in, struct cdi_c10d_request *req,
                          struct cdi_error *err);
/* Iterates over req->items from *at = 0. Returns false at the end. */
bool cdi_c10d_next_item(const struct cdi_c10d_request *req, size_t *at, struct cdi_c10d_bytes *item);

#endif
