/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/judge.h"

#include "common/cleanup.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct findings {
    struct preflight_finding *v;
    size_t n, cap;
};

static void finding(struct findings *f, size_t node, bool error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void finding(struct findings *f, size_t node, bool error, const char *fmt, ...)
{
    va_list args;

    if (f->n == f->cap)
        return;
    f->v[f->n].node = (uint32_t)node;
    f->v[f->n].error = error;
    va_start(args, fmt);
    (void)vsnprintf(f->v[f->n].text, sizeof f->v[f->n].text, fmt, args);
    va_end(args);
    f->n++;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* ----------------------------------------------------------------------------------------------------- medians ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The upper one of two in the middle, so that of two nodes the worse one differs. NaN-free; n > 0. Sorts v. */
static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static double clock_of(const struct preflight_facts *f)
{
    return (double)f->clock_us;
}

static double memory_of(const struct preflight_facts *f)
{
    return (double)f->memory;
}

static double files_of(const struct preflight_facts *f)
{
    return (double)f->files;
}

static double gpus_of(const struct preflight_facts *f)
{
    return f->gpus;
}

static double median_of(const struct preflight_facts *nodes, size_t n, double (*value)(const struct preflight_facts *),
                        double *room)
{
    size_t m = 0;

    for (size_t i = 0; i < n; i++)
        if (nodes[i].known && (value != clock_of || nodes[i].clock_known))
            room[m++] = value(&nodes[i]);
    return m == 0 ? 0 : median(room, m);
}

double preflight_slow_below(const struct preflight_facts *nodes, size_t n)
{
    CDI_AUTOFREE double *rates = n == 0 ? NULL : calloc(n, PREFLIGHT_LINKS_MAX * sizeof *rates);
    size_t m = 0;

    for (size_t i = 0; i < n && rates != NULL; i++)
        for (size_t k = 0; k < nodes[i].n_links; k++)
            if (nodes[i].link[k].mib_s > 0)
                rates[m++] = nodes[i].link[k].mib_s;
    return m < 2 ? 0 : median(rates, m) / PREFLIGHT_SLOW;
}

/* ---------------------------------------------------------------------------------------------- one node alone ---- */

static void judge_resources(const struct preflight_facts *f, size_t i, struct findings *out)
{
    if (f->shm > 0 && f->shm_free < PREFLIGHT_SHM_MIN)
        finding(out, i, true, "/dev/shm is full (%.1f of %.0f MiB free); remove files from it, or mount it larger",
                mib(f->shm_free), mib(f->shm));
    for (size_t k = 0; k < f->n_disks; k++) {
        const struct preflight_disk *d = &f->disk[k];

        if (d->free < PREFLIGHT_DISK_MIN)
            finding(out, i, true, "the disk of %s is full (%.1f of %.0f MiB free); remove files from it", d->path,
                    mib(d->free), mib(d->total));
        else if (d->free_files == 0)
            finding(out, i, true, "the disk of %s has no inode left, so no file can be created; remove files from it",
                    d->path);
    }
    if (f->files > 0 && f->files < PREFLIGHT_FILES_MIN)
        finding(out, i, true, "a worker may open only %" PRIu64 " files; raise the limit (ulimit -n)", f->files);
    if (f->gpus_bad > 0)
        finding(out, i, true, "%u of %u GPUs have memory errors that could not be corrected; reset or replace them",
                f->gpus_bad, f->gpus);
    if (f->gpus_slow > 0)
        finding(out, i, false, "%u of %u GPUs are slowed down by heat or by their power supply", f->gpus_slow, f->gpus);
}

struct middle {
    double clock_us, memory, files, gpus;
};

static void judge_beside(const struct preflight_facts *f, size_t i, const struct middle *m, struct findings *out)
{
    double off = clock_of(f) - m->clock_us;

    if (f->clock_known && (off > PREFLIGHT_CLOCK_US || off < -PREFLIGHT_CLOCK_US))
        finding(out, i, false, "its clock is %.1f s %s; synchronise it (NTP)", (off < 0 ? -off : off) / 1e6,
                off < 0 ? "slow" : "fast");
    if (f->files >= PREFLIGHT_FILES_MIN && (double)f->files < m->files / 2)
        finding(out, i, false, "a worker may open %" PRIu64 " files, elsewhere %.0f; raise the limit (ulimit -n)",
                f->files, m->files);
    if ((double)f->memory < m->memory * 0.9)
        finding(out, i, false, "it has %.1f GiB of memory, the others %.1f GiB", mib(f->memory) / 1024,
                m->memory / (1 << 30));
    if (f->memory_free < f->memory / 20)
        finding(out, i, false, "only %.1f of %.1f GiB of memory are free; look for processes of other jobs",
                mib(f->memory_free) / 1024, mib(f->memory) / 1024);
    if (f->gpus < m->gpus)
        finding(out, i, true, "it has %u GPUs, the others %.0f; look for a GPU that the driver has lost (nvidia-smi)",
                f->gpus, m->gpus);
}

/* ------------------------------------------------------------------------------------------------------- links ---- */

static bool is_bad(const struct preflight_link *l, double slow_below)
{
    return slow_below > 0 ? l->mib_s > 0 && l->mib_s < slow_below : !l->reached;
}

/* Counts the bad links at each node that are not explained yet; returns their number. */
static size_t count_ends(const struct preflight_facts *nodes, size_t n, double slow_below, const bool *explained,
                         uint32_t *ends)
{
    size_t bad = 0;

    for (size_t i = 0; i < n; i++)
        ends[i] = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < nodes[i].n_links; k++) {
            const struct preflight_link *l = &nodes[i].link[k];

            if (l->to >= n || explained[i] || explained[l->to] || !is_bad(l, slow_below))
                continue;
            ends[i]++;
            ends[l->to]++;
            bad++;
        }
    return bad;
}

/* Returns the slowest bad link at this node, as an example. */
static const struct preflight_link *example(const struct preflight_facts *nodes, size_t n, double slow_below,
                                            size_t node, const bool *explained, size_t *from)
{
    const struct preflight_link *found = NULL;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < nodes[i].n_links; k++) {
            const struct preflight_link *l = &nodes[i].link[k];

            if ((i != node && l->to != node) || l->to >= n || explained[i] || explained[l->to] ||
                !is_bad(l, slow_below) || (found != NULL && l->mib_s >= found->mib_s))
                continue;
            found = l;
            *from = i;
        }
    return found;
}

