/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher's error file (TORCHELASTIC_ERROR_FILE), as torch's @record writes it: its report then says what failed
 * in this rank. Nothing is written where the program ends well, or where a file is there already.
 */
#ifndef CDI_COMM_ERROR_FILE_H
#define CDI_COMM_ERROR_FILE_H

/*
 * When this process leaves main() or calls exit() with a status that is not 0, and a function of the library has failed
 * in it, the last such failure goes to the error file. Any number of calls; a child of fork() writes nothing.
 */
void cdi_error_file_arm(void);

#endif
