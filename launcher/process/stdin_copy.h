/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --stdin=all: a thread copies this process's stdin to every worker, through a pipe for each. It reads on until
 * STDIN_COPY_MAX bytes wait for the slowest one: then that one holds up the others, as with tee, and a warning names
 * it. (Open MPI's runtime keeps any number of bytes, srun one MiB.) What a worker has been given is lost to the workers
 * of a later round.
 */
#ifndef STDIN_COPY_H
#define STDIN_COPY_H

#include "common/error.h"

#include <stdint.h>

/* Bytes that wait for a worker at most, beside those in its pipe. */
#define STDIN_COPY_MAX (16u << 20)

struct stdin_copy;

/*
 * Starts the thread, for n workers; it copies while all workers of a round have had a stdin_copy_pipe(), so that they
 * get the same bytes.
 * *out is written on success only. CDDP_E_SYSTEM, CDDP_E_NOMEM.
 */
cddp_status stdin_copy_start(struct stdin_copy **out, uint32_t n, struct cdi_error *err);

/*
 * Returns the stdin of a new worker in this place, the caller's to close, or -1 and errno. Place 0 begins a round.
 * Never blocks for long.
 */
int stdin_copy_pipe(struct stdin_copy *c, uint32_t place);
/* At the end of the process: frees c if stdin has ended. Otherwise the thread may hang in read(2), and keeps it. */
void stdin_copy_end(struct stdin_copy *c);

#endif
