/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last error: of the calling thread, which every public function sets when it fails, and of the whole process, for
 * the error file. Any thread.
 */
#ifndef CDI_BASE_LAST_ERROR_H
#define CDI_BASE_LAST_ERROR_H

#include "common/error.h"

#include <cddp/cddp.h>
#include <stdbool.h>

/* Sets cddp_last_error() of this thread from err, and returns err's status. */
cddp_status cdi_last_error_set(const struct cdi_error *err);
/* Returns st. If st is an error, sets the last error from err, with st as its status: the end of a public function. */
cddp_status cdi_last_error_return(cddp_status st, struct cdi_error *err);
/* Returns this thread's last error, also to change it; it lives as long as the thread. */
struct cdi_error *cdi_last_error_mine(void);
/* Writes to *info, up to info->size, what a program can learn of err; info may be NULL. */
void cdi_error_info_fill(cddp_error_info *info, const struct cdi_error *err);
/* Copies the last error of any thread of this process to *err. Returns false if no call has failed yet. */
bool cdi_last_error_of_process(struct cdi_error *err);
/* Makes every later error of this process be passed to tell(err), one at a time; NULL: none. */
void cdi_last_error_tell(void (*tell)(const struct cdi_error *err));
/* Locks before fork() and unlocks after it, so that the child does not inherit a lock that another thread holds. */
void cdi_last_error_lock(void);
void cdi_last_error_unlock(void);

#endif
