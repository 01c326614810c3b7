/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker's process could not do before its program ran. The process writes it, and the errno in the lower bits,
 * into the pipe to its agent, the only way that is left to it.
 */
#ifndef EXEC_FAILURE_H
#define EXEC_FAILURE_H

#define EXEC_ERRNO_BITS 16
#define EXEC_ERRNO_MASK ((1 << EXEC_ERRNO_BITS) - 1)

enum exec_failure {
    EXEC_PROGRAM, /* exec of the program */
    EXEC_CPUS,    /* binding to its cores */
    EXEC_SHIM,    /* exec of the shim */
    EXEC_GROUP,   /* a process group or session for it */
    EXEC_FILES,   /* putting a descriptor in its place */
    EXEC_ARGS,    /* the shim's command line */
    EXEC_AGENT,   /* the agent was not its parent any more */
};

#endif
