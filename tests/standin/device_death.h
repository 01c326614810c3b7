/* SPDX-License-Identifier: Apache-2.0 */
/* For programs in which rank 1 ends itself while rank 0 is in the replay of a graph. */
#ifndef DEVICE_DEATH_H
#define DEVICE_DEATH_H

#include "must.h"

#include <signal.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

/* All ranks come here; rank 1 stays: it dies, or stops, when rank 0 is in the replay, or gets there. */
static inline void lose_rank_1(cddp_comm *comm, bool dies)
{
    const struct timespec moment = {.tv_nsec = 300000000};

    DO(cddp_barrier(comm));
    if (cddp_rank(comm) != 1)
        return;
    (void)nanosleep(&moment, NULL);
    if (dies)
        (void)raise(SIGKILL);
    for (;;)
        (void)pause();
}

/* Prints what the first call after the replay has reported. */
static inline void print_end(cddp_status st)
{
    fprintf(stderr, "rank 0: the replay ended: %s: %s\n", cddp_status_name(st), cddp_last_error());
}

/* Every later call reports the same. */
static inline void all_report_the_peer(const cddp_status st[4])
{
    MUST(st[0] == CDDP_E_PEER && st[1] == st[0] && st[2] == st[0] && st[3] == st[0], "statuses %d, %d, %d, %d\n",
         (int)st[0], (int)st[1], (int)st[2], (int)st[3]);
}

#endif
