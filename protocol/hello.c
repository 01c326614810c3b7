/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/hello.h"

#include "common/visible.h"
#include "protocol/c10d.h"
#include "protocol/frame.h"

#include <string.h>

#define HELLO_HEAD (1 + 4 + CDI_AUTH_NONCE + 2) /* bytes of HELLO before the run id */

/* ---------------------------------------------------------------------------------------------------- frames ---- */

static uint16_t hello_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static cddp_status hello_put(struct cdi_buf *out, enum cdi_hello_type type, const void *payload, size_t len,
                             struct cdi_error *err)
{
    cddp_status st = cdi_frame_put(out, (uint16_t)type, payload, len);

    return st == CDDP_OK ? st : cdi_fail(err, st, "no room for a reply during the handshake");
}

/* Parses the next frame. The limit keeps an unauthenticated peer from filling more than a few hundred bytes. */
static cddp_status hello_next(const struct cdi_buf *in, struct cdi_frame *f, struct cdi_error *err)
{
    uint32_t len = in->len < CDI_FRAME_HEADER ? 0 : cdi_c10d_get_u32(cdi_buf_data(in));

    if (len > 2 + CDI_HELLO_TEXT_MAX)
        return cdi_fail(err, CDDP_E_PROTOCOL, "a frame of %u bytes during the handshake", len);
    return cdi_frame_next(in, f, err);
}

static cddp_status unexpected(const struct cdi_frame *f, const char *wanted, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_PROTOCOL, "a frame of type %u and %zu bytes instead of %s", f->type, f->len, wanted);
}

static struct cdi_auth_about about(const struct cdi_hello *h, const uint8_t *server_nonce)
{
    return (struct cdi_auth_about){.kind = (uint8_t)h->kind,
                                   .round = h->round,
                                   .client_nonce = h->nonce,
                                   .server_nonce = server_nonce,
                                   .run_id = h->run_id};
}

/* ---------------------------------------------------------------------------------------------------- client ---- */

cddp_status cdi_hello_client_start(struct cdi_hello_client *c, enum cdi_hello_kind kind, const char *run_id,
                                   uint32_t round, const struct cdi_secret *secret, struct cdi_buf *out,
                                   struct cdi_error *err)
{
    uint8_t head[HELLO_HEAD + CDI_HELLO_RUN_ID_MAX];
    size_t len = run_id == NULL ? 0 : strnlen(run_id, CDI_HELLO_RUN_ID_MAX + 1);
    cddp_status st;

    if (len > CDI_HELLO_RUN_ID_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "the run id '%.32s...' is longer than %d bytes", run_id,
                        CDI_HELLO_RUN_ID_MAX);
    *c = (struct cdi_hello_client){.state = CDI_HELLO_C_FAILED, .secret = secret};
    c->hello = (struct cdi_hello){.kind = kind, .round = round};
    if (len > 0)
        memcpy(c->hello.run_id, run_id, len);
    st = cdi_auth_nonce(c->hello.nonce, err);
    if (st != CDDP_OK)
        return st;
    head[0] = (uint8_t)kind;
    for (int i = 0; i < 4; i++)
        head[1 + i] = (uint8_t)(round >> 8 * i);
    memcpy(head + 5, c->hello.nonce, CDI_AUTH_NONCE);
    head[HELLO_HEAD - 2] = (uint8_t)len;
    head[HELLO_HEAD - 1] = 0;
    memcpy(head + HELLO_HEAD, c->hello.run_id, len);
    st = cdi_frame_put_opening(out);
    if (st != CDDP_OK)
        return cdi_fail(err, st, "no room for the opening");
    st = hello_put(out, CDI_HELLO_HELLO, head, HELLO_HEAD + len, err);
    if (st == CDDP_OK)
        c->state = CDI_HELLO_C_SENT;
    return st;
}

/* Sets err to the server's message, and returns `st`. */
static cddp_status hello_refused(const struct cdi_frame *f, cddp_status st, struct cdi_error *err)
{
    char text[CDI_HELLO_TEXT_MAX + 1];

    if (f->len < 2 || f->len != 2u + hello_get_u16(f->payload))
        return unexpected(f, "a reply", err);
    (void)cdi_visible_line(text, sizeof text, (const char *)f->payload + 2, f->len - 2);
    return cdi_fail(err, st, "%s", text);
}

cddp_status cdi_hello_read_refusal(const struct cdi_buf *in, struct cdi_error *err)
{
    struct cdi_frame f;
    cddp_status st = hello_next(in, &f, err);

    if (st != CDDP_OK)
        return st;
    return f.type == CDI_HELLO_REFUSED ? hello_refused(&f, CDDP_E_LIMIT, err) : unexpected(&f, "REFUSED", err);
}

