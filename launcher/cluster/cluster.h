/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the environment says about a job of several nodes, whoever runs it: Open MPI's mpirun, a Slurm step, PBS, LSF;
 * and the user's own file of hosts (--rank_order). What is read here fills in for flags that are not given.
 */
#ifndef CLUSTER_H
#define CLUSTER_H

#include "common/buf.h"
#include "launcher/cli/options.h"

#define CLUSTER_NODES_MAX OPTIONS_MAX_NODES
#define CLUSTER_FIRST_PORT 20000
#define CLUSTER_N_PORTS 12000
#define CLUSTER_JOB_PORTS 4 /* that a job may use, one after another: a port of its number may be another job's */

struct cluster_env {
    const char *kind;  /* "Slurm step", for sentences; NULL: nothing was found */
    const char *start; /* how one cddprun is started on each node, for sentences */
    bool in_step;      /* we were started once on each node: what follows holds */
    bool by_file;      /* node_rank comes from --rank_order, and counts more than the environment's */
    int64_t n_nodes, node_rank;
    bool one_task_per_node;
    char nodes[128];      /* the nodes as their list has them, cut */
    char first_node[256]; /* where they can meet; "": not known */
    uint16_t port;        /* the first of the job's ports, below those that the kernel gives to clients; 0: not known */
    char run_id[96];      /* "": not known */

    bool in_job; /* in a job, but started on its first node only: a batch script, or an interactive shell */
    int64_t job_nodes;
    const char *job_id;
};

/* Where it is read from; a test has its own. */
struct cluster_source {
    options_getenv env;
    void *arg;
    const char *host; /* this machine's name */
    /* A whole file into out. CDDP_E_SYSTEM, CDDP_E_LIMIT. */
    cddp_status (*read_file)(const char *path, struct cdi_buf *out, struct cdi_error *err);
};

/*
 * Without a job all is zero. CDDP_E_INVALID: variables or a file that make no sense, with a sentence that names one.
 * Pure but for read_file; the strings stay the environment's.
 */
cddp_status cluster_read(struct cluster_env *out, const struct cluster_source *from, struct cdi_error *err);

/*
 * The place of `host` in a list of hosts, one a line (what follows the name is not read, `#` begins a comment): s has
 * node_rank, n_nodes and first_node from it then. Without its domain a name stands for the same host. from names the
 * list for sentences. CDDP_E_NOT_FOUND: host is not in it. CDDP_E_INVALID: no host is, or one is twice.
 */
cddp_status cluster_order(struct cluster_env *s, const char *text, const char *host, const char *from,
                          struct cdi_error *err);

/* The first of CLUSTER_JOB_PORTS ports for a job that has a name; the same on all its nodes. */
uint16_t cluster_port(const char *job);

#endif
