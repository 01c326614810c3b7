/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cluster/detect.h"

#include "launcher/cluster/readers.h"
#include "launcher/cluster/values.h"

/*
 * In this order: mpirun starts its daemons by srun or pbsdsh, and their variables are in our environment, too. All of
 * them also run in pods of Kubernetes.
 */
static const struct {
    const char *variable; /* set in every job of this kind */
    cddp_status (*read)(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err);
} readers[] = {
    {"OMPI_COMM_WORLD_SIZE", openmpi_read},
    {"SLURM_JOB_ID", slurm_read},
    {"SLURM_STEP_ID", slurm_read},
    {"PBS_JOBID", pbs_read},
    {"LSB_JOBID", lsf_read},
    {"JOB_COMPLETION_INDEX", kubernetes_read},
};

cddp_status cluster_read(struct cluster_env *out, const struct cluster_source *from, struct cdi_error *err)
{
    struct cluster_env s = {.kind = NULL};
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
        if (cluster_value(from, readers[i].variable) != NULL) {
            st = readers[i].read(&s, from, err);
            break;
        }
    }
    if (st == CDDP_OK)
        *out = s;
    return st;
}
