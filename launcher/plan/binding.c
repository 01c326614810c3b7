/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/binding.h"

#include "common/buf.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------- sets of numbers ---- */

/* A growing list of different numbers; failed: out of memory. */
struct set {
    uint32_t *v;
    size_t n;
};

static bool set_has(const struct set *s, uint32_t value)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i] == value)
            return true;
    return false;
}

/* The values of one member of the processors of a node (-1: of all), each once, in the order of their first processor.
 */
static bool bind_collect(struct set *out, const struct bind_topology *t, size_t member, int64_t node)
{
    out->n = 0;
    out->v = calloc(t->n + 1, sizeof *out->v);
    for (size_t i = 0; out->v != NULL && i < t->n; i++) {
        uint32_t value;

        memcpy(&value, (const char *)&t->cpus[i] + member, sizeof value);
        if ((node < 0 || t->cpus[i].node == (uint32_t)node) && !set_has(out, value))
            out->v[out->n++] = value;
    }
    return out->v != NULL;
}

#define MEMBER(name) offsetof(struct bind_cpu, name)

static int bind_by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* ----------------------------------------------------------------------------------------------------- choosing ----
 */

/* Returns the processors whose `chosen` is true, such as "0-3,8". NULL: out of memory. */
static char *list_of(const struct bind_topology *t, const bool *chosen)
{
    struct cdi_buf text;
    cddp_status st = CDDP_OK;

    cdi_buf_init(&text, 0);
    for (size_t i = 0; i < t->n && st == CDDP_OK; i++) {
        size_t last = i;

        if (!chosen[i])
            continue;
        while (last + 1 < t->n && chosen[last + 1] && t->cpus[last + 1].cpu == t->cpus[last].cpu + 1)
            last++;
        st = cdi_buf_printf(&text, text.len > 0 ? ",%u" : "%u", t->cpus[i].cpu);
        if (st == CDDP_OK && last > i)
            st = cdi_buf_printf(&text, "-%u", t->cpus[last].cpu);
        i = last;
    }
    if (st == CDDP_OK)
        st = cdi_buf_append(&text, "", 1);
    if (st != CDDP_OK) {
        cdi_buf_release(&text);
        return NULL;
    }
    /* Nothing was consumed, so the text starts at the allocation. */
    return (char *)text.mem;
}

static void choose_node(const struct bind_topology *t, int node, bool *chosen)
{
    for (size_t i = 0; i < t->n; i++)
        chosen[i] = t->cpus[i].node == (uint32_t)node;
}

static void choose_socket(const struct bind_topology *t, int node, bool *chosen)
{
    uint32_t package = 0;

    for (size_t i = t->n; i-- > 0;)
        if (t->cpus[i].node == (uint32_t)node)
            package = t->cpus[i].package;
    for (size_t i = 0; i < t->n; i++)
        chosen[i] = t->cpus[i].package == package;
}

/* Cores from..to of the node's, in the order of their first processor. */
static void choose_cores(const struct bind_topology *t, const struct set *cores, size_t from, size_t to, bool *chosen)
{
    for (size_t i = 0; i < t->n; i++) {
        chosen[i] = false;
        for (size_t k = from; k < to; k++)
            chosen[i] |= t->cpus[i].core == cores->v[k];
    }
}

/* The worker's index among those of its node, and their number. */
struct peers {
    uint32_t index, count;
};

static struct peers count_peers(const struct bind_worker *all, uint32_t n, uint32_t me)
{
    struct peers p = {.index = 0};

    for (uint32_t i = 0; i < n; i++) {
        if (all[i].node != all[me].node)
            continue;
        p.index += i < me;
        p.count++;
    }
    return p;
}

static cddp_status choose_exclusive(const struct bind_topology *t, int node, struct peers p, bool *chosen,
                                    struct cdi_error *err)
{
    struct set cores;
    size_t each, more, from;
    cddp_status st = CDDP_OK;

    if (!bind_collect(&cores, t, MEMBER(core), node))
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    each = cores.n / p.count;
    more = cores.n % p.count; /* the first ones have one more */
    from = p.index * each + (p.index < more ? p.index : more);
    if (each == 0)
        st = cdi_fail(err, CDDP_E_INVALID,
                      "--numa_binding=exclusive: NUMA node %d has %zu usable cores for %u workers; start fewer "
                      "workers, or use --numa_binding=node",
                      node, cores.n, p.count);
    else
        choose_cores(t, &cores, from, from + each + (p.index < more), chosen);
    free(cores.v);
    return st;
}

static size_t count_cache(const struct bind_topology *t, int node, uint32_t cache)
{
    size_t n = 0;

    for (size_t i = 0; i < t->n; i++)
        n += t->cpus[i].node == (uint32_t)node && t->cpus[i].cache == cache;
    return n;
}

/* The caches with the most processors first, as in torchrun; among equals, the one with the first processor. */
static cddp_status choose_cache(const struct bind_topology *t, int node, struct peers p, bool *chosen,
                                struct cdi_error *err)
{
    struct set caches;
    uint32_t mine;

