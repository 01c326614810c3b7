/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/frame.h"
#include "protocol/hello.h"
#include "protocol/sniff.h"

#include <string.h>

CDI_SUITE(hello);

/* Both sides, and the buffers between them. */
struct pair {
    struct cdi_hello_client c;
    struct cdi_hello_server s;
    struct cdi_buf to_server, to_client;
    struct cdi_error client_err, server_err;
    cddp_status client, server;
};

static void pair_begin(struct pair *p, const struct cdi_secret *secret)
{
    *p = (struct pair){.client = CDDP_IN_PROGRESS, .server = CDDP_IN_PROGRESS};
    cdi_buf_init(&p->to_server, 0);
    cdi_buf_init(&p->to_client, 0);
    cdi_hello_server_init(&p->s);
    cr_assert_eq(cdi_hello_client_start(&p->c, CDI_HELLO_STORE, "job 7", 3, secret, &p->to_server, NULL), CDDP_OK);
}

static void pair_end(struct pair *p)
{
    cdi_buf_release(&p->to_server);
    cdi_buf_release(&p->to_client);
}

/* Moves `step` bytes at a time from each side to the other, until no bytes are left. */
static void converse(struct pair *p, const struct cdi_secret *server_secret, size_t step)
{
    struct cdi_buf at_server, at_client;

    cdi_buf_init(&at_server, 0);
    cdi_buf_init(&at_client, 0);
    while (p->to_server.len + p->to_client.len > 0 && p->client >= 0 && p->server >= 0) {
        size_t n = p->to_server.len < step ? p->to_server.len : step;

        (void)cdi_buf_append(&at_server, cdi_buf_data(&p->to_server), n);
        cdi_buf_consume(&p->to_server, n);
        if (n > 0 && p->s.state != CDI_HELLO_S_READY)
            p->server = cdi_hello_server_feed(&p->s, &at_server, &p->to_client, &p->server_err);
        if (p->s.state == CDI_HELLO_S_ASKED)
            cr_assert_eq(cdi_hello_server_challenge(&p->s, server_secret, &p->to_client, NULL), CDDP_OK);
        if (p->s.state == CDI_HELLO_S_PROVED)
            cr_assert_eq(cdi_hello_server_welcome(&p->s, &p->to_client, NULL), CDDP_OK);
        n = p->to_client.len < step ? p->to_client.len : step;
        (void)cdi_buf_append(&at_client, cdi_buf_data(&p->to_client), n);
        cdi_buf_consume(&p->to_client, n);
        if (n > 0)
            p->client = cdi_hello_client_feed(&p->c, &at_client, &p->to_server, &p->client_err);
    }
    if (p->server == CDDP_E_DENIED && p->to_client.len > 0) {
        (void)cdi_buf_append(&at_client, cdi_buf_data(&p->to_client), p->to_client.len);
        p->client = cdi_hello_client_feed(&p->c, &at_client, &p->to_server, &p->client_err);
    }
    cdi_buf_release(&at_server);
    cdi_buf_release(&at_client);
}

Test(hello, handshake_succeeds_in_any_pieces)
{
    const struct cdi_secret secret = {.key = {42}};

    for (size_t step = 1; step < 200; step++) {
        const struct cdi_secret *with = step % 2 ? &secret : NULL;
        struct pair p;

        pair_begin(&p, with);
        cr_assert_eq(cdi_sniff(cdi_buf_data(&p.to_server), 8), CDI_SNIFF_CONTROL);
        converse(&p, with, step);
        cr_assert_eq(p.client, CDDP_OK, "step %zu: %s", step, p.client_err.msg);
        cr_assert_eq(p.s.state, CDI_HELLO_S_READY);
        cr_assert_eq(p.s.hello.kind, CDI_HELLO_STORE);
        cr_assert_eq(p.s.hello.round, 3);
        cr_assert_str_eq(p.s.hello.run_id, "job 7");
        pair_end(&p);
    }
}

Test(hello, rejects_client_with_wrong_token)
{
    const struct cdi_secret ours = {.key = {42}}, theirs = {.key = {43}};
    struct pair p;

    pair_begin(&p, &theirs);
    converse(&p, &ours, 64);
    cr_assert_eq(p.server, CDDP_E_DENIED);
    cr_assert_eq(p.s.state, CDI_HELLO_S_REFUSED);
    cr_assert_eq(p.client, CDDP_E_DENIED);
    cr_assert_not_null(strstr(p.client_err.msg, "use the same token on all nodes"), "%s", p.client_err.msg);
    pair_end(&p);
}

Test(hello, client_without_token_sends_no_proof)
{
    const struct cdi_secret ours = {.key = {42}};
    struct pair p;

    pair_begin(&p, NULL);
    converse(&p, &ours, 64);
    cr_assert_eq(p.client, CDDP_E_DENIED);
    cr_assert_not_null(strstr(p.client_err.msg, CDI_SECRET_ENV), "%s", p.client_err.msg);
    cr_assert_eq(p.s.state, CDI_HELLO_S_PROVING);
    pair_end(&p);
}

