/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake of a control or store connection: the client names its job and, if there is an auth token, both sides
 * prove that they have it. These frames follow the opening of frame.h; integers are little-endian:
 *   HELLO     client: u8 kind | u32 round | 32 bytes nonce | u16 len, run id
 *   CHALLENGE server: u8 auth (1: a proof is required) | 32 bytes nonce
 *   PROOF     client: 32 bytes, see auth.h; zeros if auth is 0
 *   READY     server: its own 32 bytes; zeros if auth is 0
 *   REFUSED   server, at any point: u16 len, error message; then it closes
 * After READY an agent sends the messages of message.h, a store client uses the store's protocol (c10d.h, with its
 * VALIDATE), a client that asks about jobs the QUERY of bulk.h. Pure: from bytes to bytes, for both sides. One thread
 * at a time.
 */
#ifndef CDI_HELLO_H
#define CDI_HELLO_H

#include "common/buf.h"
#include "protocol/auth.h"

#define CDI_HELLO_RUN_ID_MAX 255
#define CDI_HELLO_TEXT_MAX 512
#define CDI_HELLO_CURRENT_ROUND 0xffffffffu

enum cdi_hello_type {
    CDI_HELLO_HELLO = 1000,
    CDI_HELLO_CHALLENGE = 1001,
    CDI_HELLO_PROOF = 1002,
    CDI_HELLO_READY = 1003,
    CDI_HELLO_REFUSED = 1004,
};

enum cdi_hello_kind {
    CDI_HELLO_AGENT = 1,
    CDI_HELLO_STORE = 2,
    CDI_HELLO_QUERY = 3, /* asks about jobs: QUERY of bulk.h */
};

/* Contents of HELLO. */
struct cdi_hello {
    enum cdi_hello_kind kind;
    uint32_t round; /* of a store client, or CDI_HELLO_CURRENT_ROUND */
    uint8_t nonce[CDI_AUTH_NONCE];
    char run_id[CDI_HELLO_RUN_ID_MAX + 1]; /* may be empty */
};

/* ---------------------------------------------------------------------------------------------------- client ---- */

/* START -> SENT (HELLO) -> PROVING (PROOF) -> READY; FAILED from any state but READY. */
struct cdi_hello_client {
    enum { CDI_HELLO_C_SENT, CDI_HELLO_C_PROVING, CDI_HELLO_C_READY, CDI_HELLO_C_FAILED } state;
    struct cdi_hello hello;
    const struct cdi_secret *secret; /* NULL: none */
    bool auth;                       /* the server asked for a proof */
    uint8_t expected[CDI_AUTH_HASH]; /* the server's proof */
};

/*
 * Appends the opening and HELLO to out. run_id NULL means "". The secret (NULL: none) must stay valid until READY.
 * Returns CDDP_OK, CDDP_E_INVALID (the run id is too long), CDDP_E_NOMEM or CDDP_E_SYSTEM.
 */
cddp_status cdi_hello_client_start(struct cdi_hello_client *c, enum cdi_hello_kind kind, const char *run_id,
                                   uint32_t round, const struct cdi_secret *secret, struct cdi_buf *out,
                                   struct cdi_error *err);
/*
 * Consumes the server's frames from in, and appends replies to out. Returns
 *   CDDP_OK           READY was received; further bytes in `in` belong to the next protocol
 *   CDDP_IN_PROGRESS  write out, and call again with more bytes
 *   CDDP_E_DENIED     the server rejected the client (err holds its message), requires a token that the client does not
 *                     have, or did not prove the client's token
 *   CDDP_E_LIMIT      the server has no room for another connection (err holds its message)
 *   CDDP_E_PROTOCOL   another protocol
 *   CDDP_E_NOMEM
 * After an error close the connection.
 */
cddp_status cdi_hello_client_feed(struct cdi_hello_client *c, struct cdi_buf *in, struct cdi_buf *out,
                                  struct cdi_error *err);
/*
 * Parses a REFUSED frame that replaces another reply: see cdi_c10d_own_ping(). Returns CDDP_E_LIMIT (REFUSED; err holds
 * its message), CDDP_E_PROTOCOL (other bytes) or CDDP_IN_PROGRESS (more bytes are needed).
 */
cddp_status cdi_hello_read_refusal(const struct cdi_buf *in, struct cdi_error *err);

/* ---------------------------------------------------------------------------------------------------- server ---- */

enum cdi_hello_state {
    CDI_HELLO_S_OPENING, /* expects the opening, then HELLO */
    CDI_HELLO_S_ASKED,   /* s->hello is set: the caller calls challenge, or refuse */
    CDI_HELLO_S_PROVING, /* expects PROOF */
    CDI_HELLO_S_PROVED,  /* the client has the token (or needs none): the caller calls welcome, or refuse */
    CDI_HELLO_S_READY,   /* the next protocol begins */
    CDI_HELLO_S_REFUSED, /* the caller writes out, then closes */
};

struct cdi_hello_server {
    enum cdi_hello_state state;
    bool opened; /* the opening was received */
    bool auth;
    struct cdi_hello hello; /* from ASKED on */
    uint8_t expected[CDI_AUTH_HASH], answer[CDI_AUTH_HASH];
};

void cdi_hello_server_init(struct cdi_hello_server *s);
/*
 * Consumes the client's bytes from in. Call it again after challenge: the next frame may already be there. Returns
 * CDDP_OK (the caller must act: s->state is ASKED or PROVED), CDDP_IN_PROGRESS (more bytes are needed), CDDP_E_DENIED
 * (wrong proof; REFUSED is appended: write out, then close), CDDP_E_PROTOCOL, CDDP_E_LIMIT or CDDP_E_NOMEM (close). The
 * messages in err are for the log, without the peer's address.
 */
cddp_status cdi_hello_server_feed(struct cdi_hello_server *s, struct cdi_buf *in, struct cdi_buf *out,
                                  struct cdi_error *err);
/*
 * ASKED -> PROVING: appends CHALLENGE. secret NULL: no proof is required. It is used during this call only.
 * Returns CDDP_OK, CDDP_E_NOMEM, CDDP_E_LIMIT or CDDP_E_SYSTEM.
 */
cddp_status cdi_hello_server_challenge(struct cdi_hello_server *s, const struct cdi_secret *secret, struct cdi_buf *out,
                                       struct cdi_error *err);
/* PROVED -> READY: appends READY. Returns CDDP_OK, CDDP_E_NOMEM or CDDP_E_LIMIT. */
cddp_status cdi_hello_server_welcome(struct cdi_hello_server *s, struct cdi_buf *out, struct cdi_error *err);
/* Any state but READY -> REFUSED: appends REFUSED with the error message, cut at CDI_HELLO_TEXT_MAX bytes. */
cddp_status cdi_hello_server_refuse(struct cdi_hello_server *s, const char *text, struct cdi_buf *out,
                                    struct cdi_error *err);

#endif
