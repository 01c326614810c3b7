/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/view/relay.h"

#include "common/clock.h"
#include "protocol/bulk.h"
#include "protocol/records.h"

#include <unistd.h>

void relay_init(struct relay *r, struct session *s, int64_t now_ns)
{
    /* Two servers of one job, one after the other, seldom start at the same ns of clocks that differ, with one pid. */
    *r =
        (struct relay){.session = s, .clock = (((uint64_t)now_ns ^ (uint64_t)getpid() << 40) & ((1ULL << 62) - 1)) | 1};
}

static void answer_clock(struct relay *r, uint32_t peer, const void *payload, size_t len)
{
    struct cdi_clock_time t = {.of = r->clock};
    char text[CDI_CLOCK_TEXT];

    if (!cdi_clock_decode_ask(payload, len, &t.asked_ns))
        return;
    t.time_ns = cdi_now_ns();
    session_send_bulk(r->session, peer, CDI_BULK_TIME, text, cdi_clock_encode_time(&t, text));
}

static void pass_on(struct relay *r, uint32_t from, const void *payload, size_t len)
{
    uint32_t writer;

    /* The writer's own records do not come here. */
    if (len > RELAY_FRAME_MAX || !session_find_node(r->session, 0, &writer) || writer == from ||
        session_queued(r->session, writer) + len > RELAY_QUEUE_MAX) {
        r->n_dropped++;
        return;
    }
    session_send_bulk(r->session, writer, CDI_BULK_RECORDS, payload, len);
    r->n_passed++;
}

void relay_on_bulk(struct relay *r, uint32_t peer, uint16_t type, const void *payload, size_t len)
{
    if (type == CDI_BULK_RECORDS)
        pass_on(r, peer, payload, len);
    else if (type == CDI_BULK_CLOCK)
        answer_clock(r, peer, payload, len);
}
