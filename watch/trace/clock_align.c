/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/trace/clock_align.h"

#define PPM 1000000

/* Returns how far the clocks can have drifted apart since c->at_ns, or before it. */
static int64_t drift_ns(const struct clock_align *c, int64_t now_ns)
{
    int64_t age = now_ns > c->at_ns ? now_ns - c->at_ns : c->at_ns - now_ns;

    return age / PPM * CLOCK_ALIGN_DRIFT_PPM + 1;
}

void clock_align_add(struct clock_align *c, uint64_t of, int64_t asked_ns, int64_t time_ns, int64_t received_ns)
{
    struct clock_align one = {
        .of = of, .low_ns = time_ns - received_ns, .high_ns = time_ns - asked_ns, .at_ns = received_ns};
    int64_t drift, low, high;

    if (received_ns < asked_ns || of == 0)
        return;
    one.n_resets = c->n_resets;
    if (c->of != of) {
        *c = one;
        return;
    }
    drift = drift_ns(c, received_ns);
    low = c->low_ns - drift;
    high = c->high_ns + drift;
    if (one.low_ns > high || one.high_ns < low) {
        one.n_resets++;
        *c = one;
        return;
    }
    c->low_ns = low > one.low_ns ? low : one.low_ns;
    c->high_ns = high < one.high_ns ? high : one.high_ns;
    c->at_ns = received_ns;
}

bool clock_align_get(const struct clock_align *c, int64_t now_ns, int64_t *offset_ns, int64_t *bound_ns)
{
    *offset_ns = c->low_ns + (c->high_ns - c->low_ns) / 2;
    *bound_ns = c->of == 0 ? 0 : (c->high_ns - c->low_ns + 1) / 2 + drift_ns(c, now_ns);
    return c->of != 0;
}
