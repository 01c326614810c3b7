/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences between versions of NCCL, as far as a program of the project can see them. CDDP_STANDIN_NCCL_VERSION
 * selects the version of the stand-in (22809: 2.28.9). Each difference names the place in NCCL's own source that it was
 * read from, as file:line of the tag vX.Y.Z-1.
 *
 * Behaviour of all versions (2.19.3 to 2.30.7), which needs no row here:
 * - A call during another one in progress is rejected with ncclInvalidArgument (init.cc:293 of v2.19.3,
 *   init.cc:422 of v2.30.7, ncclCommEnsureReady). Of an operation, and of ncclCommFinalize, that result becomes the
 * state of the communicator, until the thread that is still at work stores its own result over it (enqueue.cc:1598 of
 *   v2.19.3, enqueue.cc:3124 of v2.30.7; group.cc:629 of v2.28.9).
 * - An error that a thread, a group or an operation ends with is the state of each non-blocking communicator in it, and
 *   every later call returns it (group.cc:382 and group.cc:391 of v2.28.9, groupCleanup). Blocking communicators keep
 *   nothing.
 * - ncclCommSplit of a non-blocking communicator returns ncclSuccess while it is in progress (init.cc:2034 of v2.19.3,
 *   init.cc:3392 of v2.30.7: the result of ncclGroupEndInternal is checked, not returned). The thread stores the new
 *   communicator, or NULL for NCCL_SPLIT_NOCOLOR, at the address of the caller (init.cc:1420 of v2.19.3, init.cc:1959
 * of v2.30.7); also one whose creation has failed.
 * - ncclCommRegister, ncclCommDeregister and ncclCommWindowDeregister do not check the state, and do their work in
 *   the caller (register/register.cc:128 of v2.27.7, dev_runtime.cc:927 of v2.28.9).
 * - ncclCommFinalize waits for this rank's own work alone: its streams, and graphs that hold it (commDestroySync:
 *   init.cc:1795 of v2.19.3, init.cc:2740 of v2.30.7). It sends nothing that peers wait for.
 * - ncclCommDestroy waits for peers, also where the communicator does not block (group.cc:55 of v2.30.7, destroyFlag):
 *   it joins the proxy's service thread (init.cc:184 of v2.19.3, init.cc:285 of v2.30.7), which ends when no peer is
 *   connected to it any more (proxy.cc:1467 of v2.19.3, proxy.cc:1769 of v2.30.7). Peers of the same host are: each
 *   connects to the others' proxies when it maps their memory (transport/p2p.cc:240 of v2.19.3; proxy.cc:1158 of
 *   v2.23.4, proxy.cc:1286 of v2.30.7), and ends that where it stops its own (ncclProxyStop), or with its process. Over
 *   the network a rank uses its own proxy alone (transport/net.cc:227 of v2.19.3, transport/net.cc:368 of v2.30.7). So
 *   two ranks of one host that destroy two communicators in opposite orders wait for each other for ever.
 * - A communicator of one rank does its operations in the caller (enqueue.cc:1549 of v2.19.3, enqueue.cc:2569 of
 *   v2.28.9).
 */
#ifndef SI_VERSION_H
#define SI_VERSION_H

#include <stdbool.h>

struct si_version {
    int code; /* 23007 */
    /* ncclCommWindowRegister itself returns "in progress". */
    bool window_tells;
    /* Each group of a non-blocking communicator is launched by a separate thread; before, only a group with a first
     * message to a rank. */
    bool thread_per_group;
    /* A collective, or a message outside a group, returns "in progress" itself. */
    bool collective_tells, message_tells;
    /* The window is stored before the call returns, not by the thread. */
    bool window_at_once;
    /* If memory cannot be symmetric, the window is a registration of this rank alone, not NULL. */
    bool window_without_symmetry;
    /* Symmetric kernels check the abort flag while they wait for peers. */
    bool symmetric_aborts;
    /* ncclAvg of floats in symmetric windows is made after the sum. */
    bool mean_after_sum;
    /* A rank stops its proxy, which lets its peers' go, in ncclCommFinalize, not in ncclCommDestroy. */
    bool stops_in_finalize;
    /* ncclCommAbort waits for the peers' proxies like ncclCommDestroy, for this long. 0: it does not; -1: for ever. */
    int abort_waits_ms;
    /* A launch that is not captured queries an event if a graph holds the communicator. */
    bool queries_event;
    bool has_timeout; /* ncclTimeout */
    bool has_float8;  /* ncclFloat8e4m3, ncclFloat8e5m2 */
};

/* Pure. */
struct si_version si_version_of(int code);
/* Returns the version in the environment now; if there is none, that of nccl.h. */
struct si_version si_version(void);
int si_version_code(void);

#endif
