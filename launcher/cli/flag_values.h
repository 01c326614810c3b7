/* SPDX-License-Identifier: Apache-2.0 */
/* One value of a flag or of its variable: text in, a member of struct options out. Pure; used by parse.c only. */
#ifndef FLAG_VALUES_H
#define FLAG_VALUES_H

#include "launcher/cli/flags.h"
#include "launcher/cli/options.h"

/*
 * Reads text as the value of f and stores it (the pointer, if the member is a text). from names the flag or variable in
 * error messages. CDDP_E_INVALID; CDDP_E_UNSUPPORTED for a value that only torchrun knows. A refused flag is read, too:
 * see value_refused().
 */
cddp_status value_set(struct options *o, const struct flag *f, const char *text, const char *from,
                      struct cdi_error *err);

/* Returns CDDP_E_UNSUPPORTED with the flag's own error message, if it has one and text is not its default. */
cddp_status value_refused(const struct flag *f, const char *text, const char *from, struct cdi_error *err);

#endif
