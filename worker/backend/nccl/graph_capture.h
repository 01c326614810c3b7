/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives that are part of a CUDA graph of the program's. While a thread is between capture_enter and
 * capture_leave, its operations and element functions go on a stream that is used for nothing else, and which the
 * capture has taken in by an event; a lead by an event joins it again. So nothing of a capture is on the communication
 * stream, which other threads use and ask meanwhile.
 *
 * A replay makes no call of libcddp's. What the host must know of it the graph tells: before and behind each group of
 * collectives a small kernel counts, in pinned memory, how often they have begun and ended. A write of a value by the
 * stream, as uncaptured operations use it, would write the same value each time.
 */
#ifndef CDI_NCCL_GRAPH_CAPTURE_H
#define CDI_NCCL_GRAPH_CAPTURE_H

#include "worker/backend/backend.h"
#include "worker/backend/nccl/library.h"

#include <stdatomic.h>

#define CDI_HELD_MAX 16 /* as CDI_GROUP_MAX */

struct cdi_replay_counts;  /* memory that graphs count in */
struct cdi_captured_group; /* collectives of a graph that start together */

struct cdi_capture {
    CUevent mark, tail;
    struct cdi_coll held[CDI_HELD_MAX]; /* that start together with the one that comes */
    size_t n_held;
    struct cdi_replay_counts *counts;
    size_t room;
    /* With the lock `page`: */
    struct cdi_captured_group **group; /* in the order of the program */
    atomic_size_t n_groups;
    const struct cdi_captured_group *last;     /* that was seen to have begun */
    const struct cdi_captured_group *standing; /* a replay stands in it; NULL: in none */
    uint64_t begun, ended;                     /* groups, in all replays */
};

#endif
