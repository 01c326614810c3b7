/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 1 aborts the job while rank 0, which hosts the store, waits in cddp_finalize for the others to leave: that wait
 * ends soon, although rank 1 continues to run. Without a launcher, which would have its own store.
 */
#include "by_hand.h"

#include <time.h>

#define LIMIT_S 50
#define SOON_S 12 /* well under the job's timeout */

static int left[2]; /* a pipe that ends when rank 0 has gone */

static int be_a_rank(int rank)
{
    cddp_comm *comm;
    time_t began;
    char c;

    (void)alarm(LIMIT_S);
    (void)close(left[rank == 0 ? 0 : 1]);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    began = time(NULL);
    if (rank == 1) {
        (void)usleep(200000);
        cddp_abort(comm, "enough");
        CHECK(read(left[0], &c, 1) == 0);
    }
    (void)cddp_finalize(comm);
    CHECK(time(NULL) - began < SOON_S);
    return 0;
}

int main(void)
{
    CHECK(pipe(left) == 0);
    (void)setenv("CDDP_TIMEOUT", "30", 1);
    by_hand_start(free_port(), be_a_rank);
    (void)close(left[0]);
    (void)close(left[1]);
    return by_hand_wait();
}
