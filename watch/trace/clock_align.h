/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far the CLOCK_MONOTONIC of the rendezvous server is ahead of this node's, from round trips on the control
 * connection. An answer that the server gave at `time`, to a question that this node asked at `asked` and whose answer
 * it received at `received`, shows that the offset is between time - received and time - asked. (NTP takes the middle
 * of that interval, RFC 5905, section 8.) Each round trip narrows the interval that those before it have left, after
 * that was widened by what two clocks can drift apart meanwhile. So delays that differ between the two directions
 * narrow it, too, and cannot make it wrong. Pure.
 */
#ifndef WATCH_TRACE_CLOCK_ALIGN_H
#define WATCH_TRACE_CLOCK_ALIGN_H

#include <stdbool.h>
#include <stdint.h>

/* Clocks of quartz without correction differ by less than this, and ntpd and chronyd change a clock by less, as a rule.
 */
#define CLOCK_ALIGN_DRIFT_PPM 50

struct clock_align {
    uint64_t of;             /* the server's clock, from 1; 0: no round trip yet */
    int64_t low_ns, high_ns; /* the offset is between them, */
    int64_t at_ns;           /* at this time of this node */
    uint32_t n_resets;       /* a round trip contradicted those before it: a clock had stopped or was changed */
};

/*
 * Takes a round trip; each time is in ns of the clock of the one who read it. One that ends before it begins is
 * ignored. If it contradicts those before it (a node was suspended, another server answers), they are forgotten.
 */
void clock_align_add(struct clock_align *c, uint64_t of, int64_t asked_ns, int64_t time_ns, int64_t received_ns);
/*
 * Sets the offset (server's clock minus this node's) at now_ns of this node, and how wrong it may be. Returns false if
 * there was no round trip yet.
 */
bool clock_align_get(const struct clock_align *c, int64_t now_ns, int64_t *offset_ns, int64_t *bound_ns);

#endif
