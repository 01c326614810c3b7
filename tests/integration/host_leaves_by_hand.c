/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0, which hosts the store, leaves the job, and rank 1 goes on. The next collective of rank 1 fails soon, although
 * rank 0 still waits for it in cddp_finalize. Without a launcher, which would have its own store.
 */
#include "by_hand.h"

#include <string.h>
#include <time.h>

#define LIMIT_S 50
#define SOON_S 12 /* well under the job's timeout */

static int be_a_rank(int rank)
{
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm;
    time_t began;
    float x = 1;

    (void)alarm(LIMIT_S);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_all_reduce(comm, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK && x == 2);
    began = time(NULL);
    if (rank == 1) {
        CHECK(cddp_all_reduce(comm, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_E_PEER);
        cddp_last_error_info(&info);
        CHECK(info.rank == 0 && strstr(info.message, "rank 0 has left the job") != NULL);
    }
    CHECK(cddp_finalize(comm) == (rank == 0 ? CDDP_OK : CDDP_E_PEER));
    CHECK(time(NULL) - began < SOON_S);
    return 0;
}

int main(void)
{
    (void)setenv("CDDP_TIMEOUT", "30", 1);
    by_hand_start(free_port(), be_a_rank);
    return by_hand_wait();
}
