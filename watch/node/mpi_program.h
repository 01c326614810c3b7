/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warns if several workers run an MPI program, which without MPI's own launcher runs as rank 0 of 1 in each of them,
 * unnoticed. Silent if such a launcher has set its variables, and for a program of libcddp, whose backend uses MPI.
 */
#ifndef WATCH_NODE_MPI_PROGRAM_H
#define WATCH_NODE_MPI_PROGRAM_H

#include "launcher/agent/facts.h"
#include "launcher/plan/plan.h"
#include "launcher/process/program.h"

#include <uv.h>

/* Looks for MPI in the processes of the first worker: started by a script or a wrapper, or in an interpreter. */
struct mpi_look {
    uv_work_t work;
    uv_loop_t *loop;
    const struct plan *plan;
    const struct facts *facts;
    int64_t pause_ms;             /* until the next look */
    bool busy;                    /* a thread looks */
    bool ended;                   /* set by the owner: no warning any more */
    pid_t worker, found;          /* found 0: none yet */
    struct program_facts program; /* of the process that was found */
};

/* Warns about the program's file, and that of a wrapper's argument (numactl). Returns whether it did. */
bool mpi_program_warn(const struct plan *p, const char *program);
/*
 * The workers start: mpi_look_again() is to be called a few times in the first minute, until there is a warning. Both
 * return when; CDI_NEVER_MS: never, as after a second start. loop, plan and facts are set, and *l stays until the loop
 * has ended.
 */
int64_t mpi_look_start(struct mpi_look *l, int64_t now_ms);
int64_t mpi_look_again(struct mpi_look *l, int64_t now_ms);

#endif
