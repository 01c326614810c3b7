/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank of which world this process is, as whoever started it says in the environment. In this order: RANK and
 * WORLD_SIZE (cddprun, torchrun, or set by hand), Open MPI's variables, those of PMI (MPICH's Hydra and its relatives),
 * a Slurm step's (never those of a mere batch script). Pure: the variables come through a function.
 */
#ifndef CDI_COMM_LAUNCH_ENV_H
#define CDI_COMM_LAUNCH_ENV_H

#include "common/error.h"

#include <stdbool.h>

#define CDI_RANKS_MAX 1048576

/* Where a rank is among those of its host; -1: unknown. */
struct cdi_node_layout {
    int local_rank, local_size;
    int node_rank, n_nodes;
};

struct cdi_launch {
    bool alone; /* nobody says anything: a world of one, without a store */
    int rank, size;
    struct cdi_node_layout place;
    int restart_count;
    const char *host; /* where the job's store is; as the function gave it; NULL if alone */
    int port;
    bool hosted; /* somebody hosts the store; else rank 0 has to */
    bool given;  /* by the program, and not by the environment */
};

/* NULL where the variable is unset or empty, as cdi_env_str. */
typedef const char *cdi_env_fn(const char *name);

/*
 * CDDP_OK; CDDP_E_INVALID: a variable is missing or wrong; the sentence names it, its value, and what to do. *out is
 * written on success only.
 */
cddp_status cdi_launch_read(struct cdi_launch *out, cdi_env_fn *env, struct cdi_error *err);

/* What the program says itself. */
struct cdi_given {
    int rank, size;
    const char *host; /* NULL: not said */
    int port;
    bool hosts; /* rank 0 is to host the store */
    bool by_id; /* where the store is another one knows: host and port are not said */
};

/*
 * The same, where the program says it; of the variables only TORCHELASTIC_RESTART_COUNT is read. Which ranks share a
 * host is not known. CDDP_E_INVALID: the message names what is missing, out of range, or said twice.
 */
cddp_status cdi_launch_take(struct cdi_launch *out, cdi_env_fn *env, const struct cdi_given *given,
                            struct cdi_error *err);

#endif