static cddp_status on_challenge(struct cdi_hello_client *c, const struct cdi_frame *f, struct cdi_buf *out,
                                struct cdi_error *err)
{
    uint8_t proof[CDI_AUTH_HASH] = {0};

    if (f->len != 1 + CDI_AUTH_NONCE || f->payload[0] > 1)
        return unexpected(f, "CHALLENGE", err);
    c->auth = f->payload[0] == 1;
    if (c->auth && c->secret == NULL)
        return cdi_fail(err, CDDP_E_DENIED,
                        "the server requires the job's auth token; set --auth_token_file or " CDI_SECRET_ENV);
    if (!c->auth && c->secret != NULL)
        return cdi_fail(err, CDDP_E_DENIED,
                        "the server does not have the job's auth token; start it with the same --auth_token_file "
                        "or " CDI_SECRET_ENV);
    if (c->auth) {
        struct cdi_auth_about what = about(&c->hello, f->payload + 1);

        cdi_auth_proof(c->secret, CDI_AUTH_CLIENT, &what, proof);
        cdi_auth_proof(c->secret, CDI_AUTH_SERVER, &what, c->expected);
    }
    c->state = CDI_HELLO_C_PROVING;
    return hello_put(out, CDI_HELLO_PROOF, proof, sizeof proof, err);
}

static cddp_status on_ready(struct cdi_hello_client *c, const struct cdi_frame *f, struct cdi_error *err)
{
    if (f->len != CDI_AUTH_HASH)
        return unexpected(f, "READY", err);
    if (c->auth && !cdi_auth_equal(f->payload, c->expected))
        return cdi_fail(err, CDDP_E_DENIED, "the server did not prove the job's auth token; it has a different one");
    c->state = CDI_HELLO_C_READY;
    return CDDP_OK;
}

/* A server that sends REFUSED before CHALLENGE has no room for a connection. */
static cddp_status client_frame(struct cdi_hello_client *c, const struct cdi_frame *f, struct cdi_buf *out,
                                struct cdi_error *err)
{
    if (f->type == CDI_HELLO_REFUSED)
        return hello_refused(f, c->state == CDI_HELLO_C_SENT ? CDDP_E_LIMIT : CDDP_E_DENIED, err);
    if (c->state == CDI_HELLO_C_SENT && f->type == CDI_HELLO_CHALLENGE)
        return on_challenge(c, f, out, err);
    if (c->state == CDI_HELLO_C_PROVING && f->type == CDI_HELLO_READY)
        return on_ready(c, f, err);
    return unexpected(f, c->state == CDI_HELLO_C_SENT ? "CHALLENGE" : "READY", err);
}

cddp_status cdi_hello_client_feed(struct cdi_hello_client *c, struct cdi_buf *in, struct cdi_buf *out,
                                  struct cdi_error *err)
{
    struct cdi_frame f;
    cddp_status st = CDDP_OK;

    if (c->state == CDI_HELLO_C_FAILED)
        return cdi_fail(err, CDDP_E_STATE, "the handshake has already failed");
    while (st == CDDP_OK && c->state != CDI_HELLO_C_READY) {
        st = hello_next(in, &f, err);
        if (st == CDDP_OK) {
            st = client_frame(c, &f, out, err);
            cdi_buf_consume(in, f.size);
        }
    }
    if (st < 0)
        c->state = CDI_HELLO_C_FAILED;
    return st;
}

/* ---------------------------------------------------------------------------------------------------- server ---- */

void cdi_hello_server_init(struct cdi_hello_server *s)
{
    *s = (struct cdi_hello_server){.state = CDI_HELLO_S_OPENING};
}

static cddp_status on_hello(struct cdi_hello_server *s, const struct cdi_frame *f, struct cdi_error *err)
{
    const uint8_t *p = f->payload;
    size_t len = f->len < HELLO_HEAD ? 0 : f->len - HELLO_HEAD;

    if (f->type != CDI_HELLO_HELLO || f->len < HELLO_HEAD || len != hello_get_u16(p + HELLO_HEAD - 2))
        return unexpected(f, "HELLO", err);
    if (p[0] < CDI_HELLO_AGENT || p[0] > CDI_HELLO_QUERY)
        return cdi_fail(err, CDDP_E_PROTOCOL, "HELLO of an unknown kind %u", p[0]);
    if (len > CDI_HELLO_RUN_ID_MAX || memchr(p + HELLO_HEAD, '\0', len) != NULL)
        return cdi_fail(err, CDDP_E_PROTOCOL, "HELLO with a run id of %zu bytes, or with a NUL in it", len);
    s->hello = (struct cdi_hello){.kind = (enum cdi_hello_kind)p[0], .round = cdi_c10d_get_u32(p + 1)};
    memcpy(s->hello.nonce, p + 5, CDI_AUTH_NONCE);
    memcpy(s->hello.run_id, p + HELLO_HEAD, len);
    s->state = CDI_HELLO_S_ASKED;
    return CDDP_OK;
}