/*
 * Names the ends that explain all bad links with few names: again and again the node with the most of them. Where two
 * nodes have the same number, such as the ends of a single bad link, it is the one that was to be reached.
 */
static void judge_links(const struct preflight_facts *nodes, size_t n, double slow_below, struct findings *out)
{
    CDI_AUTOFREE uint32_t *ends = n == 0 ? NULL : calloc(n, sizeof *ends);
    CDI_AUTOFREE bool *explained = n == 0 ? NULL : calloc(n, sizeof *explained);

    for (size_t i = 0; i < n && explained != NULL; i++)
        explained[i] = !nodes[i].known; /* it has a finding already */
    while (ends != NULL && explained != NULL && count_ends(nodes, n, slow_below, explained, ends) > 0) {
        size_t worst = 0, from = 0;
        const struct preflight_link *l;
        char more[48] = "";

        for (size_t i = 1; i < n; i++)
            if (ends[i] > ends[worst])
                worst = i;
        l = example(nodes, n, slow_below, worst, explained, &from);
        if (slow_below == 0 && ends[worst] == 1)
            worst = l->to;
        if (ends[worst] > 1)
            (void)snprintf(more, sizeof more, " (and %u more of its links)", ends[worst] - 1);
        if (slow_below > 0)
            finding(out, worst, false, "the link from %s to %s is slow: %.4g MiB/s, the median is %.4g%s",
                    nodes[from].host, nodes[l->to].host, l->mib_s, slow_below * PREFLIGHT_SLOW, more);
        else if (worst == l->to)
            finding(out, worst, true, "%s cannot reach its data ports: %s%s; open them in the firewall (--data_ports)",
                    nodes[from].host, l->why, more);
        else
            finding(out, worst, true, "it cannot reach the data ports of %s: %s%s; look at its network and its routes",
                    nodes[l->to].host, l->why, more);
        explained[worst] = true;
    }
}

/* ------------------------------------------------------------------------------------------------------ public ---- */

static int by_node(const void *a, const void *b)
{
    const struct preflight_finding *x = a, *y = b;

    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (int)y->error - (int)x->error;
}

size_t preflight_judge(const struct preflight_facts *nodes, size_t n, struct preflight_finding *out, size_t cap)
{
    struct findings found = {.v = out, .cap = cap};
    CDI_AUTOFREE double *room = NULL;
    struct middle m = {0};

    if (n == 0)
        return 0;
    room = calloc(n, sizeof *room);
    if (room != NULL) {
        m.clock_us = median_of(nodes, n, clock_of, room);
        m.memory = median_of(nodes, n, memory_of, room);
        m.files = median_of(nodes, n, files_of, room);
        m.gpus = median_of(nodes, n, gpus_of, room);
    }
    for (size_t i = 0; i < n; i++) {
        if (!nodes[i].known) {
            finding(&found, i, true, "it has not reported in time");
            continue;
        }
        judge_resources(&nodes[i], i, &found);
        if (room != NULL)
            judge_beside(&nodes[i], i, &m, &found);
    }
    judge_links(nodes, n, 0, &found);
    if (preflight_slow_below(nodes, n) > 0)
        judge_links(nodes, n, preflight_slow_below(nodes, n), &found);
    qsort(out, found.n, sizeof *out, by_node);
    return found.n;
}
