/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between ranks of different nodes, over TCP: magic | type | sequence | length, little-endian, and a payload
 * whose length each type limits. Pure: bytes to values and back; no input is trusted.
 */
#ifndef CDI_NET_TCP_FRAME_H
#define CDI_NET_TCP_FRAME_H

#include "worker/backend/cpu/node/shm.h"

#define CDI_TCP_HEADER 16
#define CDI_TCP_TOKEN 32
#define CDI_TCP_HOST 32
#define CDI_TCP_HELLO (CDI_TCP_TOKEN + 5 * 4 + CDI_TCP_HOST)
#define CDI_TCP_OP 44
#define CDI_TCP_ABORT_MAX (8 + CDI_SHM_TEXT)
#define CDI_TCP_PAYLOAD_MAX CDI_SHM_PIECE_BYTES

enum cdi_tcp_type {
    CDI_TCP_IS_HELLO = 1, /* both ways, first: the sender's rank, and the job's token as proof */
    CDI_TCP_IS_OP = 2,    /* the operation that the sender has begun */
    CDI_TCP_IS_DATA = 3,
    CDI_TCP_IS_ABORT = 4, /* the communicator has failed: status, the rank that caused it, text */
    CDI_TCP_IS_BYE = 5,   /* the sender leaves in order */
    CDI_TCP_IS_ROUND = 6, /* the operation that the sender has begun, and data of it */
};

struct cdi_tcp_header {
    enum cdi_tcp_type type;
    uint32_t seq;
    uint32_t len; /* bytes of payload */
};

/* Writes a header. */
void cdi_tcp_put_header(uint8_t out[CDI_TCP_HEADER], const struct cdi_tcp_header *h);
/* Reads a header. CDDP_E_PROTOCOL: an unknown type, or a length that its payload cannot have. */
cddp_status cdi_tcp_get_header(const uint8_t in[CDI_TCP_HEADER], struct cdi_tcp_header *h, struct cdi_error *err);

enum cdi_tcp_channel { CDI_TCP_DATA = 0, CDI_TCP_CONTROL = 1, CDI_TCP_PAIR_DATA = 2, CDI_TCP_PAIR_CONTROL = 3 };
#define CDI_TCP_CHANNELS 4

struct cdi_tcp_hello {
    uint8_t token[CDI_TCP_TOKEN];
    int32_t from, to; /* ranks */
    int32_t pid;
    enum cdi_tcp_channel channel;
    char host[CDI_TCP_HOST]; /* NUL-terminated, for messages; other than printable characters are '?' */
};

/* Writes the payload of a hello. */
void cdi_tcp_put_hello(uint8_t out[CDI_TCP_HELLO], const struct cdi_tcp_hello *h);
/* Reads a hello. CDDP_E_PROTOCOL: another byte order, an unknown channel. The caller compares token and ranks. */
cddp_status cdi_tcp_get_hello(const uint8_t in[CDI_TCP_HELLO], struct cdi_tcp_hello *h, struct cdi_error *err);

/* Write and read the payload that describes an operation. late: the rank of the sender's node that arrived last. */
void cdi_tcp_put_op(uint8_t out[CDI_TCP_OP], const struct cdi_shm_desc *d, int32_t late);
void cdi_tcp_get_op(const uint8_t in[CDI_TCP_OP], struct cdi_shm_desc *d, int32_t *late);

/* Writes the payload of an abort. Returns its length. */
uint32_t cdi_tcp_put_abort(uint8_t out[CDI_TCP_ABORT_MAX], const struct cdi_error *why);
/* Sets *err to the sender's error and returns its status; an unknown status becomes CDDP_E_PROTOCOL. */
cddp_status cdi_tcp_get_abort(const uint8_t *in, uint32_t len, struct cdi_error *err);

#endif
