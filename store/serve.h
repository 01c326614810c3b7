/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One store connection: bytes in, bytes out, no sockets. Whoever owns the socket (the rendezvous's libuv connections,
 * libcddp's poll loop) appends what it reads to a buffer, feeds it here, and writes what was appended to `out`. Replies
 * to a batch of requests are appended one after the other, so that they leave in one write. A request of one connection
 * may end the wait of another: then that one's woken() is called, to note that it has something to write.
 */
#ifndef CDI_SERVE_H
#define CDI_SERVE_H

#include "store/kv.h"

struct cdi_serve {
    struct cdi_kv_client client; /* first */
    struct cdi_kv *kv;
    struct cdi_c10d_reader reader;
    struct cdi_buf *out;
    void (*woken)(struct cdi_serve *s);
    uint64_t *counts; /* CDI_C10D_N_OPS of them, of requests carried out; the owner may set it; NULL: not counted */
    bool validated;
    bool broken; /* a wake-up could not be written down: close the connection */
};

/*
 * kv and out must outlive the connection; out->limit bounds the replies that wait unread. woken(s): something was
 * appended to s->out, or s->broken was set, outside of cdi_serve_feed(s); it must not call back into the store.
 */
void cdi_serve_init(struct cdi_serve *s, struct cdi_kv *kv, struct cdi_buf *out, void (*woken)(struct cdi_serve *s));
/* End its waits. */
void cdi_serve_release(struct cdi_serve *s);

/*
 * Carry out the requests that are whole at the front of `in`, and consume them. CDDP_OK: more bytes are needed.
 * CDDP_IN_PROGRESS: it stopped because `out` holds enough_out bytes or more; call again when some were written. An
 * error: close the connection, the sentence says why; what is in `out` may still be written.
 */
cddp_status cdi_serve_feed(struct cdi_serve *s, struct cdi_buf *in, size_t enough_out, struct cdi_error *err);

#endif
