/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of the command line, which reads by the table of flags (flags.h): values, defaults and PET_* variables.
 * Pure: argv and a getter for the environment in, values out. Only parse.c and common/env.c call getenv.
 */
#ifndef PARSE_H
#define PARSE_H

#include "launcher/cli/options.h"

/* Calls getenv(3); an options_getenv for main. */
const char *options_real_env(const char *name, void *arg);

/*
 * Reads argv[1..] and the environment into *out, which is written on success only; its strings are argv's and the
 * environment's. Flags are spelled --a-b or --a_b, and given as --flag value, --flag=value or a short form (-r 3, -r3).
 * A name may be shortened if only one flag of torchrun, or only one flag of all, begins that way. `--` or the first
 * word that is not a flag ends the flags; the rest is the worker's command. A flag that is not given has the value of
 * its PET_* variable, otherwise its default. Returns CDDP_E_INVALID with an error message that names the flag (or
 * variable) and the value; CDDP_E_UNSUPPORTED for a flag or value that only torchrun knows.
 */
cddp_status options_parse(struct options *out, int argc, char **argv, options_getenv env, void *arg,
                          struct cdi_error *err);

/* Replaces control characters in the error message, so that it stays one line and moves no cursor. */
void options_one_line(struct cdi_error *err);

#endif
