/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of several nodes as its environment describes it: Open MPI's mpirun, a Slurm step, PBS, LSF, or the user's own
 * file of hosts (--rank_order). These values are the defaults of flags that are not given.
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

#endif
