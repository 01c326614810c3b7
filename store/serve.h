/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One store connection: bytes in, bytes out, no sockets. The owner of the socket (the rendezvous's libuv connections,
 * libcddp's poll loop) appends received bytes to a buffer, feeds it here, and writes the bytes that were appended to
 * `out`. Replies to a batch of requests follow one another, so that one write sends them. A request of one connection
 * may end the wait of another, whose woken() is then called because it has bytes to write.
 */
#ifndef CDI_SERVE_H
#define CDI_SERVE_H

#include "store/kv.h"

/* Both servers of stores, the rendezvous and libcddp's, treat their connections alike. */
#define CDI_SERVE_YOUNG_MS 20      /* the part of that time which each gets to open, however many others wait */
#define CDI_SERVE_OVERFLOW_MS 1000 /* the same for one beyond the limit, which is to be rejected */
#define CDI_SERVE_OUT_MAX (128u * 1024 * 1024) /* bytes of replies that wait for one connection */
#define CDI_SERVE_OUT_ENOUGH (1024u * 1024)    /* from here on its further requests are not read */
#define CDI_SERVE_IN_MAX (CDI_C10D_REQUEST_MAX + 1024u * 1024)

#define CDI_SERVE_GUARDED "cddp/" /* before the keys of libcddp itself, among them those of its data ports */

struct cdi_serve {
    struct cdi_kv_client client; /* first */
    struct cdi_kv *kv;
    struct cdi_c10d_reader reader;
    struct cdi_buf *out;
    void (*woken)(struct cdi_serve *s);
    uint64_t *counts; /* CDI_C10D_N_OPS counters of requests; the owner may set it; NULL: not counted */
    bool guarded;     /* the owner may set it: keys of libcddp (CDI_SERVE_GUARDED) are refused, and not listed */
    bool validated;
    bool broken; /* a wake-up could not be appended: close the connection */
};

/*
 * Initializes a connection. kv and out must outlive it; out->limit bounds the unread replies. woken(s) is called when
 * bytes were appended to s->out, or s->broken was set, outside of cdi_serve_feed(s). It must not call into the store.
 */
void cdi_serve_init(struct cdi_serve *s, struct cdi_kv *kv, struct cdi_buf *out, void (*woken)(struct cdi_serve *s));
/* Ends its waits. */
void cdi_serve_release(struct cdi_serve *s);

/*
 * Processes the complete requests at the front of `in`, and consumes them. CDDP_OK: more bytes are needed.
 * CDDP_E_DENIED: a key of libcddp, on a guarded connection. CDDP_IN_PROGRESS: it stopped because `out` holds enough_out
 * bytes or more; call again when some were written. After an error close the connection; the bytes in `out` may still
 * be written.
 */
cddp_status cdi_serve_feed(struct cdi_serve *s, struct cdi_buf *in, size_t enough_out, struct cdi_error *err);

#endif
