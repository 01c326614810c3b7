/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of different nodes say to each other over TCP: frames of magic | type | sequence | length, little-endian,
 * and a payload whose length each type limits. Pure: bytes to values and back; nothing from outside is trusted.
 */
#ifndef CDI_NET_TCP_FRAME_H
#define CDI_NET_TCP_FRAME_H

#include "worker/backend/cpu/node/shm.h"

#define CDI_TCP_HEADER 16
#define CDI_TCP_TOKEN 32
#define CDI_TCP_HOST 32
#define CDI_TCP_HELLO (CDI_TCP_TOKEN + 5 * 4 + CDI_TCP_HOST)
#define CDI_TCP_OP 40
#define CDI_TCP_ABORT_MAX (8 + CDI_SHM_TEXT)
#define CDI_TCP_PAYLOAD_MAX CDI_SHM_PIECE_BYTES

enum cdi_tcp_type {
    CDI_TCP_IS_HELLO = 1, /* both ways, first: who is this, and the job's token as proof */
    CDI_TCP_IS_OP = 2,    /* what operation the sender is in */
    CDI_TCP_IS_DATA = 3,
    CDI_TCP_IS_ABORT = 4, /* the communicator is broken: status, the rank to blame, text */
    CDI_TCP_IS_BYE = 5,   /* the sender leaves, as it should */
};

struct cdi_tcp_header {
    enum cdi_tcp_type type;
    uint32_t seq;
    uint32_t len; /* bytes of payload */
};

void cdi_tcp_put_header(uint8_t out[CDI_TCP_HEADER], const struct cdi_tcp_header *h);
/* CDDP_OK or CDDP_E_PROTOCOL: no such type, or a length that its payload cannot have. */
cddp_status cdi_tcp_get_header(const uint8_t in[CDI_TCP_HEADER], struct cdi_tcp_header *h, struct cdi_error *err);

enum cdi_tcp_channel { CDI_TCP_DATA = 0, CDI_TCP_CONTROL = 1, CDI_TCP_PAIR_DATA = 2, CDI_TCP_PAIR_CONTROL = 3 };
#define CDI_TCP_CHANNELS 4

struct cdi_tcp_hello {
    uint8_t token[CDI_TCP_TOKEN];
    int32_t from, to; /* ranks */
    int32_t pid;
    enum cdi_tcp_channel channel;
    char host[CDI_TCP_HOST]; /* NUL-terminated; for messages: what cannot be printed is '?' */
};

void cdi_tcp_put_hello(uint8_t out[CDI_TCP_HELLO], const struct cdi_tcp_hello *h);
/* CDDP_OK; CDDP_E_PROTOCOL: another byte order, no such channel. Token and ranks are the caller's to compare. */
cddp_status cdi_tcp_get_hello(const uint8_t in[CDI_TCP_HELLO], struct cdi_tcp_hello *h, struct cdi_error *err);

void cdi_tcp_put_op(uint8_t out[CDI_TCP_OP], const struct cdi_shm_desc *d);
void cdi_tcp_get_op(const uint8_t in[CDI_TCP_OP], struct cdi_shm_desc *d);

/* Payload of an abort; returns its length. */
uint32_t cdi_tcp_put_abort(uint8_t out[CDI_TCP_ABORT_MAX], const struct cdi_error *why);
/* *err becomes what the sender said; a status that is none is CDDP_E_PROTOCOL. Returns it. */
cddp_status cdi_tcp_get_abort(const uint8_t *in, uint32_t len, struct cdi_error *err);

#endif
