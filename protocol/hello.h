/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a control or store connection opens: the client names its job and, where there is a secret, both prove that they
 * have it. After the opening of frame.h these frames, integers little-endian:
 *   HELLO     client: u8 kind | u32 round | 32 bytes nonce | u16 len, run id
 *   CHALLENGE server: u8 auth (1: a proof is required) | 32 bytes nonce
 *   PROOF     client: 32 bytes, see auth.h; zeros if auth is 0
 *   READY     server: 32 bytes of its own; zeros if auth is 0
 *   REFUSED   server, at any point: u16 len, one sentence; then it closes
 * After READY an agent speaks the messages of message.h, a store client the store's protocol (c10d.h, with its
 * VALIDATE). Pure: bytes in, bytes out, for both sides. One thread at a time.
 */
#ifndef CDI_HELLO_H
#define CDI_HELLO_H

#include "common/buf.h"
#include "protocol/auth.h"

#define CDI_HELLO_RUN_ID_MAX 255
#define CDI_HELLO_SENTENCE_MAX 512
#define CDI_HELLO_CURRENT_ROUND 0xffffffffu

enum cdi_hello_type {
    CDI_HELLO_HELLO = 1000,
    CDI_HELLO_CHALLENGE = 1001,
    CDI_HELLO_PROOF = 1002,
    CDI_HELLO_READY = 1003,
    CDI_HELLO_REFUSED = 1004,
};

enum cdi_hello_kind { CDI_HELLO_AGENT = 1, CDI_HELLO_STORE = 2 };

/* What a client says of itself. */
struct cdi_hello {
    enum cdi_hello_kind kind;
    uint32_t round; /* of a store client; CDI_HELLO_CURRENT_ROUND: the current one */
    uint8_t nonce[CDI_AUTH_NONCE];
    char run_id[CDI_HELLO_RUN_ID_MAX + 1]; /* may be empty */
};

/* ---------------------------------------------------------------------------------------------------- client ---- */

/* START -> SENT (HELLO) -> PROVING (PROOF) -> READY; from each but READY -> FAILED. */
struct cdi_hello_client {
    enum { CDI_HELLO_C_SENT, CDI_HELLO_C_PROVING, CDI_HELLO_C_READY, CDI_HELLO_C_FAILED } state;
    struct cdi_hello hello;
    const struct cdi_secret *secret; /* NULL: none */
    bool auth;                       /* the server asked for a proof */
    uint8_t expected[CDI_AUTH_HASH]; /* the server's proof */
};

/*
 * Append the opening and HELLO to out. run_id NULL is the empty one. The secret, if there is one, must live until
 * READY. CDDP_OK; CDDP_E_INVALID (the run id is too long), CDDP_E_NOMEM, CDDP_E_SYSTEM.
 */
cddp_status cdi_hello_client_start(struct cdi_hello_client *c, enum cdi_hello_kind kind, const char *run_id,
                                   uint32_t round, const struct cdi_secret *secret, struct cdi_buf *out,
                                   struct cdi_error *err);
/*
 * Consume the server's frames from in, append answers to out. CDDP_OK: READY has come; what follows in `in` belongs to
 * the next protocol. CDDP_IN_PROGRESS: write out, and give more bytes. CDDP_E_DENIED: the server refused (its sentence
 * is in err), or asks for a secret that we do not have, or does not prove the one that we have. CDDP_E_LIMIT: it has no
 * room for another connection, and did not look at who we are (its sentence is in err). CDDP_E_PROTOCOL: it speaks
 * something else. CDDP_E_NOMEM. After an error: close.
 */
cddp_status cdi_hello_client_feed(struct cdi_hello_client *c, struct cdi_buf *in, struct cdi_buf *out,
                                  struct cdi_error *err);
/*
 * A REFUSED frame in the place of something else: see cdi_c10d_own_ping(). CDDP_IN_PROGRESS: give more bytes.
 * CDDP_E_LIMIT: it is one, and its sentence is in err. CDDP_E_PROTOCOL: it is none.
 */
cddp_status cdi_hello_read_refusal(const struct cdi_buf *in, struct cdi_error *err);

/* ---------------------------------------------------------------------------------------------------- server ---- */

enum cdi_hello_state {
    CDI_HELLO_S_OPENING, /* the opening, then HELLO, are awaited */
    CDI_HELLO_S_ASKED,   /* s->hello tells who: the caller calls challenge, or refuse */
    CDI_HELLO_S_PROVING, /* PROOF is awaited */
    CDI_HELLO_S_PROVED,  /* the client has the secret (or needs none): the caller calls welcome, or refuse */
    CDI_HELLO_S_READY,   /* the next protocol begins */
    CDI_HELLO_S_REFUSED, /* write out, then close */
};

struct cdi_hello_server {
    enum cdi_hello_state state;
    bool opened; /* the opening has come */
    bool auth;
    struct cdi_hello hello; /* from ASKED on */
    uint8_t expected[CDI_AUTH_HASH], answer[CDI_AUTH_HASH];
};

void cdi_hello_server_init(struct cdi_hello_server *s);
/*
 * Consume the client's bytes from in; what follows may be there already, so call it again after challenge. CDDP_OK: it
 * is the caller's turn, by s->state: ASKED or PROVED. CDDP_IN_PROGRESS:
 * more bytes are needed. CDDP_E_DENIED: the proof is wrong; REFUSED was appended: write out, then close.
 * CDDP_E_PROTOCOL, CDDP_E_LIMIT, CDDP_E_NOMEM: close. Sentences in err are for the log, without the peer's address.
 */
cddp_status cdi_hello_server_feed(struct cdi_hello_server *s, struct cdi_buf *in, struct cdi_buf *out,
                                  struct cdi_error *err);
/*
 * ASKED -> PROVING: append CHALLENGE. secret NULL: no proof is required. The secret is used within this call only.
 * CDDP_OK, CDDP_E_NOMEM, CDDP_E_LIMIT, CDDP_E_SYSTEM.
 */
cddp_status cdi_hello_server_challenge(struct cdi_hello_server *s, const struct cdi_secret *secret, struct cdi_buf *out,
                                       struct cdi_error *err);
/* PROVED -> READY: append READY. CDDP_OK, CDDP_E_NOMEM, CDDP_E_LIMIT. */
cddp_status cdi_hello_server_welcome(struct cdi_hello_server *s, struct cdi_buf *out, struct cdi_error *err);
/* Any state but READY -> REFUSED: append REFUSED with the sentence, which is cut at CDI_HELLO_SENTENCE_MAX bytes. */
cddp_status cdi_hello_server_refuse(struct cdi_hello_server *s, const char *sentence, struct cdi_buf *out,
                                    struct cdi_error *err);

#endif
