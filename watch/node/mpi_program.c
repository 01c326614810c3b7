/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/node/mpi_program.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/log.h"
#include "launcher/process/procs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MPI_WORDS 16      /* of a command that are checked */
#define LOOK_FIRST_MS 500 /* after the start; then twice as long each time: an interpreter may load MPI late */
#define LOOK_PAUSE_MAX_MS 32000
#define SAYS \
    "but cddprun does not set up MPI: each worker will be rank 0 of 1; start it with mpirun, or with srun --mpi=pmix"

static const char *const launchers_set[] = {"PMI_RANK", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE",
                                            "OMPI_COMM_WORLD_RANK"};
#define N_SET (sizeof launchers_set / sizeof launchers_set[0])

/* Checks a program's file, or that of a wrapper's argument (numactl). */
static bool is_mpi_program(const char *path, char name[PROGRAM_NAME_MAX])
{
    struct program_facts facts;

    if (!program_read(path, &facts) || facts.mpi[0] == '\0' || facts.cddp)
        return false;
    memcpy(name, facts.mpi, sizeof facts.mpi);
    return true;
}

bool mpi_program_warn(const struct plan *p, const char *program)
{
    char *const *command = p->command, *found = NULL, name[PROGRAM_NAME_MAX];

    for (size_t i = 0; i < N_SET; i++)
        if (cdi_env_has(launchers_set[i]))
            return false;
    if (p->interpreter[0] != NULL || (p->n_procs == 1 && p->endpoint.n_nodes == 1))
        return false;
    if (is_mpi_program(program, name))
        found = command[0];
    for (int i = 1; found == NULL && i < MPI_WORDS && command[i] != NULL; i++)
        if (strchr(command[i], '/') != NULL && is_mpi_program(command[i], name))
            found = command[i];
    if (found != NULL)
        cdi_log(CDI_LOG_WARN, "AGENT-MPI", "'%.200s' is an MPI program (it needs %.60s), " SAYS, found, name);
    return found != NULL;
}

/* -------------------------------------------------------------------------------------------- started by a script */

/*
 * Reads /proc/PID/maps or environ. A process that MPI's own launcher has started, which the script may have run, counts
 * as one of libcddp: no warning.
 */
static void take_facts(struct program_facts *facts, pid_t pid, bool variables)
{
    CDI_AUTOFREE char *line = NULL;
    char path[64];
    size_t cap = 0;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, variables ? "environ" : "maps");
    f = fopen(path, "re");
    if (f == NULL)
        return;
    while (!facts->cddp && getdelim(&line, &cap, variables ? '\0' : '\n', f) > 0) {
        if (!variables)
            program_take_map(facts, line);
        for (size_t i = 0; variables && i < N_SET; i++)
            facts->cddp |=
                strncmp(line, launchers_set[i], strlen(launchers_set[i])) == 0 && line[strlen(launchers_set[i])] == '=';
    }
    (void)fclose(f);
}

/* A worker leads a process group, in which its descendants are, too. */
static void look_at(void *arg, pid_t pid)
{
    struct mpi_look *l = arg;
    struct program_facts facts = {.cddp = false};
    struct procs_stat stat;

    if (l->found != 0 || !procs_stat(pid, &stat) || stat.group != l->worker)
        return;
    take_facts(&facts, pid, false);
    if (facts.mpi[0] != '\0')
        take_facts(&facts, pid, true);
    if (facts.mpi[0] != '\0' && !facts.cddp) {
        l->found = pid;
        l->program = facts;
    }
}

static void look(uv_work_t *w)
{
    procs_each(look_at, w->data);
}

static void on_looked(uv_work_t *w, int status)
{
    struct mpi_look *l = w->data;

    l->busy = false;
    if (status == 0 && !l->ended && l->found != 0)
        cdi_log(CDI_LOG_WARN, "AGENT-MPI", "'%.200s' runs an MPI program (process %ld has loaded %.60s), " SAYS,
                l->plan->command[0], (long)l->found, l->program.mpi);
}

static int64_t look_later(struct mpi_look *l, int64_t now_ms)
{
    int64_t pause_ms = l->pause_ms;

    l->pause_ms *= 2;
    return pause_ms <= LOOK_PAUSE_MAX_MS ? now_ms + pause_ms : CDI_NEVER_MS;
}

int64_t mpi_look_again(struct mpi_look *l, int64_t now_ms)
{
    struct foreign_worker workers[FOREIGN_WORKERS_MAX];

    if (!l->busy && l->found != 0)
        return CDI_NEVER_MS;
    if (!l->busy && l->facts->foreign(l->facts->arg, workers, FOREIGN_WORKERS_MAX) > 0) {
        l->worker = workers[0].pid;
        l->busy = uv_queue_work(l->loop, &l->work, look, on_looked) == 0;
    }
    return look_later(l, now_ms);
}

int64_t mpi_look_start(struct mpi_look *l, int64_t now_ms)
{
    if (l->pause_ms != 0 || (l->plan->n_procs == 1 && l->plan->endpoint.n_nodes == 1))
        return CDI_NEVER_MS;
    l->pause_ms = LOOK_FIRST_MS;
    l->work.data = l;
    return look_later(l, now_ms);
}
