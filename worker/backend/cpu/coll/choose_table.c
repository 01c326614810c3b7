/* SPDX-License-Identifier: Apache-2.0 */
/* The table of thresholds that a text file replaces. */
#include "worker/backend/cpu/coll/choose.h"

#include "common/cleanup.h"
#include "common/env.h"
#include "worker/backend/describe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX ((size_t)64 * 1024)
#define LINE_WORDS 4
#define WORD_MAX 32
#define NODES_MAX 1000000

static const enum cdi_coll_kind kinds[] = {
    CDI_ALL_REDUCE, CDI_REDUCE, CDI_REDUCE_SCATTER, CDI_BROADCAST, CDI_ALL_GATHER, CDI_ALL_GATHERV, CDI_ALL_TO_ALL,
};

#define N_KINDS (sizeof kinds / sizeof kinds[0])

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Splits a line. Returns the number of its words, LINE_WORDS + 1 if there are more; -1: a word is too long. */
static int split(const char *line, size_t len, char word[LINE_WORDS][WORD_MAX])
{
    size_t at = 0;

    for (int n = 0;; n++) {
        size_t used = 0;

        while (at < len && is_blank(line[at]))
            at++;
        if (at == len || line[at] == '#' || n > LINE_WORDS)
            return n;
        for (; at < len && !is_blank(line[at]) && line[at] != '#'; at++, used++) {
            if (used + 1 >= WORD_MAX)
                return -1;
            if (n < LINE_WORDS)
                word[n][used] = line[at] > ' ' && line[at] <= '~' ? line[at] : '?';
        }
        if (n < LINE_WORDS)
            word[n][used] = '\0';
    }
}

static bool kind_of(const char *name, enum cdi_coll_kind *out)
{
    for (size_t i = 0; i < N_KINDS; i++)
        if (strcmp(cdi_coll_name((uint32_t)kinds[i]), name) == 0) {
            *out = kinds[i];
            return true;
        }
    return false;
}

static bool has_row(const struct cdi_choice_table *t, enum cdi_coll_kind kind, int nodes)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->row[i].kind == kind && (nodes == 0 || t->row[i].nodes == nodes))
            return true;
    return false;
}

/* Adds the row that the words are. */
static cddp_status add_row(struct cdi_choice_table *t, int line, const char word[LINE_WORDS][WORD_MAX],
                           struct cdi_error *err)
{
    int64_t nodes = 0, small = 0, direct = 0;
    enum cdi_coll_kind kind;

    if (!kind_of(word[0], &kind))
        return cdi_fail(err, CDDP_E_INVALID,
                        "line %d: '%s' is not a collective: all_reduce, reduce, reduce_scatter, broadcast, all_gather, "
                        "all_gatherv, all_to_all",
                        line, word[0]);
    if (!cdi_parse_int(word[1], 2, NODES_MAX, &nodes))
        return cdi_fail(err, CDDP_E_INVALID, "line %d: '%s' is not a number of nodes from 2 to %d", line, word[1],
                        NODES_MAX);
    if (!cdi_parse_int(word[2], 0, INT64_MAX, &small) || !cdi_parse_int(word[3], 0, INT64_MAX, &direct))
        return cdi_fail(err, CDDP_E_INVALID, "line %d: '%s' is not a number of bytes", line,
                        cdi_parse_int(word[2], 0, INT64_MAX, &small) ? word[3] : word[2]);
    if (has_row(t, kind, (int)nodes))
        return cdi_fail(err, CDDP_E_INVALID, "line %d: a second line for %s with %d nodes", line, word[0], (int)nodes);
    if (t->n == CDI_CHOICE_ROWS)
        return cdi_fail(err, CDDP_E_INVALID, "line %d: more than %d lines", line, CDI_CHOICE_ROWS);
    t->row[t->n++] = (struct cdi_choice_row){
        .kind = kind, .nodes = (int)nodes, .small_max = (uint64_t)small, .direct_max = (uint64_t)direct};
    return CDDP_OK;
}

