/* SPDX-License-Identifier: Apache-2.0 */
/* Small charts about a job, as SVG inside a page: each is a figure with a caption, and says its data to screen readers.
 */
#ifndef WATCH_CHARTS_H
#define WATCH_CHARTS_H

#include "rendezvous/http/page_data.h"
#include "watch/html_text.h"

#define CHART_BARS 64 /* with more ranks, a bar is the mean of several */

/* Steps per second over the last minutes. Nothing without two samples, as for the next one. */
void chart_rate(struct html *h, const struct page_job *j);
/* Communication in a step over the last minutes: hidden by the computation, and exposed. */
void chart_communication(struct html *h, const struct page_job *j);
/* How long each rank waits for the last one in a step. Nothing if no rank has figures of its steps. */
void chart_waiting(struct html *h, const struct page_job *j);

#endif
