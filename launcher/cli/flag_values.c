/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cli/flag_values.h"

#include "common/env.h"
#include "common/signal_abbrev.h"
#include "launcher/cli/rankmap.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNAL_MAX 64

static void value_store(struct options *o, const struct flag *f, const void *value, size_t size)
{
    memcpy((char *)o + f->offset, value, size);
}

static cddp_status set_nproc(struct options *o, const struct flag *f, const char *text, const char *from,
                             struct cdi_error *err)
{
    static const struct {
        const char *word;
        enum options_nproc kind;
    } words[] = {{"cpu", OPTIONS_NPROC_CPU}, {"gpu", OPTIONS_NPROC_GPU}, {"auto", OPTIONS_NPROC_AUTO}};

    o->nproc_given = true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i].word) == 0) {
            o->nproc_kind = words[i].kind;
            return CDDP_OK;
        }
    }
    if (!cdi_parse_int(text, f->min, f->max, &o->nproc))
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s '%.64s' is neither a whole number from %" PRId64 " to %" PRId64 " nor cpu, gpu or auto",
                        from, text, f->min, f->max);
    o->nproc_kind = OPTIONS_NPROC_COUNT;
    return CDDP_OK;
}

static cddp_status set_nnodes(struct options *o, const struct flag *f, const char *text, const char *from,
                              struct cdi_error *err)
{
    char low[16];
    const char *colon = strchr(text, ':');
    bool by_step = colon != NULL && (colon[1] == '\0' || strcmp(colon + 1, "auto") == 0);
    size_t n = colon == NULL ? strlen(text) : (size_t)(colon - text);

    (void)snprintf(low, sizeof low, "%.*s", n < sizeof low ? (int)n : 0, text);
    if (!cdi_parse_int(low, f->min, f->max, &o->min_nodes) ||
        (!by_step && !cdi_parse_int(colon == NULL ? low : colon + 1, f->min, f->max, &o->max_nodes)))
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s '%.64s' is neither a number of nodes from %" PRId64 " to %" PRId64
                        ", nor MIN:MAX, nor MIN: for all nodes of a scheduler's step",
                        from, text, f->min, f->max);
    if (by_step)
        o->max_nodes = OPTIONS_NODES_AUTO;
    else if (o->max_nodes < o->min_nodes)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' has a MIN larger than its MAX", from, text);
    o->nnodes_given = true;
    return CDDP_OK;
}

static cddp_status set_ports(struct options *o, const struct flag *f, const char *text, const char *from,
                             struct cdi_error *err)
{
    uint16_t first, last;

    if (!cdi_parse_ports(text, &first, &last))
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is not a range of ports such as 30000-30099", from, text);
    value_store(o, f, &text, sizeof text);
    return CDDP_OK;
}

static cddp_status value_set_number(struct options *o, const struct flag *f, const char *text, const char *from,
                                    struct cdi_error *err)
{
    int64_t v;

    if (!cdi_parse_int(text, f->min, f->max, &v))
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is not a whole number from %" PRId64 " to %" PRId64, from,
                        text, f->min, f->max);
    value_store(o, f, &v, sizeof v);
    return CDDP_OK;
}

/* "2", "0.25": digits with at most one point among them. */
static cddp_status set_seconds(struct options *o, const struct flag *f, const char *text, const char *from,
                               struct cdi_error *err)
{
    size_t whole = strspn(text, "0123456789"), fraction = 0;
    int64_t ms = -1;

    if (text[whole] == '.')
        fraction = strspn(text + whole + 1, "0123456789");
    if (whole + fraction > 0 && whole + fraction < 16 && strlen(text) == whole + (text[whole] == '.') + fraction)
        ms = (int64_t)(strtod(text, NULL) * 1000.0 + 0.5);
    if (ms < f->min || ms > f->max)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is not a number of seconds from %" PRId64 " to %" PRId64, from,
                        text, f->min / 1000, f->max / 1000);
    value_store(o, f, &ms, sizeof ms);
    return CDDP_OK;
}

static cddp_status set_switch(struct options *o, const struct flag *f, const char *text, const char *from,
                              struct cdi_error *err)
{
    bool on = strcmp(text, "1") == 0;

    if (!on && strcmp(text, "0") != 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is neither 0 nor 1", from, text);
    value_store(o, f, &on, sizeof on);
    return CDDP_OK;
}

static cddp_status set_text(struct options *o, const struct flag *f, const char *text, const char *from,
                            struct cdi_error *err)
{
    const char *given = *text == '\0' ? NULL : text;

    if ((int64_t)strlen(text) < f->min)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is empty", from, text);
    if ((int64_t)strlen(text) > f->max)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is longer than %" PRId64 " bytes", from, text, f->max);
    value_store(o, f, &given, sizeof given);
    return CDDP_OK;
}

/* "stop|wait" -> "neither stop nor wait"; "null" -> "not null". */
static void list_choices(const char *words, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "%s ", strchr(words, '|') == NULL ? "not" : "neither");

    for (const char *p = words; *p != '\0' && n < cap; p += *p == '|') {
        size_t len = strcspn(p, "|");
        bool last = p[len] == '\0';

        n += (size_t)snprintf(buf + n, cap - n, "%s%.*s", p == words ? "" : last ? " nor " : ", ", (int)len, p);
        p += len;
    }
}

