/* SPDX-License-Identifier: Apache-2.0 */
/* Must be caught: undefined behaviour in a Criterion test (UndefinedBehaviorSanitizer). */
#include "hygiene.h"

#include <limits.h>

CDI_SUITE(control);

static volatile int big = INT_MAX;

Test(control, overflows)
{
    big = big + 1;
}
