/* SPDX-License-Identifier: Apache-2.0 */
/* The times of steps in Prometheus' text format, and the name of the file that gets them. Pure. */
#ifndef CDI_REDUCER_STATS_TEXT_H
#define CDI_REDUCER_STATS_TEXT_H

#include <cddp/experimental/ddp.h>
#include <stdbool.h>

#define CDI_STATS_TEXT 8192 /* enough for any text */

/*
 * Writes the metrics of one rank, a line each after its HELP and TYPE lines: buf has CDI_STATS_TEXT bytes. model: the
 * name of the model, of which at most 64 bytes count; NULL: none. Returns the length.
 */
size_t cdi_stats_text(const cddp_ddp_stats *stats, int rank, const char *model, char buf[CDI_STATS_TEXT]);
/*
 * Writes a file's name: %r in the pattern becomes the rank, %m the name of the model with '_' in place of '/', %% a
 * percent sign. false: it does not fit, or there is another letter after a percent sign.
 */
bool cdi_stats_file_name(const char *pattern, int rank, const char *model, char *buf, size_t cap);

#endif
