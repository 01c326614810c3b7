/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which cores each worker may run on (--numa_binding). Pure: a topology, the GPUs' NUMA nodes and a mode in, lists of
 * cores out; topology.c reads the one, the shim sets the other.
 */
#ifndef BINDING_H
#define BINDING_H

#include "common/error.h"

#include <stddef.h>
#include <stdint.h>

/* In the order of --numa_binding's words. */
enum bind_mode { BIND_AUTO, BIND_NONE, BIND_NODE, BIND_SOCKET, BIND_EXCLUSIVE, BIND_CORE_COMPLEX };

/* A logical processor, and what it is part of; the numbers are the system's or any that tell one part from another. */
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
    int node;         /* the NUMA node that it belongs to; -1: none */
    int gpu;          /* its GPU, by CUDA's number; -1: none */
    char gpu_pci[16]; /* where that is, "0000:3b:00.0"; "": not known; bind_make() leaves it to the caller */
};

/*
 * A place for each of n workers, in out (n of them, overwritten). Worker i belongs to the NUMA node of GPU i modulo
 * n_gpus (gpu_nodes[k]: that of CUDA's device k, -1 not known); without GPUs, or where the node of one is not known,
 * the workers are dealt out to the nodes in blocks. node          all processors of its node                  socket
 * all of its node's socket exclusive     its share of the node's cores: the workers of a node have none in common
 *   core-complex  those that share one last-level cache of its node, in turn
 * BIND_AUTO is node, where there are several nodes and no fewer workers or a GPU for each; else nobody is bound.
 * CDDP_E_INVALID with a sentence: not enough cores, or a GPU at a node of which nothing may be used; then, and on
 * CDDP_E_NOMEM, nothing is left to be freed.
 */
cddp_status bind_make(struct bind_worker *out, uint32_t n, enum bind_mode mode, const struct bind_topology *t,
                      const int *gpu_nodes, uint32_t n_gpus, struct cdi_error *err);
/* What --report_bindings says of it: "rank 3 runs on cores 0-7 (NUMA node 0, GPU 1 at 0000:3b:00.0)". */
void bind_sentence(const struct bind_worker *w, uint32_t rank, char *buf, size_t cap);
void bind_free(struct bind_worker *w, uint32_t n);

/* How many NUMA nodes have processors in it? */
uint32_t bind_count_nodes(const struct bind_topology *t);

#endif
