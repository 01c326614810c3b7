/* SPDX-License-Identifier: Apache-2.0 */
/* cddprun --where: finds the rendezvous, asks it, and prints the answer. Blocks for a few seconds at most. */
#ifndef WATCH_SHOW_H
#define WATCH_SHOW_H

#include "launcher/cli/options.h"

#include <stdio.h>

/*
 * Writes the endpoint that the options mean to `endpoint` (300 bytes), and returns the name of the job; NULL: all jobs
 * there. o->where is the job's name if --rdzv_endpoint, --master_addr or MASTER_ADDR says where the rendezvous is and
 * the value has no port; otherwise it is the endpoint itself.
 */
const char *show_target(const struct options *o, char endpoint[300]);
/*
 * Prints where the ranks are. Returns the exit status: 0; after an error message on stderr 2 (the value has not the
 * form of an endpoint) or 1.
 */
int show_where(const struct options *o, FILE *out);

#endif
