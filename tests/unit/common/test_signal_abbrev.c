/* SPDX-License-Identifier: Apache-2.0 */
/* Names of signals are those of glibc. */
#include "common/signal_abbrev.h"
#include "hygiene.h"

CDI_SUITE(signal_abbrev);

Test(signal_abbrev, has_the_names_of_libc)
{
    for (int s = -1; s <= 128; s++) {
        const char *own = cdi_signal_abbrev(s), *libc = sigabbrev_np(s);

        cr_assert_eq(own == NULL, libc == NULL, "signal %d", s);
        if (libc != NULL)
            cr_assert_str_eq(own, libc);
    }
    cr_assert_str_eq(cdi_signal_abbrev(9), "KILL");
    cr_assert_null(cdi_signal_abbrev(SIGRTMIN));
}
