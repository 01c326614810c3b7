/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote end of --hosts: a parent of cddprun on each host. It receives signals and stdin from the cddprun that the
 * user started, returns stdout and the exit status, and ends the job when ssh's connection is gone. How the job ends,
 * and how long its workers have, is up to its child, as without --hosts.
 */
#ifndef REMOTE_END_H
#define REMOTE_END_H

#include "launcher/cli/options.h"

/*
 * Forks. Returns CDDP_OK in the child only, which continues as cddprun: its stdin carries the data received, and its
 * stdout is forwarded. The parent never returns. CDDP_E_SYSTEM: nothing was forked.
 */
cddp_status remote_end_start(const struct options *o, struct cdi_error *err);

#endif
