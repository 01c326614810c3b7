/* SPDX-License-Identifier: Apache-2.0 */
/* One value of a flag or of its variable: text in, a member of struct options out. Pure; used by options.c only. */
#ifndef FLAG_VALUES_H
#define FLAG_VALUES_H

#include "launcher/cli/flags.h"
#include "launcher/cli/options.h"

/*
 * Read text as the value of f and store it (the pointer, where the member is a text). from names the flag or variable
 * for the sentence. CDDP_E_INVALID; CDDP_E_UNSUPPORTED for a value that only torchrun knows. A refused flag is read all
 * the same: see value_refused().
 */
cddp_status value_set(struct options *o, const struct flag *f, const char *text, const char *from,
                      struct cdi_error *err);

/* CDDP_E_UNSUPPORTED with the flag's own sentence, if it has one and text asks for more than its default. */
cddp_status value_refused(const struct flag *f, const char *text, const char *from, struct cdi_error *err);

#endif
