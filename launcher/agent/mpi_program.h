/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MPI_PROGRAM_H
#define MPI_PROGRAM_H

#include "launcher/plan/plan.h"

/*
 * Warns if several workers are to run an MPI program, which without MPI's own launcher would run as rank 0 of 1 in each
 * of them, unnoticed. Silent if such a launcher has set its variables, and for Python, whatever the script imports.
 */
void mpi_program_warn(const struct plan *p, const char *program);

#endif
