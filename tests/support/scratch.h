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

/* Removes what is in there by this name; "": everything. */
static inline void scratch_drop(const char *name)
{
    char command[200];

    (void)snprintf(command, sizeof command, "rm -rf '%s/%s'", scratch, name);
    cr_assert_eq(system(command), 0);
}

static inline void scratch_remove(void)
{
    scratch_drop("");
}

#endif