Test(hello, client_with_token_rejects_server_without)
{
    const struct cdi_secret theirs = {.key = {43}};
    struct pair p;

    pair_begin(&p, &theirs);
    converse(&p, NULL, 64);
    cr_assert_eq(p.client, CDDP_E_DENIED);
    cr_assert_not_null(strstr(p.client_err.msg, "does not have the job's auth token"), "%s", p.client_err.msg);
    pair_end(&p);
}

Test(hello, client_detects_server_without_token)
{
    const struct cdi_secret secret = {.key = {42}};
    uint8_t challenge[1 + CDI_AUTH_NONCE] = {1};
    struct cdi_buf in;
    struct pair p;

    pair_begin(&p, &secret);
    cdi_buf_init(&in, 0);
    (void)cdi_frame_put(&in, CDI_HELLO_CHALLENGE, challenge, sizeof challenge);
    cdi_buf_consume(&p.to_server, p.to_server.len);
    cr_assert_eq(cdi_hello_client_feed(&p.c, &in, &p.to_server, NULL), CDDP_IN_PROGRESS);
    /* A server without the token can only return what it received. */
    (void)cdi_frame_put(&in, CDI_HELLO_READY, cdi_buf_data(&p.to_server) + CDI_FRAME_HEADER, CDI_AUTH_HASH);
    cr_assert_eq(cdi_hello_client_feed(&p.c, &in, &p.to_server, &p.client_err), CDDP_E_DENIED);
    cr_assert_not_null(strstr(p.client_err.msg, "did not prove"), "%s", p.client_err.msg);
    cr_assert_eq(cdi_hello_client_feed(&p.c, &in, &p.to_server, NULL), CDDP_E_STATE);
    cdi_buf_release(&in);
    pair_end(&p);
}

