/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/net/tcp_frame.h"

#include "common/status.h"
#include "common/visible.h"

#include <stdio.h>
#include <string.h>

#define MAGIC 0x35544443u /* "CDT5" */
#define BYTE_ORDER_MARK 0x01020304u

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put64(uint8_t *p, uint64_t v)
{
    put32(p, (uint32_t)v);
    put32(p + 4, (uint32_t)(v >> 32));
}

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

void cdi_tcp_put_header(uint8_t out[CDI_TCP_HEADER], const struct cdi_tcp_header *h)
{
    put32(out, MAGIC);
    put32(out + 4, h->type);
    put32(out + 8, h->seq);
    put32(out + 12, h->len);
}

static bool length_fits(uint32_t type, uint32_t len)
{
    switch (type) {
    case CDI_TCP_IS_HELLO:
        return len == CDI_TCP_HELLO;
    case CDI_TCP_IS_PROOF:
        return len == CDI_TCP_PROOF;
    case CDI_TCP_IS_OP:
        return len == CDI_TCP_OP;
    case CDI_TCP_IS_DATA:
        return len <= CDI_TCP_PAYLOAD_MAX;
    case CDI_TCP_IS_ROUND:
        return len >= CDI_TCP_OP && len <= CDI_TCP_OP + CDI_TCP_PAYLOAD_MAX;
    case CDI_TCP_IS_ABORT:
        return len >= 8 && len < CDI_TCP_ABORT_MAX;
    case CDI_TCP_IS_BYE:
        return len == 0;
    default:
        return false;
    }
}

cddp_status cdi_tcp_get_header(const uint8_t in[CDI_TCP_HEADER], struct cdi_tcp_header *h, struct cdi_error *err)
{
    uint32_t type = get32(in + 4), len = get32(in + 12);

    if (get32(in) != MAGIC || !length_fits(type, len))
        return cdi_fail(err, CDDP_E_PROTOCOL, "received data that is not a frame of this libcddp");
    h->type = (enum cdi_tcp_type)type;
    h->seq = get32(in + 8);
    h->len = len;
    return CDDP_OK;
}

void cdi_tcp_put_hello(uint8_t out[CDI_TCP_HELLO], const struct cdi_tcp_hello *h)
{
    const uint32_t mark = BYTE_ORDER_MARK;
    uint8_t *p = out + CDI_AUTH_NONCE;

    memcpy(out, h->nonce, CDI_AUTH_NONCE);
    memcpy(p, &mark, 4); /* in the byte order of this node, which the data have */
    put32(p + 4, (uint32_t)h->from);
    put32(p + 8, (uint32_t)h->to);
    put32(p + 12, (uint32_t)h->pid);
    put32(p + 16, h->channel);
    memcpy(p + 20, h->host, CDI_TCP_HOST);
}

cddp_status cdi_tcp_get_hello(const uint8_t in[CDI_TCP_HELLO], struct cdi_tcp_hello *h, struct cdi_error *err)
{
    const uint8_t *p = in + CDI_AUTH_NONCE;
    uint32_t mark, channel = get32(p + 16);

    memcpy(&mark, p, 4);
    if (mark != BYTE_ORDER_MARK)
        return cdi_fail(err, CDDP_E_PROTOCOL, "the other node has another byte order");
    if (channel >= CDI_TCP_CHANNELS)
        return cdi_fail(err, CDDP_E_PROTOCOL, "the peer is not a rank of this libcddp");
    memcpy(h->nonce, in, CDI_AUTH_NONCE);
    h->from = (int32_t)get32(p + 4);
    h->to = (int32_t)get32(p + 8);
    h->pid = (int32_t)get32(p + 12);
    h->channel = (enum cdi_tcp_channel)channel;
    (void)cdi_visible_line(h->host, sizeof h->host, (const char *)p + 20,
                           strnlen((const char *)p + 20, CDI_TCP_HOST - 1));
    return CDDP_OK;
}

void cdi_tcp_proof(const struct cdi_secret *secret, enum cdi_auth_side side, const struct cdi_tcp_hello *client,
                   const uint8_t server_nonce[CDI_AUTH_NONCE], uint8_t out[CDI_TCP_PROOF])
{
    char ranks[32];
    const struct cdi_auth_about about = {
        .kind = (uint8_t)client->channel, .client_nonce = client->nonce, .server_nonce = server_nonce, .run_id = ranks};

    (void)snprintf(ranks, sizeof ranks, "%d %d", (int)client->from, (int)client->to);
    cdi_auth_proof(secret, side, &about, out);
}

void cdi_tcp_put_op(uint8_t out[CDI_TCP_OP], const struct cdi_shm_desc *d, int32_t late)
{
    put32(out, d->kind);
    put32(out + 4, d->dtype);
    put32(out + 8, d->op);
    put32(out + 12, (uint32_t)d->root);
    put64(out + 16, d->count);
    put64(out + 24, d->region);
    put64(out + 32, d->offset);
    put32(out + 40, (uint32_t)late);
}

void cdi_tcp_get_op(const uint8_t in[CDI_TCP_OP], struct cdi_shm_desc *d, int32_t *late)
{
    *d = (struct cdi_shm_desc){.kind = get32(in),
                               .dtype = get32(in + 4),
                               .op = get32(in + 8),
                               .root = (int32_t)get32(in + 12),
                               .count = get64(in + 16),
                               .region = get64(in + 24),
                               .offset = get64(in + 32)};
    *late = (int32_t)get32(in + 40);
}

uint32_t cdi_tcp_put_abort(uint8_t out[CDI_TCP_ABORT_MAX], const struct cdi_error *why)
{
    uint32_t len = 0;

    put32(out, (uint32_t)why->status);
    put32(out + 4, (uint32_t)why->blamed);
    for (; why->msg[len] != '\0' && len + 1 < CDI_SHM_TEXT; len++)
        out[8 + len] = (uint8_t)why->msg[len];
    return 8 + len;
}

cddp_status cdi_tcp_get_abort(const uint8_t *in, uint32_t len, struct cdi_error *err)
{
    int32_t status = (int32_t)get32(in), blamed = (int32_t)get32(in + 4);
    char text[CDI_SHM_TEXT];

    memcpy(text, in + 8, len - 8);
    text[len - 8] = '\0';
    if (status >= 0 || strcmp(cdi_status_name((cddp_status)status), "CDDP_UNKNOWN") == 0)
        status = CDDP_E_PROTOCOL;
    return cdi_fail_told(err, blamed, (cddp_status)status, text);
}
