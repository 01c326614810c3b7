/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of a test's own, one at a time. */
#ifndef CDI_TEST_SCRATCH_H
#define CDI_TEST_SCRATCH_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static char scratch[64]; /* its path */

static inline void scratch_make(void)
{
    (void)snprintf(scratch, sizeof scratch, "/tmp/cddp-test-XXXXXX");
    cr_assert_not_null(mkdtemp(scratch));
}

static inline void scratch_remove(void)
{
    char command[100];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", scratch);
    cr_assert_eq(system(command), 0);
}

#endif
