/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warns if several workers run an MPI program, which without MPI's own launcher runs as rank 0 of 1 in each of them,
 * unnoticed. Silent if such a launcher has set its variables, and for a program of libcddp, whose backend uses MPI.
 */
#ifndef MPI_PROGRAM_H
#define MPI_PROGRAM_H

#include "launcher/agent/torch_look.h"
#include "launcher/plan/plan.h"
#include "launcher/process/program.h"

/* Looks for MPI in the processes of the first worker: started by a script or a wrapper, or in an interpreter. */
struct mpi_look {
    uv_timer_t timer; /* initialised, and closed, by the owner */
    uv_work_t work;
    const struct plan *plan;
    size_t (*workers)(void *arg, struct torch_worker *out, size_t cap); /* as torch_look_options.workers */
    void *arg;
    uint64_t pause_ms;   /* until the next look */
    pid_t worker, found; /* found 0: none yet */
    struct program_facts facts;
};

/* Warns about the program's file, and that of a wrapper's argument (numactl). Returns whether it did. */
bool mpi_program_warn(const struct plan *p, const char *program);
/*
 * The workers have started: looks a few times in the first minute, until there is a warning. Does nothing after the
 * first call. timer, plan, workers and arg are set, and *l stays until the loop has ended.
 */
void mpi_look_start(struct mpi_look *l);

#endif
