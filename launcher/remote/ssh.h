/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The near end of --hosts: one ssh per host that starts cddprun there; their output comes out here in whole lines,
 * stdin goes to rank 0, signals go to all of them.
 */
#ifndef REMOTE_SSH_H
#define REMOTE_SSH_H

#include "launcher/remote/hosts.h"

/*
 * Run the job to its end. argv: cddprun's own, of which o was made. Blocks. The exit status: the first one that was not
 * 0; 1, after a sentence, if a host could not be reached or the connection to it broke.
 */
int ssh_run_hosts(const struct options *o, char **argv, struct cdi_error *err);

#endif