    if (!bind_collect(&caches, t, MEMBER(cache), node))
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (size_t i = 1; i < caches.n; i++) { /* insertion: few, and equals keep their order */
        uint32_t moved = caches.v[i];
        size_t k = i;

        for (; k > 0 && count_cache(t, node, caches.v[k - 1]) < count_cache(t, node, moved); k--)
            caches.v[k] = caches.v[k - 1];
        caches.v[k] = moved;
    }
    mine = caches.v[p.index % caches.n];
    for (size_t i = 0; i < t->n; i++)
        chosen[i] = t->cpus[i].node == (uint32_t)node && t->cpus[i].cache == mine;
    free(caches.v);
    return CDDP_OK;
}

static cddp_status bind_choose(enum bind_mode mode, const struct bind_topology *t, int node, struct peers p,
                               bool *chosen, struct cdi_error *err)
{
    switch (mode) {
    case BIND_AUTO:
    case BIND_NONE:
    case BIND_NODE:
        choose_node(t, node, chosen);
        return CDDP_OK;
    case BIND_SOCKET:
        choose_socket(t, node, chosen);
        return CDDP_OK;
    case BIND_EXCLUSIVE:
        return choose_exclusive(t, node, p, chosen, err);
    case BIND_CORE_COMPLEX:
        return choose_cache(t, node, p, chosen, err);
    }
    return CDDP_E_INVALID;
}

/* ------------------------------------------------------------------------------------------------------- making ----
 */

static bool all_known(const int *gpu_nodes, uint32_t n_gpus)
{
    for (uint32_t i = 0; i < n_gpus; i++)
        if (gpu_nodes[i] < 0)
            return false;
    return n_gpus > 0;
}

/* Sets every worker's node; *bound is false if no worker is to be bound. */
static cddp_status find_nodes(struct bind_worker *out, uint32_t n, enum bind_mode mode, const struct set *nodes,
                              const int *gpu_nodes, uint32_t n_gpus, bool *bound, struct cdi_error *err)
{
    bool by_gpu = all_known(gpu_nodes, n_gpus);

    *bound = mode != BIND_NONE && nodes->n > 0;
    if (mode == BIND_AUTO)
        *bound = nodes->n > 1 && (by_gpu || n >= nodes->n);
    for (uint32_t i = 0; i < n; i++) {
        out[i].gpu = n_gpus > 0 ? (int)(i % n_gpus) : -1;
        if (!*bound)
            continue;
        /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): i < n */
        out[i].node = by_gpu ? gpu_nodes[i % n_gpus] : (int)nodes->v[(size_t)i * nodes->n / n];
        if (set_has(nodes, (uint32_t)out[i].node))
            continue;
        if (mode != BIND_AUTO)
            return cdi_fail(err, CDDP_E_INVALID,
                            "--numa_binding: GPU %d is at NUMA node %d, but this job may not use any core there; give "
                            "the job cores of that node, or use --numa_binding=none",
                            out[i].gpu, out[i].node);
        out[i].node = -1;
    }
    return CDDP_OK;
}

cddp_status bind_make(struct bind_worker *out, uint32_t n, enum bind_mode mode, const struct bind_topology *t,
                      const int *gpu_nodes, uint32_t n_gpus, struct cdi_error *err)
{
    struct set nodes;
    bool bound = false, *chosen = calloc(t->n + 1, sizeof *chosen), have = bind_collect(&nodes, t, MEMBER(node), -1);
    cddp_status st = chosen == NULL || !have ? cdi_fail(err, CDDP_E_NOMEM, "out of memory") : CDDP_OK;

    for (uint32_t i = 0; i < n; i++)
        out[i] = (struct bind_worker){.node = -1, .gpu = -1};
    if (st == CDDP_OK) {
        qsort(nodes.v, nodes.n, sizeof *nodes.v, bind_by_value);
        st = find_nodes(out, n, mode, &nodes, gpu_nodes, n_gpus, &bound, err);
    }
    for (uint32_t i = 0; bound && i < n && st == CDDP_OK; i++) {
        if (out[i].node < 0)
            continue;
        st = bind_choose(mode, t, out[i].node, count_peers(out, n, i), chosen, err);
        if (st == CDDP_OK && (out[i].cpus = list_of(t, chosen)) == NULL)
            st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    }
    if (st != CDDP_OK)
        bind_free(out, n);
    free(nodes.v);
    free(chosen);
    return st;
}

void bind_free(struct bind_worker *w, uint32_t n)
{
    for (uint32_t i = 0; w != NULL && i < n; i++) {
        free(w[i].cpus);
        w[i].cpus = NULL;
    }
}

void bind_text(const struct bind_worker *w, uint32_t rank, char *buf, size_t cap)
{
    char gpu[48] = "";

    if (w->gpu >= 0)
        (void)snprintf(gpu, sizeof gpu, ", GPU %d%s%s", w->gpu, w->gpu_pci[0] != '\0' ? " at " : "", w->gpu_pci);
    if (w->cpus == NULL)
        (void)snprintf(buf, cap, "rank %u is not bound to cores", rank);
    else
        (void)snprintf(buf, cap, "rank %u runs on cores %s (NUMA node %d%s)", rank, w->cpus, w->node, gpu);
}