/* Adds the built-in rows of the collectives that have none. */
static cddp_status add_defaults(struct cdi_choice_table *t, struct cdi_error *err)
{
    struct cdi_choice_table built_in;
    uint32_t n_read = t->n;

    cdi_choose_defaults(&built_in);
    for (uint32_t i = 0; i < built_in.n; i++) {
        bool read = false;

        for (uint32_t k = 0; k < n_read; k++)
            read = read || t->row[k].kind == built_in.row[i].kind;
        if (read)
            continue;
        if (t->n == CDI_CHOICE_ROWS)
            return cdi_fail(err, CDDP_E_INVALID, "more than %d lines, with those for other collectives",
                            CDI_CHOICE_ROWS);
        t->row[t->n++] = built_in.row[i];
    }
    return CDDP_OK;
}

cddp_status cdi_choose_parse(const char *text, size_t len, struct cdi_choice_table *out, struct cdi_error *err)
{
    struct cdi_choice_table t = {.n = 0};
    cddp_status st = CDDP_OK;
    size_t at = 0;

    for (int line = 1; at < len && st == CDDP_OK; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end != NULL ? (size_t)(end - (text + at)) : len - at;
        char word[LINE_WORDS][WORD_MAX] = {""};
        int words = split(text + at, n, word);

        at += n + 1;
        if (words == 0)
            continue;
        if (words != LINE_WORDS)
            st = cdi_fail(err, CDDP_E_INVALID, "line %d: a line is COLLECTIVE NODES SMALL_MAX_BYTES DIRECT_MAX_BYTES",
                          line);
        else
            st = add_row(&t, line, (const char(*)[WORD_MAX])word, err);
    }
    if (st == CDDP_OK)
        st = add_defaults(&t, err);
    if (st == CDDP_OK)
        *out = t;
    return st;
}

/* Reads at most cap bytes of a file. -1: errno has the reason. */
static ssize_t read_file(const char *path, char *buf, size_t cap)
{
    CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    size_t used = 0;

    if (fd < 0 || fstat(fd, &st) != 0)
        return -1;
    if (!S_ISREG(st.st_mode)) { /* a pipe without a writer reads as an empty table */
        errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
        return -1;
    }
    while (used < cap) {
        ssize_t n = read(fd, buf + used, cap - used);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

cddp_status cdi_choose_load(struct cdi_choice_table *out, struct cdi_error *err)
{
    const char *path = cdi_env_str(CDI_COLL_TABLE_ENV);
    CDI_AUTOFREE char *text = NULL;
    struct cdi_error why;
    ssize_t len;

    if (path == NULL) {
        cdi_choose_defaults(out);
        return CDDP_OK;
    }
    text = malloc(FILE_MAX + 1);
    if (text == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    len = read_file(path, text, FILE_MAX + 1);
    if (len < 0)
        return cdi_fail(err, CDDP_E_INVALID, CDI_COLL_TABLE_ENV ": cannot read '%.200s': %s", path,
                        errno == EINVAL ? "it is not a regular file" : strerror(errno));
    if ((size_t)len > FILE_MAX)
        return cdi_fail(err, CDDP_E_INVALID, CDI_COLL_TABLE_ENV ": '%.200s' has more than %zu bytes", path, FILE_MAX);
    if (cdi_choose_parse(text, (size_t)len, out, &why) != CDDP_OK)
        return cdi_fail(err, CDDP_E_INVALID, CDI_COLL_TABLE_ENV ": '%.200s': %.600s", path, why.msg);
    return CDDP_OK;
}

bool cdi_choose_valid(const struct cdi_choice_table *table)
{
    for (uint32_t i = 0; i < table->n && table->n <= CDI_CHOICE_ROWS; i++)
        if (table->row[i].nodes < 2 || cdi_coll_name((uint32_t)table->row[i].kind) == NULL)
            return false;
    return table->n <= CDI_CHOICE_ROWS;
}
