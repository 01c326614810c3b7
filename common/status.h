/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of the public status codes. Any thread; the strings are static. */
#ifndef CDI_STATUS_H
#define CDI_STATUS_H

#include <cddp/status.h>

/* "timed out"; never NULL, also for numbers that are no status. */
const char *cdi_status_text(cddp_status status);
/* "CDDP_E_TIMEOUT". */
const char *cdi_status_name(cddp_status status);

#endif
