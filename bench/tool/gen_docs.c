/* SPDX-License-Identifier: Apache-2.0 */
/* Build tool: prints cddp-bench(1), the man page, from the tables of kinds and flags. */
#include "common/cli_docs.h"
#include "options.h"

#include <cddp/version.h>

/* Line ends are those of --help. */
static void roff(FILE *to, const char *text)
{
    char line[512];
    size_t n = 0;

    for (; text[n] != '\0' && n + 1 < sizeof line; n++)
        line[n] = text[n] == '\n' ? ' ' : text[n];
    line[n] = '\0';
    cdi_roff(to, line);
}

int main(void)
{
    FILE *to = stdout;

    (void)fprintf(to, ".TH CDDP-BENCH 1 \"\" \"cddprun %s\" \"User Commands\"\n", CDDP_VERSION);
    (void)fputs(".SH NAME\ncddp\\-bench \\- measure collectives and messages of libcddp\n"
                ".SH SYNOPSIS\n.B cddprun\n[...]\n.B cddp\\-bench\n[\\fIKIND\\fR] [\\fIflags\\fR]\n.SH DESCRIPTION\n",
                to);
    roff(to, bench_about);
    (void)fputs(".PP\n", to);
    roff(to, bench_notes);
    (void)fputs(".SH KINDS\n", to);
    for (int i = 0; i < bench_n_kinds; i++) {
        (void)fprintf(to, ".TP\n.B %s\n", bench_kinds[i].name);
        roff(to, bench_kinds[i].about);
    }
    (void)fputs(".TP\n.B all\neach of them (default all_reduce)\n.SH OPTIONS\n", to);
    for (int i = 0; i < bench_n_flags; i++) {
        const struct bench_flag *f = &bench_flags[i];

        if (f->help == NULL)
            continue;
        (void)fputs(".TP\n", to);
        if (f->letter < BENCH_LONG_ONLY)
            (void)fprintf(to, ".BR \\-%c \", \" ", f->letter);
        else
            (void)fputs(".B ", to);
        (void)fprintf(to, "\\-\\-%s%s\\fI%s\\fR\n", f->name, f->value == NULL ? "" : "=",
                      f->value == NULL ? "" : f->value);
        roff(to, f->help);
    }
    (void)fputs(".SH SEE ALSO\n.BR cddprun (1)\n", to);
    return fflush(to) == 0 ? 0 : 1;
}
