/* SPDX-License-Identifier: Apache-2.0 */
/* Frames between nodes: a parsed frame must be written back equal, and no byte is read beyond the input. */
#include "common/visible.h"
#include "worker/backend/cpu/net/tcp_frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A proof depends on everything that the peer cannot choose later, and on the side. */
static void check_proof(const struct cdi_tcp_hello *h)
{
    const struct cdi_secret secret = {.key = {1}};
    struct cdi_tcp_hello other = *h;
    uint8_t nonce[CDI_AUTH_NONCE] = {2}, mine[CDI_TCP_PROOF], changed[4][CDI_TCP_PROOF];

    cdi_tcp_proof(&secret, CDI_AUTH_CLIENT, h, nonce, mine);
    cdi_tcp_proof(&secret, CDI_AUTH_SERVER, h, nonce, changed[0]);
    other.nonce[0] ^= 1;
    cdi_tcp_proof(&secret, CDI_AUTH_CLIENT, &other, nonce, changed[1]);
    other = *h;
    other.from ^= 1;
    cdi_tcp_proof(&secret, CDI_AUTH_CLIENT, &other, nonce, changed[2]);
    nonce[0] ^= 1;
    cdi_tcp_proof(&secret, CDI_AUTH_CLIENT, h, nonce, changed[3]);
    for (int i = 0; i < 4; i++)
        if (memcmp(mine, changed[i], sizeof mine) == 0)
            abort();
}

static void check_hello(const uint8_t *payload)
{
    struct cdi_tcp_hello h;
    uint8_t back[CDI_TCP_HELLO];

    if (cdi_tcp_get_hello(payload, &h, NULL) != CDDP_OK)
        return;
    if (strlen(h.host) >= sizeof h.host || h.channel >= CDI_TCP_CHANNELS)
        abort();
    cdi_tcp_put_hello(back, &h);
    if (memcmp(back, payload, CDI_TCP_HELLO - CDI_TCP_HOST) != 0)
        abort();
    check_proof(&h);
}

static void check_op(const uint8_t *payload)
{
    struct cdi_shm_desc d;
    uint8_t back[CDI_TCP_OP];
    int32_t late;

    cdi_tcp_get_op(payload, &d, &late);
    cdi_tcp_put_op(back, &d, late);
    if (memcmp(back, payload, sizeof back) != 0)
        abort();
}

static void check_abort(const uint8_t *payload, uint32_t len)
{
    struct cdi_error err;
    cddp_status st = cdi_tcp_get_abort(payload, len, &err);

    if (st >= 0 || st != err.status || !cdi_is_visible_line(err.msg, strlen(err.msg)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    while (size >= CDI_TCP_HEADER) {
        struct cdi_tcp_header h;
        uint8_t back[CDI_TCP_HEADER];

        if (cdi_tcp_get_header(data, &h, NULL) != CDDP_OK)
            break;
        cdi_tcp_put_header(back, &h);
        if (memcmp(back, data, sizeof back) != 0)
            abort();
        data += CDI_TCP_HEADER;
        size -= CDI_TCP_HEADER;
        if (h.len > size)
            break;
        if (h.type == CDI_TCP_IS_HELLO)
            check_hello(data);
        else if (h.type == CDI_TCP_IS_OP)
            check_op(data);
        else if (h.type == CDI_TCP_IS_ABORT)
            check_abort(data, h.len);
        data += h.len;
        size -= h.len;
    }
    return 0;
}
