/* SPDX-License-Identifier: Apache-2.0 */
/* The model writes. */
#ifndef GPT_SAMPLE_H
#define GPT_SAMPLE_H

#include "engine.h"

#include <stdio.h>

/*
 * Writes the prompt and opt->sample bytes that the model continues it with; bytes that are not UTF-8 and control
 * characters appear as '?'. One rank, or all of them; out NULL: it only computes. Returns an error as the engine's
 * functions do.
 */
cddp_status sample(struct engine *e, const struct options *opt, FILE *out);

#endif