static cddp_status on_proof(struct cdi_hello_server *s, const struct cdi_frame *f, struct cdi_buf *out,
                            struct cdi_error *err)
{
    if (f->type != CDI_HELLO_PROOF || f->len != CDI_AUTH_HASH)
        return unexpected(f, "PROOF", err);
    if (s->auth && !cdi_auth_equal(f->payload, s->expected)) {
        (void)cdi_hello_server_refuse(s, "the job's auth token was not proved; use the same token on all nodes", out,
                                      NULL);
        return cdi_fail(err, CDDP_E_DENIED, "wrong proof of the job's auth token");
    }
    s->state = CDI_HELLO_S_PROVED;
    return CDDP_OK;
}

cddp_status cdi_hello_server_feed(struct cdi_hello_server *s, struct cdi_buf *in, struct cdi_buf *out,
                                  struct cdi_error *err)
{
    struct cdi_frame f;
    cddp_status st;

    if (s->state != CDI_HELLO_S_OPENING && s->state != CDI_HELLO_S_PROVING)
        return cdi_fail(err, CDDP_E_STATE, "the handshake waits for the caller's reply");
    if (!s->opened) {
        st = cdi_frame_take_opening(in);
        if (st != CDDP_OK)
            return st == CDDP_IN_PROGRESS
                       ? st
                       : cdi_fail(err, st, "it does not begin with the opening of a control connection");
        s->opened = true;
    }
    st = hello_next(in, &f, err);
    if (st != CDDP_OK)
        return st;
    st = s->state == CDI_HELLO_S_OPENING ? on_hello(s, &f, err) : on_proof(s, &f, out, err);
    cdi_buf_consume(in, f.size);
    return st;
}

cddp_status cdi_hello_server_challenge(struct cdi_hello_server *s, const struct cdi_secret *secret, struct cdi_buf *out,
                                       struct cdi_error *err)
{
    uint8_t bytes[1 + CDI_AUTH_NONCE];
    struct cdi_auth_about what = about(&s->hello, bytes + 1);
    cddp_status st;

    if (s->state != CDI_HELLO_S_ASKED)
        return cdi_fail(err, CDDP_E_STATE, "no HELLO was received");
    st = cdi_auth_nonce(bytes + 1, err);
    if (st != CDDP_OK)
        return st;
    s->auth = secret != NULL;
    bytes[0] = s->auth;
    if (s->auth) {
        cdi_auth_proof(secret, CDI_AUTH_CLIENT, &what, s->expected);
        cdi_auth_proof(secret, CDI_AUTH_SERVER, &what, s->answer);
    }
    st = hello_put(out, CDI_HELLO_CHALLENGE, bytes, sizeof bytes, err);
    if (st == CDDP_OK)
        s->state = CDI_HELLO_S_PROVING;
    return st;
}

cddp_status cdi_hello_server_welcome(struct cdi_hello_server *s, struct cdi_buf *out, struct cdi_error *err)
{
    cddp_status st;

    if (s->state != CDI_HELLO_S_PROVED)
        return cdi_fail(err, CDDP_E_STATE, "the client has not proved the token");
    st = hello_put(out, CDI_HELLO_READY, s->answer, sizeof s->answer, err);
    if (st == CDDP_OK)
        s->state = CDI_HELLO_S_READY;
    return st;
}

cddp_status cdi_hello_server_refuse(struct cdi_hello_server *s, const char *text, struct cdi_buf *out,
                                    struct cdi_error *err)
{
    uint8_t bytes[2 + CDI_HELLO_TEXT_MAX];
    size_t len = strnlen(text, CDI_HELLO_TEXT_MAX);

    if (s->state == CDI_HELLO_S_READY)
        return cdi_fail(err, CDDP_E_STATE, "the connection is already accepted");
    s->state = CDI_HELLO_S_REFUSED;
    bytes[0] = (uint8_t)len;
    bytes[1] = (uint8_t)(len >> 8);
    memcpy(bytes + 2, text, len);
    return hello_put(out, CDI_HELLO_REFUSED, bytes, 2 + len, err);
}
