/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Typed, range-checked reading of environment variables: with launcher/cli/parse.c the only reader of getenv. An error
 * names the variable and its value. As with getenv, no other thread may change the environment meanwhile.
 */
#ifndef CDI_ENV_H
#define CDI_ENV_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

/* The value, or NULL if it is unset or empty. */
const char *cdi_env_str(const char *name);
/* Is it set to anything but the empty string? */
bool cdi_env_has(const char *name);
/* A decimal number in [min, max]. CDDP_E_NOT_FOUND if unset; CDDP_E_INVALID, with a sentence, if it is anything else.
 */
cddp_status cdi_env_int(const char *name, int64_t min, int64_t max, int64_t *out, struct cdi_error *err);
/* As cdi_env_int, but *out = fallback and CDDP_OK where the variable is unset. */
cddp_status cdi_env_int_or(const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *out,
                           struct cdi_error *err);
/* The whole text as a decimal number in [min, max], or false. Leading blanks and a '+' are not accepted. */
bool cdi_parse_int(const char *text, int64_t min, int64_t max, int64_t *out);
/* The whole text as a number of bytes in [1, max], with K, M or G (of 1024) behind it or not; else false. */
bool cdi_parse_size(const char *text, int64_t max, int64_t *out);

#endif
