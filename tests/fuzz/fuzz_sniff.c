/* SPDX-License-Identifier: Apache-2.0 */
/* The first bytes of a connection: a decision is made within 16 bytes, and does not change. */
#include "protocol/sniff.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum cdi_sniff last = CDI_SNIFF_UNDECIDED;

    for (size_t n = 0; n <= size && n <= 64; n++) {
        enum cdi_sniff now = cdi_sniff(data, n);

        if ((last != CDI_SNIFF_UNDECIDED && now != last) || (n >= 16 && now == CDI_SNIFF_UNDECIDED))
            abort();
        last = now;
    }
    return 0;
}
