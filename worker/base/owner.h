/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that owns a communicator or a store's connection. A child of fork() inherits the memory, but not the
 * threads, and anything that it wrote to shared memory or sockets would count as its parent's. So each public function
 * checks the owner first.
 *
 * One word is 0 in every process that has not joined or opened anything itself. The kernel wipes its page at a fork,
 * also at one that runs no handlers, such as clone(2); a fork handler does so if the kernel cannot. A child of vfork()
 * shares the word: only functions outside of training, which can afford a system call, detect it.
 */
#ifndef CDI_BASE_OWNER_H
#define CDI_BASE_OWNER_H

#include "common/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cdi_owner {
    uint64_t process; /* the number of the process in a line of forks; 0: no process */
    pid_t pid;
    int rank; /* for the message; -1: it has none */
};

/* The number of the current process, or 0. */
extern _Atomic uint64_t *cdi_owner_process;

/* Returns this process as an owner. Any thread. */
struct cdi_owner cdi_owner_here(int rank);
/* Returns CDDP_E_STATE: the function was called in another process than the owner, to which `what` belongs. */
cddp_status cdi_owner_refuse(const struct cdi_owner *o, const char *function, const char *what, struct cdi_error *err);

/* Returns whether this process is the owner. Costs one load: for functions that are called often. */
static inline bool cdi_owner_is_here(const struct cdi_owner *o)
{
    return atomic_load_explicit(cdi_owner_process, memory_order_relaxed) == o->process;
}

/* Does the same, and also returns false in a child of vfork(), at the price of a system call. */
bool cdi_owner_is_surely_here(const struct cdi_owner *o);

#endif
