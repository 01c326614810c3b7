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

/* Returns the value; NULL: it is unset or empty. */
const char *cdi_env_str(const char *name);
/* Returns whether it is set and not empty. */
bool cdi_env_has(const char *name);
/* Reads a decimal number in [min, max]. CDDP_E_NOT_FOUND if it is unset; CDDP_E_INVALID if it is anything else. */
cddp_status cdi_env_int(const char *name, int64_t min, int64_t max, int64_t *out, struct cdi_error *err);
/* Does the same, but sets *out to fallback and returns CDDP_OK if the variable is unset. */
cddp_status cdi_env_int_or(const char *name, int64_t min, int64_t max, int64_t fallback, int64_t *out,
                           struct cdi_error *err);
/* Reads the whole text as a decimal number in [min, max]; false: it is not one. Rejects leading blanks and a '+'. */
bool cdi_parse_int(const char *text, int64_t min, int64_t max, int64_t *out);
/* Reads the whole text as a number of bytes in [1, max], with an optional suffix K, M or G (of 1024); false: it is not
 * one. */
bool cdi_parse_size(const char *text, int64_t max, int64_t *out);
/* Reads the whole text as a range of ports such as 29500-29599, from 1 to 65535; false: it is not one. */
bool cdi_parse_ports(const char *text, uint16_t *first, uint16_t *last);

#endif
