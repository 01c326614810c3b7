/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cli/help.h"

#include "common/cli_docs.h"
#include "launcher/cli/flags.h"

#include <stdlib.h>
#include <string.h>

/* The three commands that users need first. */
static const struct {
    const char *command, *what;
} first_commands[] = {
    {"cddprun --nproc_per_node=gpu ./train --lr 0.1",
     "one worker for each GPU of this node; the words after ./train are its arguments"},
    {"cddprun --nproc_per_node=8 --max_restarts=3 ./train",
     "eight workers; cddprun restarts all when one fails, three times at most"},
    {"cddprun --nnodes=2 --node_rank=0 --master_addr=node1 --nproc_per_node=gpu ./train",
     "two nodes: this on node1, and the same with --node_rank=1 on the other"},
};
#define N_FIRST_COMMANDS (sizeof first_commands / sizeof first_commands[0])

static const char about[] =
    "Each worker finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and torchrun's other variables in its "
    "environment; ${local_rank} in ARGS becomes its local rank. A PROGRAM whose name ends in .py is run by "
    "$PYTHON_EXEC, or "
    "python3, with -u. The exit status is that of the first worker that failed, or 128 + the signal that killed it; "
    "127 or 126 if PROGRAM cannot be found or run, and 2 for an error on the command line.";
static const char spelling[] = "--a-b and --a_b are the same flag, and unambiguous prefixes are accepted. A flag that "
                               "is not given has the value of its variable.";
static const char scheduler[] =
    "Started once on each node of a job of Slurm (srun --ntasks-per-node=1 cddprun ...), Open MPI (mpirun --map-by "
    "ppr:1:node), PBS (pbsdsh -u) or LSF (blaunch, jsrun -r 1), cddprun takes the nodes, their ranks and the "
    "rendezvous address from its variables, unless flags override them, and prints one line about it.";
static const char log_level[] = "LOGLEVEL (debug, info, warning, error) sets how much cddprun logs.";

static const char *shown_default(const struct flag *f)
{
    if (f->shown_default != NULL)
        return f->shown_default;
    return f->fallback != NULL && f->kind != FLAG_SWITCH ? f->fallback : "";
}

/* "--tee=MAP, -t MAP"; dash replaces each dash. */
static void write_forms(FILE *to, const struct flag *f, const char *dash)
{
    fprintf(to, "%s%s%s%s%s%s%s", dash, dash, f->name, f->alone != NULL ? "[" : "", f->value != NULL ? "=" : "",
            f->value != NULL ? f->value : "", f->alone != NULL ? "]" : "");
    for (const char *p = f->shorts; p != NULL && *p != '\0'; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");

        fprintf(to, ", %s%.*s%s%s", dash, (int)n, p, f->value != NULL ? " " : "", f->value != NULL ? f->value : "");
        p += n;
    }
}

/* -------------------------------------------------------------------------------------------------------- help ---- */

static void usage_flag(FILE *to, const struct flag *f)
{
    char env[FLAG_NAME_MAX + 4], text[800];
    const char *shown = shown_default(f);

    fputs("  ", to);
    write_forms(to, f, "-");
    fprintf(to, "%s%s\n        ", *flag_env(f, env) != '\0' ? "   or " : "", env);
    (void)snprintf(text, sizeof text, "%s%s%s%s%s%s", f->help, *shown != '\0' ? " (default: " : "", shown,
                   *shown != '\0' ? ")" : "", f->refusal != NULL ? "; refused: " : "",
                   f->refusal != NULL ? f->refusal : "");
    cdi_wrap(to, text, 8);
}

void help_usage(FILE *to)
{
    fputs("Run a program as several ranks of one job.\n\n", to);
    for (size_t i = 0; i < N_FIRST_COMMANDS; i++)
        fprintf(to, "  %s\n        %s\n", first_commands[i].command, first_commands[i].what);
    fputs("\nusage: cddprun [flags] PROGRAM [ARGS]\n\n", to);
    cdi_wrap(to, about, 0);
    fputc('\n', to);
    cdi_wrap(to, spelling, 0);
    for (int g = 0; g < N_GROUPS; g++) {
        fprintf(to, "\n%s\n", flag_groups[g]);
        for (size_t i = 0; i < n_flags; i++)
            if (flags[i].group == (enum flag_group)g)
                usage_flag(to, &flags[i]);
    }
    fputc('\n', to);
    cdi_wrap(to, scheduler, 0);
    fputc('\n', to);
    cdi_wrap(to, log_level, 0);
}

