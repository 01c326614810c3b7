/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The far end of --hosts: a process in front of cddprun on each host, which takes signals and stdin from the near end,
 * and ends the job when ssh's connection is gone.
 */
#ifndef REMOTE_END_H
#define REMOTE_END_H

#include "common/error.h"

/*
 * Fork. Returns CDDP_OK in the child only, whose stdin is now what the near end sends, and which goes on as cddprun;
 * the parent never returns. CDDP_E_SYSTEM: nothing was forked.
 */
cddp_status remote_end_start(struct cdi_error *err);

#endif