static cddp_status set_choice(struct options *o, const struct flag *f, const char *text, const char *from,
                              struct cdi_error *err)
{
    char choices[160];
    int index = 0;

    for (const char *p = f->value; *p != '\0'; p += *p == '|', index++) {
        size_t len = strcspn(p, "|");

        if (strlen(text) == len && memcmp(p, text, len) == 0) {
            value_store(o, f, &index, sizeof index);
            return CDDP_OK;
        }
        p += len;
    }
    list_choices(f->value, choices, sizeof choices);
    return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is %s%s%s", from, text, choices, f->note == NULL ? "" : "; ",
                    f->note == NULL ? "" : f->note);
}

static cddp_status set_checked_text(struct options *o, const struct flag *f, const char *text, const char *from,
                                    cddp_status (*check)(const char *text, const char *from, struct cdi_error *err),
                                    struct cdi_error *err)
{
    cddp_status st = check(text, from, err);

    if (st == CDDP_OK)
        value_store(o, f, &text, sizeof text);
    return st;
}

/* "SIGTERM", or "TERM"; 0: not the name of a signal. */
static int signal_of(const char *name, size_t len)
{
    if (len > 3 && memcmp(name, "SIG", 3) == 0) {
        name += 3;
        len -= 3;
    }
    for (int s = 1; s <= SIGNAL_MAX; s++) {
        const char *abbrev = cdi_signal_abbrev(s);

        if (abbrev != NULL && strlen(abbrev) == len && memcmp(abbrev, name, len) == 0)
            return s;
    }
    return 0;
}

static cddp_status set_signals(struct options *o, const struct flag *f, const char *text, const char *from,
                               struct cdi_error *err)
{
    uint64_t set = 0;

    for (const char *p = text;; p++) {
        size_t lead = strspn(p, " "), len = strcspn(p + lead, " ,");
        int s = signal_of(p + lead, len);

        if (s == 0)
            return cdi_fail(err, CDDP_E_INVALID,
                            "%s '%.64s': '%.*s' is not a signal; use names such as SIGTERM or SIGUSR1", from, text,
                            len < 64 ? (int)len : 64, p + lead);
        if (s == SIGKILL || s == SIGSTOP || s == SIGCONT || s == SIGTSTP || s == SIGCHLD || s == SIGPIPE)
            return cdi_fail(err, CDDP_E_INVALID, "%s: %.*s cannot be used to end a job", from, (int)len, p + lead);
        set |= UINT64_C(1) << (s - 1);
        p += lead + len;
        p += strspn(p, " ");
        if (*p == '\0')
            break;
        if (*p != ',')
            return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is not a comma-separated list of signals", from, text);
    }
    if (f->offset == offsetof(struct options, stop_signals))
        o->stop_set = set;
    else
        o->signals = set;
    value_store(o, f, &text, sizeof text);
    return CDDP_OK;
}

static cddp_status add_export(struct options *o, const char *text, const char *from, struct cdi_error *err)
{
    size_t n = strcspn(text, "=");

    if (n == 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' has no name; give NAME=VALUE or NAME", from, text);
    if (o->n_exports == OPTIONS_MAX_EXPORTS)
        return cdi_fail(err, CDDP_E_LIMIT, "%s is given more than %d times", from, OPTIONS_MAX_EXPORTS);
    o->exports[o->n_exports++] = text;
    return CDDP_OK;
}

cddp_status value_set(struct options *o, const struct flag *f, const char *text, const char *from,
                      struct cdi_error *err)
{
    switch (f->kind) {
    case FLAG_SWITCH:
        return set_switch(o, f, text, from, err);
    case FLAG_NUMBER:
        return value_set_number(o, f, text, from, err);
    case FLAG_TEXT:
        return set_text(o, f, text, from, err);
    case FLAG_SECONDS:
        return set_seconds(o, f, text, from, err);
    case FLAG_CHOICE:
        return set_choice(o, f, text, from, err);
    case FLAG_RANK_MAP:
        return set_checked_text(o, f, text, from, rankmap_check, err);
    case FLAG_RANKS:
        return *text == '\0' ? CDDP_OK : set_checked_text(o, f, text, from, rankset_check, err);
    case FLAG_SIGNALS:
        return set_signals(o, f, text, from, err);
    case FLAG_NPROC:
        return set_nproc(o, f, text, from, err);
    case FLAG_PORTS:
        return set_ports(o, f, text, from, err);
    case FLAG_NNODES:
        return set_nnodes(o, f, text, from, err);
    case FLAG_EXPORT:
        return add_export(o, text, from, err);
    case FLAG_HELP:
        o->what = OPTIONS_HELP;
        return CDDP_OK;
    case FLAG_VERSION:
        o->what = OPTIONS_VERSION;
        return CDDP_OK;
    }
    return CDDP_E_INVALID;
}

cddp_status value_refused(const struct flag *f, const char *text, const char *from, struct cdi_error *err)
{
    if (f->refusal == NULL || (f->fallback == NULL ? *text == '\0' : strcmp(text, f->fallback) == 0))
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_UNSUPPORTED, "%s '%.64s': %s", from, text, f->refusal);
}
