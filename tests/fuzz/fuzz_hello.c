/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both sides of the handshake against hostile bytes in random pieces. With an auth token a peer cannot guess a proof:
 * the nonces are new in every run, so READY on either side would be a forgery.
 */
#include "protocol/hello.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct cdi_secret secret = {.key = {1, 2, 3}};

static void server_turn(struct cdi_hello_server *s, struct cdi_buf *out, bool auth)
{
    if (s->state == CDI_HELLO_S_ASKED) {
        if (memchr(s->hello.run_id, '\0', sizeof s->hello.run_id) == NULL)
            abort();
        if (cdi_hello_server_challenge(s, auth ? &secret : NULL, out, NULL) != CDDP_OK)
            abort();
    } else if (s->state == CDI_HELLO_S_PROVED) {
        if (auth || cdi_hello_server_welcome(s, out, NULL) != CDDP_OK)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cdi_hello_server s;
    struct cdi_hello_client c;
    struct cdi_buf in, out;
    struct cdi_error err;
    bool as_server, auth;
    uint32_t state;
    cddp_status st;

    if (size < 1)
        return 0;
    as_server = data[0] & 1;
    auth = data[0] & 2;
    state = data[0];
    cdi_buf_init(&in, 0);
    cdi_buf_init(&out, 4096);
    cdi_hello_server_init(&s);
    st = cdi_hello_client_start(&c, CDI_HELLO_AGENT, "job", 0, auth ? &secret : NULL, &out, &err);
    if (st == CDDP_OK)
        st = CDDP_IN_PROGRESS;
    for (size_t at = 1, n; at < size && st >= 0; at += n) {
        state = state * 1664525u + 1013904223u;
        n = 1 + (state >> 20) % 64;
        n = n < size - at ? n : size - at;
        (void)cdi_buf_append(&in, data + at, n);
        do {
            if (as_server ? s.state == CDI_HELLO_S_READY : c.state == CDI_HELLO_C_READY)
                break;
            st = as_server ? cdi_hello_server_feed(&s, &in, &out, &err) : cdi_hello_client_feed(&c, &in, &out, &err);
            if (as_server && st == CDDP_OK)
                server_turn(&s, &out, auth);
        } while (st == CDDP_OK && as_server);
        if (in.len > 2048 && st == CDDP_IN_PROGRESS)
            abort(); /* an unauthenticated peer fills too much memory */
    }
    if (!as_server && auth && c.state == CDI_HELLO_C_READY)
        abort();
    cdi_buf_consume(&in, in.len);
    if (cdi_buf_append(&in, data + 1, size - 1) == CDDP_OK)
        (void)cdi_hello_read_refusal(&in, &err);
    cdi_buf_release(&in);
    cdi_buf_release(&out);
    return 0;
}