Test(hello, rejects_replayed_proof)
{
    const struct cdi_secret secret = {.key = {42}};
    struct cdi_buf overheard, in;
    struct cdi_hello_server again;
    struct cdi_error err;
    struct pair p;

    pair_begin(&p, &secret);
    cdi_buf_init(&overheard, 0);
    cdi_buf_init(&in, 0);
    (void)cdi_buf_append(&overheard, cdi_buf_data(&p.to_server), p.to_server.len);
    cr_assert_eq(cdi_hello_server_feed(&p.s, &p.to_server, &p.to_client, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_server_challenge(&p.s, &secret, &p.to_client, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_client_feed(&p.c, &p.to_client, &p.to_server, NULL), CDDP_IN_PROGRESS);
    (void)cdi_buf_append(&overheard, cdi_buf_data(&p.to_server), p.to_server.len);

    cdi_hello_server_init(&again);
    cr_assert_eq(cdi_hello_server_feed(&again, &overheard, &in, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_server_challenge(&again, &secret, &in, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_server_feed(&again, &overheard, &in, &err), CDDP_E_DENIED);
    cdi_buf_release(&overheard);
    cdi_buf_release(&in);
    pair_end(&p);
}

Test(hello, rejection_is_one_printable_line)
{
    char long_one[2 * CDI_HELLO_TEXT_MAX];
    struct pair p;

    pair_begin(&p, NULL);
    cr_assert_eq(cdi_hello_server_feed(&p.s, &p.to_server, &p.to_client, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_server_challenge(&p.s, NULL, &p.to_client, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_server_refuse(&p.s, "no such\x1b job", &p.to_client, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_client_feed(&p.c, &p.to_client, &p.to_server, &p.client_err), CDDP_E_DENIED);
    cr_assert_str_eq(p.client_err.msg, "no such\\x1b job");
    pair_end(&p);

    memset(long_one, 'x', sizeof long_one);
    long_one[sizeof long_one - 1] = '\0';
    pair_begin(&p, NULL);
    cr_assert_eq(cdi_hello_server_refuse(&p.s, long_one, &p.to_client, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_client_feed(&p.c, &p.to_client, &p.to_server, &p.client_err), CDDP_E_LIMIT,
                 "before anything was asked it means that there is no room");
    cr_assert_eq(strlen(p.client_err.msg), CDI_HELLO_TEXT_MAX);
    pair_end(&p);
}

Test(hello, detects_rejection_in_any_pieces)
{
    struct cdi_hello_server s;
    struct cdi_buf whole, in;
    struct cdi_error err;

    cdi_buf_init(&whole, 0);
    cdi_buf_init(&in, 0);
    cdi_hello_server_init(&s);
    cr_assert_eq(cdi_hello_server_refuse(&s, "no room", &whole, NULL), CDDP_OK);
    for (size_t i = 0; i + 1 < whole.len; i++) {
        (void)cdi_buf_append(&in, cdi_buf_data(&whole) + i, 1);
        cr_assert_eq(cdi_hello_read_refusal(&in, &err), CDDP_IN_PROGRESS);
    }
    (void)cdi_buf_append(&in, cdi_buf_data(&whole) + whole.len - 1, 1);
    cr_assert_eq(cdi_hello_read_refusal(&in, &err), CDDP_E_LIMIT);
    cr_assert_str_eq(err.msg, "no room");
    cdi_buf_consume(&in, in.len);
    (void)cdi_buf_append(&in, "HTTP/1.1 400 Bad Request", 24);
    cr_assert_eq(cdi_hello_read_refusal(&in, &err), CDDP_E_PROTOCOL);
    cdi_buf_consume(&in, in.len);
    (void)cdi_frame_put(&in, CDI_HELLO_READY, "x", 1);
    cr_assert_eq(cdi_hello_read_refusal(&in, &err), CDDP_E_PROTOCOL);
    cdi_buf_release(&whole);
    cdi_buf_release(&in);
}

Test(hello, leaves_bytes_after_ready_unread)
{
    struct cdi_buf in;
    struct pair p;

    pair_begin(&p, NULL);
    cdi_buf_init(&in, 0);
    (void)cdi_frame_put(&in, CDI_HELLO_CHALLENGE, (uint8_t[1 + CDI_AUTH_NONCE]){0}, 1 + CDI_AUTH_NONCE);
    (void)cdi_frame_put(&in, CDI_HELLO_READY, (uint8_t[CDI_AUTH_HASH]){0}, CDI_AUTH_HASH);
    (void)cdi_buf_append(&in, "more", 4);
    cr_assert_eq(cdi_hello_client_feed(&p.c, &in, &p.to_server, NULL), CDDP_OK);
    cr_assert_eq(in.len, 4);
    cdi_buf_release(&in);
    pair_end(&p);
}

/* Returns the server's result for this first frame. */
static cddp_status first_frame(uint16_t type, const void *payload, size_t len, struct cdi_error *err)
{
    struct cdi_buf in, out;
    struct cdi_hello_server s;
    cddp_status st;

    cdi_buf_init(&in, 0);
    cdi_buf_init(&out, 0);
    cdi_hello_server_init(&s);
    (void)cdi_frame_put_opening(&in);
    (void)cdi_frame_put(&in, type, payload, len);
    st = cdi_hello_server_feed(&s, &in, &out, err);
    cdi_buf_release(&in);
    cdi_buf_release(&out);
    return st;
}

Test(hello, rejects_malformed_hello)
{
    uint8_t hello[1 + 4 + CDI_AUTH_NONCE + 2 + 300] = {2};
    const size_t len_at = 1 + 4 + CDI_AUTH_NONCE, head = len_at + 2;
    static const uint8_t big[4096];
    struct cdi_error err;

    hello[len_at] = 3;
    memcpy(hello + head, "job", 3);
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 3, &err), CDDP_OK);
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 2, &err), CDDP_E_PROTOCOL, "cut short");
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 4, &err), CDDP_E_PROTOCOL, "too long");
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, 7, &err), CDDP_E_PROTOCOL);
    cr_assert_eq(first_frame(CDI_HELLO_PROOF, hello, 32, &err), CDDP_E_PROTOCOL);
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, big, sizeof big, &err), CDDP_E_PROTOCOL);
    hello[head + 1] = '\0';
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 3, &err), CDDP_E_PROTOCOL, "a NUL in the run id");
    hello[0] = 4;
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 3, &err), CDDP_E_PROTOCOL);
    cr_assert_not_null(strstr(err.msg, "kind 4"));
    hello[0] = 0;
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 3, &err), CDDP_E_PROTOCOL);
    hello[0] = 1;
    memset(hello + head, 'x', 300);
    hello[len_at] = 255;
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 255, &err), CDDP_OK);
    hello[len_at] = 0;
    hello[len_at + 1] = 1;
    cr_assert_eq(first_frame(CDI_HELLO_HELLO, hello, head + 256, &err), CDDP_E_PROTOCOL);
}

Test(hello, client_rejects_long_run_id)
{
    char run_id[300];
    struct cdi_hello_client c;
    struct cdi_buf out;
    struct cdi_error err;

    memset(run_id, 'x', sizeof run_id);
    run_id[299] = '\0';
    cdi_buf_init(&out, 0);
    cr_assert_eq(cdi_hello_client_start(&c, CDI_HELLO_AGENT, run_id, 0, NULL, &out, &err), CDDP_E_INVALID);
    cr_assert_eq(out.len, 0);
    run_id[255] = '\0';
    cr_assert_eq(cdi_hello_client_start(&c, CDI_HELLO_AGENT, run_id, 0, NULL, &out, &err), CDDP_OK);
    cdi_buf_release(&out);
}

Test(hello, caller_must_choose_when_asked)
{
    struct pair p;

    pair_begin(&p, NULL);
    cr_assert_eq(cdi_hello_server_challenge(&p.s, NULL, &p.to_client, NULL), CDDP_E_STATE);
    cr_assert_eq(cdi_hello_server_welcome(&p.s, &p.to_client, NULL), CDDP_E_STATE);
    cr_assert_eq(cdi_hello_server_feed(&p.s, &p.to_server, &p.to_client, NULL), CDDP_OK);
    cr_assert_eq(cdi_hello_server_feed(&p.s, &p.to_server, &p.to_client, NULL), CDDP_E_STATE);
    cr_assert_eq(cdi_hello_server_welcome(&p.s, &p.to_client, NULL), CDDP_E_STATE);
    pair_end(&p);
}