/* --------------------------------------------------------------------------------------------------------- man ---- */

static void man_flag(FILE *to, const struct flag *f)
{
    char env[FLAG_NAME_MAX + 4];
    const char *shown = shown_default(f);

    fputs(".TP\n.B ", to);
    write_forms(to, f, "\\-");
    fputc('\n', to);
    cdi_roff(to, f->help);
    if (*shown != '\0') {
        fputs(".br\nDefault: ", to);
        cdi_roff(to, shown);
    }
    if (f->refusal != NULL) {
        fputs(".br\nRefused: ", to);
        cdi_roff(to, f->refusal);
    }
    if (*flag_env(f, env) != '\0')
        fprintf(to, ".br\nVariable: %s\n", env);
}

void help_man(FILE *to)
{
    fputs(".SH NAME\ncddprun \\- run a program as several ranks of one job\n"
          ".SH SYNOPSIS\n.B cddprun\n[\\fIflags\\fR] \\fIPROGRAM\\fR [\\fIARGS\\fR]\n.SH EXAMPLES\n",
          to);
    for (size_t i = 0; i < N_FIRST_COMMANDS; i++) {
        fputs(".TP\n.B ", to);
        cdi_roff(to, first_commands[i].command);
        cdi_roff(to, first_commands[i].what);
    }
    fputs(".SH DESCRIPTION\n", to);
    cdi_roff(to, about);
    fputs(".PP\n", to);
    cdi_roff(to, spelling);
    fputs(".PP\n", to);
    cdi_roff(to, scheduler);
    fputs(".SH OPTIONS\n", to);
    for (int g = 0; g < N_GROUPS; g++) {
        fprintf(to, ".SS %s\n", flag_groups[g]);
        for (size_t i = 0; i < n_flags; i++)
            if (flags[i].group == (enum flag_group)g)
                man_flag(to, &flags[i]);
    }
    fputs(".SH ENVIRONMENT\n", to);
    cdi_roff(to, log_level);
    fputs(".SH SEE ALSO\n.BR torchrun (1),\n.BR srun (1)\n", to);
}

/* -------------------------------------------------------------------------------------------------- completion ---- */

/* Whether the value is one of some words: a choice, or --nproc_per_node. */
static bool has_words(const struct flag *f)
{
    return f->kind == FLAG_CHOICE || f->kind == FLAG_NPROC;
}

void help_bash(FILE *to)
{
    cdi_bash_begin(to, "cddprun");
    for (size_t i = 0; i < n_flags; i++)
        if (has_words(&flags[i]))
            cdi_bash_words(to, flags[i].name, flags[i].kind == FLAG_NPROC ? "cpu|gpu|auto" : flags[i].value);
    cdi_bash_flags(to);
    for (size_t i = 0; i < n_flags; i++)
        cdi_bash_flag(to, flags[i].name, flag_takes_value(&flags[i]));
    cdi_bash_end(to, "cddprun");
}

/* -------------------------------------------------------------------------------------------------------- table ----
 */

static void cell(FILE *to, const char *text)
{
    for (const char *p = text; *p != '\0'; p++)
        fprintf(to, *p == '|' ? "\\%c" : "%c", *p);
}

static void markdown_flag(FILE *to, const struct flag *f)
{
    char *forms = NULL;
    size_t size = 0;
    FILE *mem = open_memstream(&forms, &size);

    if (mem == NULL)
        return;
    write_forms(mem, f, "-");
    (void)fclose(mem);
    fputs("| `", to);
    for (const char *p = forms; *p != '\0'; p++) {
        if (p[0] == ',' && p[1] == ' ') {
            fputs("`, `", to);
            p++;
        } else {
            fprintf(to, *p == '|' ? "\\%c" : "%c", *p);
        }
    }
    fputs("` | ", to);
    cell(to, shown_default(f));
    fputs(" | ", to);
    cell(to, f->help);
    if (f->refusal != NULL) {
        fputs("; refused: ", to);
        cell(to, f->refusal);
    }
    fputs(" |\n", to);
    free(forms);
}

void help_markdown(FILE *to)
{
    fputs("| flag | default | meaning |\n|---|---|---|\n", to);
    for (int g = 0; g < N_GROUPS; g++)
        for (size_t i = 0; i < n_flags; i++)
            if (flags[i].group == (enum flag_group)g)
                markdown_flag(to, &flags[i]);
}
