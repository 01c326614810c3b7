/* SPDX-License-Identifier: Apache-2.0 */
/* A store connection that receives bytes in random pieces, and a second one that waits. The first byte is the seed. */
#include "store/serve.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_woken(struct cdi_serve *s)
{
    (void)s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char wait[] = CDI_C10D_HELLO "\x06\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k\x01\0\0\0\0\0\0\0l";
    const struct cdi_kv_limits limits = {.bytes = 1 << 20};
    struct cdi_kv *kv;
    struct cdi_serve a, b;
    struct cdi_buf in, out, out_b;
    uint32_t state = size > 0 ? data[0] : 0;

    if (cdi_kv_create(&kv, &limits) != CDDP_OK)
        return 0;
    cdi_buf_init(&in, CDI_C10D_REQUEST_MAX);
    cdi_buf_init(&out, 1 << 16);
    cdi_buf_init(&out_b, 1 << 16);
    cdi_serve_init(&a, kv, &out, on_woken);
    cdi_serve_init(&b, kv, &out_b, on_woken);
    (void)cdi_buf_append(&in, wait, sizeof wait - 1);
    if (cdi_serve_feed(&b, &in, SIZE_MAX, NULL) != CDDP_OK)
        abort();
    (void)cdi_buf_append(&in, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN);
    for (size_t at = 1, n; at < size; at += n) {
        state = state * 1664525u + 1013904223u;
        n = 1 + (state >> 20) % 64;
        n = n < size - at ? n : size - at;
        (void)cdi_buf_append(&in, data + at, n);
        if (cdi_serve_feed(&a, &in, SIZE_MAX, NULL) != CDDP_OK)
            break;
    }
    cdi_serve_release(&a);
    cdi_serve_release(&b);
    cdi_kv_destroy(kv);
    cdi_buf_release(&in);
    cdi_buf_release(&out);
    cdi_buf_release(&out_b);
    return 0;
}
