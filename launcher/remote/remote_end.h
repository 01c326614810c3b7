/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote end of --hosts: a parent of cddprun on each host. It receives signals and stdin from the cddprun that the
 * user started, and ends the job when ssh's connection is gone.
 */
#ifndef REMOTE_END_H
#define REMOTE_END_H

#include "common/error.h"

/*
 * Forks. Returns CDDP_OK in the child only, which continues as cddprun and whose stdin carries the data received; the
 * parent never returns. CDDP_E_SYSTEM: nothing was forked.
 */
cddp_status remote_end_start(struct cdi_error *err);

#endif
