/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between ranks of different nodes, over TCP: magic | type | sequence | length, little-endian, and a payload
 * whose length each type limits. Pure: bytes to values and back; no input is trusted.
 */
#ifndef CDI_NET_TCP_FRAME_H
#define CDI_NET_TCP_FRAME_H

#include "protocol/auth.h"
#include "worker/backend/cpu/node/shm.h"

#define CDI_TCP_HEADER 16
#define CDI_TCP_HOST 32
#define CDI_TCP_HELLO (CDI_AUTH_NONCE + 5 * 4 + CDI_TCP_HOST)
#define CDI_TCP_PROOF CDI_AUTH_HASH
#define CDI_TCP_OP 44
#define CDI_TCP_ABORT_MAX (8 + CDI_SHM_TEXT)
#define CDI_TCP_PAYLOAD_MAX CDI_SHM_PIECE_BYTES

enum cdi_tcp_type {
    CDI_TCP_IS_HELLO = 1, /* both ways, first: the sender's rank, and a nonce */
    CDI_TCP_IS_OP = 2,    /* the operation that the sender has begun */
    CDI_TCP_IS_DATA = 3,
    CDI_TCP_IS_ABORT = 4, /* the communicator has failed: status, the rank that caused it, text */
    CDI_TCP_IS_BYE = 5,   /* the sender leaves in order */
    CDI_TCP_IS_ROUND = 6, /* the operation that the sender has begun, and data of it */
    CDI_TCP_IS_PROOF = 7, /* both ways, second: the keyed hash of cdi_tcp_proof(); the rank that connects goes first */
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
    uint8_t nonce[CDI_AUTH_NONCE];
    int32_t from, to; /* ranks */
    int32_t pid;
    enum cdi_tcp_channel channel;
    char host[CDI_TCP_HOST]; /* NUL-terminated, for messages; other than printable characters are '?' */
};

/* Writes the payload of a hello. */
void cdi_tcp_put_hello(uint8_t out[CDI_TCP_HELLO], const struct cdi_tcp_hello *h);
/* Reads a hello. CDDP_E_PROTOCOL: another byte order, an unknown channel. The caller compares the ranks. */
cddp_status cdi_tcp_get_hello(const uint8_t in[CDI_TCP_HELLO], struct cdi_tcp_hello *h, struct cdi_error *err);

/*
 * Computes the keyed hash that one side sends, once it has received the other side's hello: cdi_auth_proof() of the
 * channel, the nonces and the ranks. `secret` is the communicator's token, which is never sent.
 */
void cdi_tcp_proof(const struct cdi_secret *secret, enum cdi_auth_side side, const struct cdi_tcp_hello *client,
                   const uint8_t server_nonce[CDI_AUTH_NONCE], uint8_t out[CDI_TCP_PROOF]);

/* Write and read the payload that describes an operation. late: the rank of the sender's node that arrived last. */
void cdi_tcp_put_op(uint8_t out[CDI_TCP_OP], const struct cdi_shm_desc *d, int32_t late);
void cdi_tcp_get_op(const uint8_t in[CDI_TCP_OP], struct cdi_shm_desc *d, int32_t *late);

/* Writes the payload of an abort. Returns its length. */
uint32_t cdi_tcp_put_abort(uint8_t out[CDI_TCP_ABORT_MAX], const struct cdi_error *why);
/* Sets *err to the sender's error and returns its status; an unknown status becomes CDDP_E_PROTOCOL. */
cddp_status cdi_tcp_get_abort(const uint8_t *in, uint32_t len, struct cdi_error *err);

#endif
