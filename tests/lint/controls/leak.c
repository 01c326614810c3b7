/* SPDX-License-Identifier: Apache-2.0 */
/* Must be caught: memory that a Criterion test leaves allocated (hygiene.h, under AddressSanitizer). */
#include "hygiene.h"

CDI_SUITE(control);

static void *volatile lost;

Test(control, leaks_memory)
{
    lost = malloc(100);
    lost = NULL;
}
