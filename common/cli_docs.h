/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program makes of its table of flags besides parsing: wrapped text for --help, roff for its man page, a file
 * for bash-completion. Each writes to a stream, whose errors the caller looks at.
 */
#ifndef CDI_COMMON_CLI_DOCS_H
#define CDI_COMMON_CLI_DOCS_H

#include <stdbool.h>
#include <stdio.h>

/* Words, broken at blanks to lines of 100 columns; every line but the first begins with `indent` of them. */
void cdi_wrap(FILE *to, const char *text, size_t indent);

/* A line of text, without what roff would read as its own. */
void cdi_roff(FILE *to, const char *text);

/*
 * The completion of a program: begin, then words for each flag whose value is one of a few ("a|b|c"), then flags, then
 * flag for each one, then end. Names of flags are with underscores and without dashes in front.
 */
void cdi_bash_begin(FILE *to, const char *program);
void cdi_bash_words(FILE *to, const char *flag, const char *words);
void cdi_bash_flags(FILE *to);
void cdi_bash_flag(FILE *to, const char *flag, bool takes_value);
void cdi_bash_end(FILE *to, const char *program);

#endif
