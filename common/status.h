/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of the public status codes. Any thread; the strings are static. */
#ifndef CDI_STATUS_H
#define CDI_STATUS_H

#include <cddp/status.h>

/* Returns a text such as "timed out"; never NULL, also for a number that is not a status. */
const char *cdi_status_text(cddp_status status);
/* Returns a name such as "CDDP_E_TIMEOUT"; never NULL. */
const char *cdi_status_name(cddp_status status);

#endif
