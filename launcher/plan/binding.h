/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cores that each worker may run on (--numa_binding). Pure: a topology, the GPUs' NUMA nodes and a mode in, lists
 * of cores out. topology.c reads the topology, and the shim sets the cores.
 */
#ifndef BINDING_H
#define BINDING_H

#include "common/error.h"

#include <stddef.h>
#include <stdint.h>

/* In the order of --numa_binding's words. */
enum bind_mode { BIND_AUTO, BIND_NONE, BIND_NODE, BIND_SOCKET, BIND_EXCLUSIVE, BIND_CORE_COMPLEX };

/* A logical processor and its core, cache, node and package; the numbers only distinguish them. */
struct bind_cpu {
    uint32_t cpu;
    uint32_t core, cache, node, package;
};

/* The processors that this process may use, by number. */
struct bind_topology {
    struct bind_cpu *cpus; /* malloc'd */
    size_t n;
};

struct bind_worker {
    char *cpus;       /* "0-7,16-23", malloc'd; NULL: not bound */
    int node;         /* its NUMA node; -1: none */
    int gpu;          /* its GPU, by CUDA's number; -1: none */
    char gpu_pci[16]; /* the GPU's PCI address, "0000:3b:00.0"; "": not known; set by the caller of bind_make() */
};

/*
 * Chooses the cores of each of n workers, and overwrites out (n of them). Worker i belongs to the NUMA node of GPU i
 * modulo n_gpus (gpu_nodes[k]: the node of CUDA's device k, -1 not known). Without GPUs, or if the node of one is not
 * known, blocks of workers are assigned to the nodes in turn. The modes:
 *
 * - node: all processors of the worker's node;
 * - socket: all processors of the node's socket;
 * - exclusive: the worker's share of the node's cores; workers of a node have no core in common;
 * - core-complex: the processors that share one last-level cache of the node, in turn;
 * - auto: node, if there are several nodes and at least as many workers or a GPU for each; otherwise none is bound.
 *
 * CDDP_E_INVALID with an error message: not enough cores, or a GPU at a node of which no core may be used. After it and
 * CDDP_E_NOMEM nothing remains to be freed.
 */
cddp_status bind_make(struct bind_worker *out, uint32_t n, enum bind_mode mode, const struct bind_topology *t,
                      const int *gpu_nodes, uint32_t n_gpus, struct cdi_error *err);
/* Writes the line of --report_bindings: "rank 3 runs on cores 0-7 (NUMA node 0, GPU 1 at 0000:3b:00.0)". */
void bind_text(const struct bind_worker *w, uint32_t rank, char *buf, size_t cap);
void bind_free(struct bind_worker *w, uint32_t n);

#endif
