/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has only the installed libcddp, built by installed.py as C and as C++, against the shared and the
 * static library. Under no launcher it is a world of one.
 */
#include <cddp/cddp.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    if (cddp_dtype_size(CDDP_FLOAT32) != 4) {
        fprintf(stderr, "a float32 has %u bytes\n", (unsigned)cddp_dtype_size(CDDP_FLOAT32));
        return 1;
    }
    printf("consumer: built with cddp %s\n", CDDP_VERSION);
    return 0;
}
