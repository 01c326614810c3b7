/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/mpi_program.h"

#include "common/env.h"
#include "common/log.h"
#include "launcher/process/program.h"

#include <string.h>

#define MPI_WORDS 16 /* of a command that are checked */

/* Checks a program's file, or that of a wrapper's argument (numactl). */
static bool is_mpi_program(const char *path, char name[PROGRAM_NAME_MAX])
{
    struct program_facts facts;

    if (!program_read(path, &facts) || facts.mpi[0] == '\0' || facts.cddp)
        return false;
    memcpy(name, facts.mpi, sizeof facts.mpi);
    return true;
}

void mpi_program_warn(const struct plan *p, const char *program)
{
    static const char *const known[] = {"PMI_RANK", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK"};
    char *const *command = p->command, *found = NULL, name[PROGRAM_NAME_MAX];

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (cdi_env_has(known[i]))
            return;
    if (p->interpreter[0] != NULL || (p->n_procs == 1 && p->endpoint.n_nodes == 1))
        return;
    if (is_mpi_program(program, name))
        found = command[0];
    for (int i = 1; found == NULL && i < MPI_WORDS && command[i] != NULL; i++)
        if (strchr(command[i], '/') != NULL && is_mpi_program(command[i], name))
            found = command[i];
    if (found != NULL)
        cdi_log(CDI_LOG_WARN, "AGENT-MPI",
                "'%.200s' is an MPI program (it needs %.60s), but cddprun does not set up MPI: each worker will be "
                "rank 0 of 1; start it with mpirun, or with srun --mpi=pmix",
                found, name);
}
