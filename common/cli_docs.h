/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Documents from a program's table of flags: wrapped text for --help, roff for its man page, a file for
 * bash-completion. Each function writes to a stream, whose errors the caller checks.
 */
#ifndef CDI_COMMON_CLI_DOCS_H
#define CDI_COMMON_CLI_DOCS_H

#include <stdbool.h>
#include <stdio.h>

/* Writes text in lines of at most 100 columns, broken at blanks. All lines but the first are indented. */
void cdi_wrap(FILE *to, const char *text, size_t indent);

/* Writes a line of text with roff's special characters escaped. */
void cdi_roff(FILE *to, const char *text);

/*
 * Write the completion of a program: begin, then words for each flag whose value is one of a list ("a|b|c"), then
 * flags, then flag for each flag, then end. Names of flags have underscores, and no dashes in front.
 */
void cdi_bash_begin(FILE *to, const char *program);
void cdi_bash_words(FILE *to, const char *flag, const char *words);
void cdi_bash_flags(FILE *to);
void cdi_bash_flag(FILE *to, const char *flag, bool takes_value);
void cdi_bash_end(FILE *to, const char *program);

#endif
