/* SPDX-License-Identifier: Apache-2.0 */
/* Must be caught: a descriptor that a Criterion test leaves open (hygiene.h). */
#include "hygiene.h"

#include <fcntl.h>

CDI_SUITE(control);

Test(control, leaks_a_descriptor)
{
    cr_assert(open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0);
}
