/* SPDX-License-Identifier: Apache-2.0 */
/* The table of flags as texts: --help, the man page, the bash completion, docs/cli.md's table. */
#ifndef HELP_H
#define HELP_H

#include <stdio.h>

/* Prints --help. */
void help_usage(FILE *to);
/* Prints cddprun(1), for man, below its title. */
void help_man(FILE *to);
/* Prints a file for bash-completion. */
void help_bash(FILE *to);
/* Prints the table of docs/cli.md. */
void help_markdown(FILE *to);

#endif
