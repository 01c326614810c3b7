/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COLUMNS 10
#define CELL 64

struct row {
    char cell[COLUMNS][CELL];
};

static const char *const heads[COLUMNS] = {"node",  "host",   "workers", "cpus",  "GPUs",
                                           "clock", "memory", "disk",    "files", "MiB/s out, in"};
static const bool is_left[COLUMNS] = {[1] = true};

/* "free/total GiB" */
static void size_cell(char *cell, uint64_t part, uint64_t whole)
{
    if (whole == 0)
        (void)snprintf(cell, CELL, "?");
    else
        (void)snprintf(cell, CELL, "%.*f/%.*f GiB", part < (uint64_t)10 << 30 ? 1 : 0, (double)part / (1 << 30),
                       whole < (uint64_t)10 << 30 ? 1 : 0, (double)whole / (1 << 30));
}

static void clock_cell(char *cell, const struct preflight_facts *f, size_t node)
{
    double ms = (double)f->clock_us / 1e3;

    if (node == 0)
        (void)snprintf(cell, CELL, "0");
    else if (!f->clock_known)
        (void)snprintf(cell, CELL, "?");
    else if (ms > -1000 && ms < 1000)
        (void)snprintf(cell, CELL, "%+.1f ms", ms);
    else
        (void)snprintf(cell, CELL, "%+.1f s", ms / 1e3);
}

/* The slowest measured link in each direction; 0: none. */
static void slowest(const struct preflight_facts *nodes, size_t n, size_t node, double *out, double *in)
{
    *out = *in = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < nodes[i].n_links; k++) {
            const struct preflight_link *l = &nodes[i].link[k];
            double *which = i == node ? out : in;

            if (l->mib_s > 0 && (i == node || l->to == node) && (*which == 0 || l->mib_s < *which))
                *which = l->mib_s;
        }
}

static void links_cell(char *cell, const struct preflight_facts *nodes, size_t n, size_t node)
{
    double out, in;

    slowest(nodes, n, node, &out, &in);
    if (out == 0 && in == 0)
        (void)snprintf(cell, CELL, "-");
    else
        (void)snprintf(cell, CELL, "%.4g, %.4g", out, in);
}

static void fill(struct row *r, const struct preflight_facts *nodes, size_t n, size_t i)
{
    const struct preflight_facts *f = &nodes[i];
    size_t fullest = 0;

    memset(r, 0, sizeof *r);
    (void)snprintf(r->cell[0], CELL, "%zu", i);
    if (!f->known) {
        (void)snprintf(r->cell[1], CELL, "no report");
        return;
    }
    for (size_t k = 1; k < f->n_disks; k++)
        if (f->disk[k].free < f->disk[fullest].free)
            fullest = k;
    (void)snprintf(r->cell[1], CELL, "%.63s", f->host);
    (void)snprintf(r->cell[2], CELL, "%u", f->workers);
    (void)snprintf(r->cell[3], CELL, "%u", f->cpus);
    (void)snprintf(r->cell[4], CELL, "%u", f->gpus);
    clock_cell(r->cell[5], f, i);
    size_cell(r->cell[6], f->memory_free, f->memory);
    size_cell(r->cell[7], f->n_disks > 0 ? f->disk[fullest].free : 0, f->n_disks > 0 ? f->disk[fullest].total : 0);
    if (f->files > 9999999)
        (void)snprintf(r->cell[8], CELL, "no limit");
    else
        (void)snprintf(r->cell[8], CELL, "%" PRIu64, f->files);
    links_cell(r->cell[9], nodes, n, i);
}

static bool has_finding(const struct preflight_finding *findings, size_t n_findings, size_t node)
{
    for (size_t i = 0; i < n_findings; i++)
        if (findings[i].node == node)
            return true;
    return false;
}

static void widen(int width[COLUMNS], const struct row *r)
{
    for (int c = 0; c < COLUMNS; c++)
        if ((int)strlen(r->cell[c]) > width[c])
            width[c] = (int)strlen(r->cell[c]);
}

static cddp_status put_row(struct cdi_buf *to, const int width[COLUMNS], const struct row *r)
{
    char line[COLUMNS * (CELL + 2) + 1];
    size_t n = 0;

    for (int c = 0; c < COLUMNS; c++)
        n += (size_t)snprintf(line + n, sizeof line - n, is_left[c] ? "%s%-*s" : "%s%*s", c > 0 ? "  " : "", width[c],
                              r->cell[c]);
    while (n > 0 && line[n - 1] == ' ')
        line[--n] = '\0';
    return cdi_buf_printf(to, "%s\n", line);
}

/* Is this node in the table? Of many nodes only those with findings, and the first. */
static bool is_shown(const struct preflight_finding *findings, size_t n_findings, size_t n, size_t i)
{
    return n <= PREFLIGHT_ROWS || i == 0 || has_finding(findings, n_findings, i);
}

static cddp_status put_rows(struct cdi_buf *to, const struct preflight_facts *nodes, size_t n,
                            const struct preflight_finding *findings, size_t n_findings)
{
    struct row r = {0};
    int width[COLUMNS] = {0};
    size_t rows = 0;
    cddp_status st;

    for (int c = 0; c < COLUMNS; c++)
        (void)snprintf(r.cell[c], CELL, "%s", heads[c]);
    widen(width, &r);
    for (size_t i = 0; i < n; i++)
        if (is_shown(findings, n_findings, n, i)) {
            struct row one;

            fill(&one, nodes, n, i);
            widen(width, &one);
        }
    st = put_row(to, width, &r);
    for (size_t i = 0; i < n && rows < PREFLIGHT_ROWS && st == CDDP_OK; i++)
        if (is_shown(findings, n_findings, n, i)) {
            fill(&r, nodes, n, i);
            st = put_row(to, width, &r);
            rows++;
        }
    return st == CDDP_OK && rows < n ? cdi_buf_printf(to, "(%zu more node%s)\n", n - rows, n - rows == 1 ? "" : "s")
                                     : st;
}

cddp_status preflight_table(struct cdi_buf *to, const struct preflight_facts *nodes, size_t n,
                            const struct preflight_finding *findings, size_t n_findings, double seconds)
{
    size_t errors = 0;
    cddp_status st;

    for (size_t i = 0; i < n_findings; i++)
        errors += findings[i].error;
    st = put_rows(to, nodes, n, findings, n_findings);
    for (size_t i = 0; i < n_findings && st == CDDP_OK; i++)
        st = cdi_buf_printf(to, "%s: node %u (%s): %s\n", findings[i].error ? "error" : "warning", findings[i].node,
                            nodes[findings[i].node].known ? nodes[findings[i].node].host : "unknown host",
                            findings[i].text);
    if (st != CDDP_OK)
        return st;
    return cdi_buf_printf(to, "preflight: %zu node%s, %zu error%s, %zu warning%s, %.1f s\n", n, n == 1 ? "" : "s",
                          errors, errors == 1 ? "" : "s", n_findings - errors, n_findings - errors == 1 ? "" : "s",
                          seconds);
}
