/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of several nodes as its environment describes it: Open MPI's mpirun, a Slurm step, PBS, LSF, Kubernetes, or the
 * user's own file of hosts (--rank_order). These values are the defaults of flags that are not given.
 */
#ifndef CLUSTER_H
#define CLUSTER_H

#include "common/buf.h"
#include "launcher/cli/options.h"

#define CLUSTER_NODES_MAX OPTIONS_MAX_NODES
#define CLUSTER_FIRST_PORT 20000
#define CLUSTER_N_PORTS 12000
#define CLUSTER_JOB_PORTS 4 /* tried in turn: another job may have the same port number */

struct cluster_env {
    const char *kind;   /* "Slurm step", for messages; NULL: nothing was found */
    const char *start;  /* the command that starts one cddprun on each node, for messages */
    bool in_step;       /* cddprun was started once on each node: the following members are set */
    bool by_file;       /* node_rank is from --rank_order, which overrides the environment */
    bool nodes_by_user; /* only --nnodes says how many nodes there are: n_nodes is 0 */
    int64_t n_nodes, node_rank;
    bool one_task_per_node;
    char nodes[128];      /* the list of nodes, cut */
    char first_node[256]; /* can host the rendezvous; "": not known */
    uint16_t port;        /* the first of the job's ports, below the ephemeral ones; 0: not known */
    char run_id[96];      /* "": not known */

    bool in_job; /* in a job, but started on its first node only: a batch script, or an interactive shell */
    int64_t job_nodes;
    const char *job_id;
};

/* The environment and files, which a test replaces. */
struct cluster_source {
    options_getenv env;
    void *arg;
    const char *host; /* this node's host name */
    /* Reads a whole file into out. CDDP_E_SYSTEM, CDDP_E_LIMIT. */
    cddp_status (*read_file)(const char *path, struct cdi_buf *out, struct cdi_error *err);
};

#endif
