/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher's error file (TORCHELASTIC_ERROR_FILE), in the format of torch's @record, from which the launcher
 * reports this rank's failure. A program that succeeds writes nothing, and an existing file stays as it is.
 */
#ifndef CDI_COMM_ERROR_FILE_H
#define CDI_COMM_ERROR_FILE_H

#include "protocol/flight.h"

/*
 * Arranges that the last failure of a library function in this process goes to the error file, if the process returns
 * from main() or calls exit() with a status other than 0. May be called repeatedly. A child of fork() writes nothing.
 */
void cdi_error_file_arm(void);
/*
 * Arranges that the last failure of a library function in this process is on its flight page, from which the launcher
 * learns whether this rank fails because of another one. Nothing happens without a launcher. A child of fork() writes
 * nothing.
 */
void cdi_error_page_arm(struct cdi_flight *f);

#endif
