/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/topology.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool topology_is_numa(const char *root)
{
    char path[512], line[256] = "";
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/sys/devices/system/node/has_cpu", root);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    if (fgets(line, sizeof line, f) == NULL)
        line[0] = '\0';
    (void)fclose(f);
    return strpbrk(line, "-,") != NULL;
}

#ifdef CDI_HWLOC

#include <dlfcn.h>
#include <hwloc.h>

#define LIBRARY "libhwloc.so.15" /* hwloc 2 */

/* hwloc's functions, by name; the header's inline functions would call them directly. */
struct hwloc {
    void *library;
    __typeof__(&hwloc_topology_init) init;
    __typeof__(&hwloc_topology_load) load;
    __typeof__(&hwloc_topology_destroy) destroy;
    __typeof__(&hwloc_topology_is_thissystem) is_thissystem;
    __typeof__(&hwloc_get_type_depth) type_depth;
    __typeof__(&hwloc_get_nbobjs_by_depth) count;
    __typeof__(&hwloc_get_obj_by_depth) get;
    __typeof__(&hwloc_bitmap_first) first;
};

static bool resolve(struct hwloc *h)
{
    static const char *const names[] = {
        "hwloc_topology_init",  "hwloc_topology_load",       "hwloc_topology_destroy", "hwloc_topology_is_thissystem",
        "hwloc_get_type_depth", "hwloc_get_nbobjs_by_depth", "hwloc_get_obj_by_depth", "hwloc_bitmap_first"};
    void *found[sizeof names / sizeof names[0]];

    _Static_assert(sizeof found == sizeof *h - offsetof(struct hwloc, init), "a name for each function");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((found[i] = dlsym(h->library, names[i])) == NULL)
            return false;
    memcpy((char *)h + offsetof(struct hwloc, init), found, sizeof found);
    return true;
}

static cddp_status open_hwloc(struct hwloc *h, struct cdi_error *err)
{
    h->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (h->library != NULL && resolve(h))
        return CDDP_OK;
    (void)cdi_fail(err, CDDP_E_NOT_FOUND, "cannot use hwloc: %.300s", dlerror());
    if (h->library != NULL)
        (void)dlclose(h->library);
    return CDDP_E_NOT_FOUND;
}

/* One processor's place. A processor without a separate cache or core counts as one. */
static struct bind_cpu topology_place(const struct hwloc *h, hwloc_obj_t pu)
{
    struct bind_cpu c = {.cpu = pu->os_index, .core = pu->logical_index, .cache = pu->logical_index};
    int node = pu->nodeset == NULL ? 0 : h->first(pu->nodeset);

    c.node = node < 0 ? 0 : (uint32_t)node;
    for (hwloc_obj_t o = pu->parent; o != NULL; o = o->parent) {
        if (o->type == HWLOC_OBJ_CORE)
            c.core = o->logical_index;
        if (o->type >= HWLOC_OBJ_L1CACHE && o->type <= HWLOC_OBJ_L5CACHE)
            c.cache = o->logical_index; /* the last one seen is the outermost */
        if (o->type == HWLOC_OBJ_PACKAGE)
            c.package = o->logical_index;
    }
    return c;
}

static int by_number(const void *a, const void *b)
{
    const struct bind_cpu *x = a, *y = b;

    return (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

/* May this process run there? True for processors beyond the size of the mask. */
static bool in_mask(const cpu_set_t *mask, uint32_t cpu)
{
    return cpu >= CPU_SETSIZE || CPU_ISSET(cpu, mask);
}

static cddp_status topology_fill(struct bind_topology *out, const struct hwloc *h, hwloc_topology_t t,
                                 struct cdi_error *err)
{
    int depth = h->type_depth(t, HWLOC_OBJ_PU);
    unsigned n = h->count(t, depth);
    bool ours = h->is_thissystem(t) != 0;
    cpu_set_t mask;

    out->n = 0;
    out->cpus = calloc(n + 1, sizeof *out->cpus);
    if (out->cpus == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    if (sched_getaffinity(0, sizeof mask, &mask) != 0)
        memset(&mask, 0xff, sizeof mask); /* more than CPU_SETSIZE processors */
    for (unsigned i = 0; i < n; i++) {
        hwloc_obj_t pu = h->get(t, depth, i);

        if (pu != NULL && (!ours || in_mask(&mask, pu->os_index)))
            out->cpus[out->n++] = topology_place(h, pu);
    }
    qsort(out->cpus, out->n, sizeof *out->cpus, by_number);
    return CDDP_OK;
}

cddp_status topology_read(struct bind_topology *out, struct cdi_error *err)
{
    struct hwloc h;
    hwloc_topology_t t = NULL;
    cddp_status st = open_hwloc(&h, err);

    if (st != CDDP_OK)
        return st;
    if (h.init(&t) != 0 || h.load(t) != 0)
        st = cdi_fail(err, CDDP_E_SYSTEM, "hwloc cannot read this node's topology");
    if (st == CDDP_OK)
        st = topology_fill(out, &h, t, err);
    if (t != NULL)
        h.destroy(t);
    (void)dlclose(h.library);
    return st;
}

#else

cddp_status topology_read(struct bind_topology *out, struct cdi_error *err)
{
    (void)out;
    return cdi_fail(err, CDDP_E_UNSUPPORTED, "this cddprun was built without hwloc and cannot bind workers to cores");
}

#endif
