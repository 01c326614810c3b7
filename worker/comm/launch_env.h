/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads this process's rank and world size from the environment, as its launcher has set them. In this order: RANK and
 * WORLD_SIZE (cddprun, torchrun, or set by hand), Open MPI's variables, those of PMI (MPICH's Hydra and its relatives),
 * and those of a Slurm step, but not of a mere batch script. Pure: a function returns the variables.
 */
#ifndef CDI_COMM_LAUNCH_ENV_H
#define CDI_COMM_LAUNCH_ENV_H

#include "common/error.h"

#include <stdbool.h>

#define CDI_RANKS_MAX 1048576

/* The place of a rank among those of its node and of all nodes; -1: unknown. */
struct cdi_node_layout {
    int local_rank, local_size;
    int node_rank, n_nodes;
};

struct cdi_launch {
    bool alone; /* nothing is set: a world of one, without a store */
    int rank, size;
    struct cdi_node_layout place;
    int restart_count;
    const char *host; /* of the job's store, as the function returned it; NULL if alone */
    int port;
    bool hosted; /* another process hosts the store; otherwise rank 0 does */
    bool given;  /* by the program, not by the environment */
};

/* Returns NULL if the variable is unset or empty, as cdi_env_str does. */
typedef const char *cdi_env_fn(const char *name);

/*
 * Reads the environment. CDDP_OK; CDDP_E_INVALID: a variable is missing or wrong; the message names it, its value, and
 * the remedy. Writes *out on success only.
 */
cddp_status cdi_launch_read(struct cdi_launch *out, cdi_env_fn *env, struct cdi_error *err);

/* The values that the program passes. */
struct cdi_given {
    int rank, size;
    const char *host; /* NULL: not given */
    int port;
    bool hosts; /* rank 0 hosts the store */
    bool by_id; /* an id holds the store's address; host and port are not given */
};

/*
 * Does the same with values from the program, and reads only TORCHELASTIC_RESTART_COUNT of the variables. The node
 * layout stays unknown. CDDP_E_INVALID: the message names the value that is missing, out of range, or given twice.
 */
cddp_status cdi_launch_given(struct cdi_launch *out, cdi_env_fn *env, const struct cdi_given *given,
                             struct cdi_error *err);

#endif
