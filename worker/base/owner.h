/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process owns a communicator or a store's connection. A child of fork() inherits the memory, but not the
 * threads, and what it wrote into shared memory or sockets would count as its parent's. So each public function asks
 * first.
 *
 * One word is 0 in every process that did not join anything itself: the kernel wipes its page at a fork (also at one
 * that runs no handlers, such as clone(2)), and a fork handler does it where the kernel cannot. A child of vfork()
 * shares the word; only functions that take no part in training, and so have time to ask the kernel, can tell it apart.
 */
#ifndef CDI_BASE_OWNER_H
#define CDI_BASE_OWNER_H

#include "common/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cdi_owner {
    uint64_t life; /* which of the processes in a line of forks; 0: nobody */
    pid_t pid;
    int rank; /* for the message; -1: it has none */
};

/* The current process's life, or 0. */
extern _Atomic uint64_t *cdi_owner_life;

/* This process is the owner. Any thread. */
struct cdi_owner cdi_owner_here(int rank);
/* CDDP_E_STATE and a message: the function was called in another process, and `what` belongs to its owner. */
cddp_status cdi_owner_refuse(const struct cdi_owner *o, const char *function, const char *what, struct cdi_error *err);

/* Costs one load: for functions that are called often. */
static inline bool cdi_owner_is_here(const struct cdi_owner *o)
{
    return atomic_load_explicit(cdi_owner_life, memory_order_relaxed) == o->life;
}

/* Also false in a child of vfork(), at the price of a system call. */
bool cdi_owner_is_surely_here(const struct cdi_owner *o);

#endif
