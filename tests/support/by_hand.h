/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of two ranks that no launcher started: rank 0 hosts the store, as in any program that is started by hand. For
 * programs that use only the installed header, and that CHECK in the ranks, too.
 */
#ifndef CDI_TEST_BY_HAND_H
#define CDI_TEST_BY_HAND_H

#include "port.h"

#include <cddp/cddp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is_true)                                                                               \
    do {                                                                                             \
        if (!(is_true)) {                                                                            \
            fprintf(stderr, "%s:%d: pid %d: %s (%s)\n", __FILE__, __LINE__, (int)getpid(), #is_true, \
                    cddp_last_error());                                                              \
            _exit(1);                                                                                \
        }                                                                                            \
    } while (0)

/* A socket that listens at the port on 127.0.0.1, or -1 where somebody else does. */
static inline int by_hand_listen(int port)
{
    struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    if (bind(fd, (struct sockaddr *)&there, sizeof there) == 0 && listen(fd, 1) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static inline void by_hand_set(const char *name, int number)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%d", number);
    (void)setenv(name, text, 1);
}

/* Ranks 0 and 1, in which body() is called and whose status it returns. */
static inline void by_hand_start(int port, int (*body)(int rank))
{
    for (int r = 0; r < 2; r++) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0) {
            (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
            by_hand_set("MASTER_PORT", port);
            by_hand_set("WORLD_SIZE", 2);
            by_hand_set("RANK", r);
            exit(body(r));
        }
    }
}

/* Waits for both. 0 if both ended with 0, else 1. */
static inline int by_hand_wait(void)
{
    int status, bad = 0;

    for (int r = 0; r < 2; r++) {
        CHECK(wait(&status) > 0);
        bad |= status;
    }
    return bad != 0;
}

#endif
