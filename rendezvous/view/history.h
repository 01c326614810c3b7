/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the steps of a job have cost during the last hour: at most HISTORY_MAX samples, for charts. Of a young job they
 * are close together. At HISTORY_MAX every second one goes, and the next ones are twice as far apart. Pure.
 */
#ifndef RDZV_HISTORY_H
#define RDZV_HISTORY_H

#include "protocol/places.h"

#define HISTORY_MAX 120
#define HISTORY_LEAST_MS 940                    /* between two samples of a young job, */
#define HISTORY_MOST_MS (HISTORY_LEAST_MS << 5) /* and of one that has run for an hour */

struct history_sample {
    int64_t at_ms;
    uint64_t step;                            /* of the least advanced rank */
    double steps_per_s;                       /* since the sample before it; of the first one, by the time of a step */
    double step_us;                           /* means over the ranks and their last steps, as the following */
    double hidden_us, exposed_us, waiting_us; /* communication; waiting for the slowest rank */
};

struct history {
    struct history_sample samples[HISTORY_MAX]; /* a ring */
    uint64_t taken;                             /* in total, without those that went */
    int64_t every_ms;                           /* between two samples; 0: none was taken */
    uint32_t round;                             /* of the last sample */
};

/* Returns the time from the last sample to the next. */
int64_t history_every_ms(const struct history *h);
/* Adds a sample, unless the last one is younger than that, or no rank uses libcddp. */
void history_add(struct history *h, uint32_t round, const struct cdi_places_sum *sum, int64_t now_ms);
/* Returns the number of samples, at most HISTORY_MAX. */
size_t history_count(const struct history *h);
/* Returns the i-th sample, the oldest first. */
const struct history_sample *history_at(const struct history *h, size_t i);

#endif
