/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children of ranks that live on when their parents have gone: nobody waits for them. Without a launcher, which would
 * tell the others of a death.
 *
 *     fork_lives_on MODE
 *
 * "rank-0", "rank-1": that rank leaves without a goodbye; the other one's cddp_finalize ends soon.
 * "port": both say goodbye; then MASTER_PORT is free for the next job.
 */
#include <cddp/cddp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 50
#define SOON_S 10 /* less than what the children's lives and the job's timeout allow for */

#define CHECK(is_true)                                                                               \
    do {                                                                                             \
        if (!(is_true)) {                                                                            \
            fprintf(stderr, "%s:%d: pid %d: %s (%s)\n", __FILE__, __LINE__, (int)getpid(), #is_true, \
                    cddp_last_error());                                                              \
            _exit(1);                                                                                \
        }                                                                                            \
    } while (0)

static struct sockaddr_in address = {.sin_family = AF_INET};
static int life[2]; /* a pipe into which nobody writes: it ends with the test, and with it the children */

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

/* -1, or a socket that is bound to the address. */
static int listen_there(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 1) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static void be_a_rank(int rank, int leaves)
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
    _exit(0);
}

static void set_number(const char *name, int number)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%d", number);
    (void)setenv(name, text, 1);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "port";
    int leaves = strcmp(mode, "rank-0") == 0 ? 0 : strcmp(mode, "rank-1") == 0 ? 1 : -1, fd, bad = 0;
    socklen_t len = sizeof address;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fd = listen_there();
    CHECK(fd >= 0 && pipe(life) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&address, &len) == 0);
    (void)close(fd);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("CDDP_TIMEOUT", "30", 1);
    set_number("MASTER_PORT", ntohs(address.sin_port));
    set_number("WORLD_SIZE", 2);
    for (int r = 0; r < 2; r++) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0) {
            set_number("RANK", r);
            be_a_rank(r, leaves);
        }
    }
    for (int r = 0; r < 2; r++) {
        int status;

        CHECK(wait(&status) > 0);
        bad |= status;
    }
    if (bad == 0 && listen_there() < 0) {
        fprintf(stderr, "port %d is still in use\n", ntohs(address.sin_port));
        bad = 1;
    }
    return bad != 0;
}
