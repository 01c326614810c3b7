/* SPDX-License-Identifier: Apache-2.0 */
/* Must be caught: a read past the end of an allocation in a Criterion test (AddressSanitizer). */
#include "hygiene.h"

CDI_SUITE(control);

static volatile size_t behind = 10;
static volatile char seen;

Test(control, reads_past_the_end)
{
    char *p = calloc(10, 1);

    seen = p[behind];
    free(p);
}
