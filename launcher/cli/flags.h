/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of cddprun's flags. The parser (parse.c), --help, the man page, the bash completion, the table of
 * docs/cli.md (help.c) and the suggestions for unknown flags use it. Constant data; decides nothing.
 */
#ifndef FLAGS_H
#define FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLAG_NAME_MAX 48

enum flag_kind {
    FLAG_SWITCH,   /* bool; its variable is 0 or 1 */
    FLAG_NUMBER,   /* int64_t in [min, max] */
    FLAG_TEXT,     /* const char *, at least min bytes; an empty one, if allowed, counts as not given */
    FLAG_SECONDS,  /* int64_t, milliseconds in [min, max] from seconds such as 2 or 0.5 */
    FLAG_CHOICE,   /* int: the index of a word of `value` */
    FLAG_RANK_MAP, /* const char *, as rankmap_check() takes it */
    FLAG_RANKS,    /* const char *, as rankset_check() takes it; an empty one counts as not given */
    FLAG_SIGNALS,  /* const char *, and options.signals */
    FLAG_NPROC,    /* N, cpu, gpu, auto */
    FLAG_NNODES,   /* N, MIN:MAX, MIN: or MIN:auto */
    FLAG_PORTS,    /* const char *, A-B */
    FLAG_EXPORT,   /* NAME, NAME=VALUE or ALL; repeatable */
    FLAG_HELP,
    FLAG_VERSION,
};

enum flag_group {
    GROUP_JOB,
    GROUP_NODES,
    GROUP_FAILURE,
    GROUP_LOGS,
    GROUP_PLACE,
    GROUP_PYTHON,
    GROUP_OTHER,
    GROUP_TORCHRUN, /* no other job needs them */
    N_GROUPS
};

struct flag {
    const char *name;   /* with underscores */
    const char *shorts; /* without their dash, separated by spaces; NULL: none */
    const char *env;    /* NULL: PET_ and the name; "": none */
    enum flag_group group;
    enum flag_kind kind;
    size_t offset; /* in struct options */
    int64_t min, max;
    const char *fallback;      /* read like a value from the command line; NULL: none */
    const char *shown_default; /* documents show it instead of fallback; NULL: that one */
    const char *value;         /* the value's name in documents; of a FLAG_CHOICE its words, separated by | */
    const char *alone;         /* its value where the flag stands without "="; NULL: the next word is the value */
    const char *help;
    const char *note;    /* of a FLAG_CHOICE: appended to the error message for any other word; NULL: nothing */
    const char *refusal; /* why the flag is refused if it is given; NULL: it is not */
    bool ours;           /* torchrun has no such flag */
};

extern const struct flag flags[];
extern const size_t n_flags;
extern const char *const flag_groups[N_GROUPS]; /* their headings */

/* Writes the name of the flag's variable, or "", to buf (FLAG_NAME_MAX + 4 bytes). Returns buf. */
const char *flag_env(const struct flag *f, char *buf);
bool flag_takes_value(const struct flag *f);
/* Returns whether this word (len bytes, without its dash) is a short form of f. */
bool flag_is_short(const struct flag *f, const char *word, size_t len);

#endif
