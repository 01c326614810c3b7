/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The near end of --hosts: one ssh per host that starts cddprun there; their output comes out here in whole lines,
 * stdin goes to rank 0, signals go to all of them.
 */
#ifndef NEAR_H
#define NEAR_H

#include "launcher/remote/hosts.h"

/*
 * Run the job to its end. argv: cddprun's own, of which o was made. Blocks. The exit status: the first one that was not
 * 0; 1, after a sentence, if a host could not be reached or the connection to it broke.
 */
int near_run(const struct options *o, char **argv, struct cdi_error *err);

#endif
