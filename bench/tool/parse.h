/* SPDX-License-Identifier: Apache-2.0 */
/* The values of cddp-bench's flags, from text. All return false for text that is none. */
#ifndef BENCH_PARSE_H
#define BENCH_PARSE_H

#include "kinds.h"

/* "8", "1.5G", "32M", "32MiB". */
bool bench_parse_size(const char *text, size_t *bytes);
bool bench_parse_int(const char *text, int least, int most, int *n);
bool bench_parse_type(const char *text, int *type);
bool bench_parse_op(const char *text, int *op);
/* A number of a split: 7, 0x7 or 0b111. */
bool bench_parse_bits(const char *text, int least, int *n);
/* "all_reduce", or as nccl-tests names its programs: "all_reduce_perf", "all_reduce_perf_mpi". */
bool bench_parse_kind(const char *text, const struct bench_kind **kind);
/* 0 and 1 stand for none, as in nccl-tests: sizes are then those of -i. */
bool bench_parse_factor(const char *text, double *factor);

#endif
