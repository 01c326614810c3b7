/* SPDX-License-Identifier: Apache-2.0 */
/* The table of flags as texts: --help, the man page, the bash completion, docs/cli.md's table. */
#ifndef HELP_H
#define HELP_H

#include <stdio.h>

void help_usage(FILE *to);    /* prints --help */
void help_man(FILE *to);      /* cddprun(1), for man */
void help_bash(FILE *to);     /* a file for bash-completion */
void help_markdown(FILE *to); /* the table in docs/cli.md */

#endif
