/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children of ranks that outlive their parents: no other process waits for them. Without a launcher, which would
 * tell the others of a death.
 *
 *     fork_lives_on MODE
 *
 * "rank-0", "rank-1": that rank leaves without a goodbye; the other one's cddp_finalize ends soon.
 * "port": both say goodbye; then MASTER_PORT is free for the next job.
 */
#include "by_hand.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#define LIMIT_S 50
#define FREE_S 30 /* less than the children live */
#define SOON_S 10 /* less than the children's run time and the job's timeout allow */

static int leaves;  /* the rank that leaves without a goodbye, or -1 */
static int life[2]; /* a pipe without a writer: its end, with the test's, ends the children */

static void leave_a_child(void)
{
    pid_t child = fork();
    char c;

    CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(LIMIT_S);
        (void)read(life[0], &c, 1);
        _exit(0);
    }
}

static int be_a_rank(int rank)
{
    cddp_comm *comm;
    float x = 1;
    time_t began;
    cddp_status st;

    (void)alarm(LIMIT_S);
    (void)close(life[1]);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    leave_a_child();
    CHECK(cddp_all_reduce(comm, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK && x == 2);
    if (rank == leaves)
        _exit(0);
    began = time(NULL);
    st = cddp_finalize(comm);
    CHECK(leaves < 0 ? st == CDDP_OK : time(NULL) - began < SOON_S);
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "port";
    int port = free_port(), fd = -1, bad;

    leaves = strcmp(mode, "rank-0") == 0 ? 0 : strcmp(mode, "rank-1") == 0 ? 1 : -1;
    CHECK(pipe(life) == 0);
    (void)setenv("CDDP_TIMEOUT", "30", 1);
    by_hand_start(port, be_a_rank);
    bad = by_hand_wait();
    /* A child that has not run since it was forked has closed nothing yet: on a busy node its parent may be faster.
     */
    for (int i = 0; bad == 0 && i < FREE_S * 100 && (fd = by_hand_listen(port)) < 0; i++)
        (void)usleep(10000);
    if (bad == 0 && fd < 0) {
        fprintf(stderr, "port %d is still in use\n", port);
        bad = 1;
    }
    return bad;
}
