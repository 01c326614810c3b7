/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --hosts: one ssh per host starts cddprun there. Their output is printed here in whole lines, stdin is sent to rank 0,
 * and signals are sent to all hosts.
 */
#ifndef REMOTE_SSH_H
#define REMOTE_SSH_H

#include "launcher/remote/hosts.h"

/*
 * Runs the job to its end. file: the text of --hostfile, if there is one. argv: cddprun's own, of which o was made.
 * Blocks. Returns the first exit status that is not 0, or 1 after an error message if a host cannot be reached or its
 * connection breaks.
 */
int ssh_run_hosts(const struct options *o, const char *file, char **argv, struct cdi_error *err);

#endif
