/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/view/history.h"

size_t history_count(const struct history *h)
{
    return h->taken < HISTORY_MAX ? (size_t)h->taken : HISTORY_MAX;
}

const struct history_sample *history_at(const struct history *h, size_t i)
{
    return &h->samples[(h->taken - history_count(h) + i) % HISTORY_MAX];
}

/* Steps since the sample before; a job that stands still has 0, whatever its last steps took. */
static double rate_since(const struct history_sample *before, const struct cdi_places_sum *sum, int64_t now_ms)
{
    return (double)(sum->min_step - before->step) * 1e3 / (double)(now_ms - before->at_ms);
}

int64_t history_every_ms(const struct history *h)
{
    return h->every_ms == 0 ? HISTORY_LEAST_MS : h->every_ms;
}

/* The newest one stays: the next rate is measured from it. */
static void thin_out(struct history *h)
{
    for (size_t i = 0; i < HISTORY_MAX / 2; i++)
        h->samples[i] = h->samples[2 * i + 1];
    h->taken = HISTORY_MAX / 2;
    h->every_ms *= 2;
}

void history_add(struct history *h, uint32_t round, const struct cdi_places_sum *sum, int64_t now_ms)
{
    const struct history_sample *before = h->taken > 0 ? history_at(h, history_count(h) - 1) : NULL;
    struct history_sample s = {.at_ms = now_ms,
                               .step = sum->min_step,
                               .step_us = sum->step_us,
                               .hidden_us = sum->hidden_us,
                               .exposed_us = sum->exposed_us,
                               .waiting_us = sum->late_us};

    if (sum->n == sum->by_place[CDI_PLACE_OUTSIDE] + sum->by_place[CDI_PLACE_EXITED] ||
        (before != NULL && now_ms - before->at_ms < history_every_ms(h)))
        return;
    if (before != NULL && h->round == round && sum->min_step >= before->step)
        s.steps_per_s = rate_since(before, sum, now_ms);
    else
        s.steps_per_s = sum->steps_per_s;
    h->every_ms = history_every_ms(h);
    h->samples[h->taken++ % HISTORY_MAX] = s;
    if (h->taken == HISTORY_MAX && h->every_ms < HISTORY_MOST_MS)
        thin_out(h);
    h->round = round;
}
