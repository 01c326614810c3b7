/* SPDX-License-Identifier: Apache-2.0 */
/* Must be caught: a fuzz target that fails on one input (libFuzzer). */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len >= 3 && data[0] == 'B' && data[1] == 'U' && data[2] == 'G')
        abort();
    return 0;
}
