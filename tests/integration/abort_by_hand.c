/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 1 aborts the job while rank 0, which hosts the store, waits in cddp_finalize for the others to leave: that wait
 * ends soon, though rank 1 lives on. Without a launcher, which would have its own store.
 */
#include <cddp/cddp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 50
#define SOON_S 12 /* well under the job's timeout */

#define CHECK(is_true)                                                                               \
    do {                                                                                             \
        if (!(is_true)) {                                                                            \
            fprintf(stderr, "%s:%d: pid %d: %s (%s)\n", __FILE__, __LINE__, (int)getpid(), #is_true, \
                    cddp_last_error());                                                              \
            _exit(1);                                                                                \
        }                                                                                            \
    } while (0)

static int left[2]; /* a pipe that ends when rank 0 has gone */

static void be_a_rank(int rank)
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
    _exit(0);
}

static void set_number(const char *name, int number)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%d", number);
    (void)setenv(name, text, 1);
}

int main(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), bad = 0;

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0 && pipe(left) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&any, &len) == 0);
    (void)close(fd);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("CDDP_TIMEOUT", "30", 1);
    set_number("MASTER_PORT", ntohs(any.sin_port));
    set_number("WORLD_SIZE", 2);
    for (int r = 0; r < 2; r++) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0) {
            set_number("RANK", r);
            be_a_rank(r);
        }
    }
    (void)close(left[0]);
    (void)close(left[1]);
    for (int r = 0; r < 2; r++) {
        int status;

        CHECK(wait(&status) > 0);
        bad |= status;
    }
    return bad != 0;
}
