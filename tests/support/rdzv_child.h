/* SPDX-License-Identifier: Apache-2.0 */
/* A rendezvous server in a child process (rdzv_server_main.c), for tests that need a real store. */
#ifndef CDI_TEST_RDZV_CHILD_H
#define CDI_TEST_RDZV_CHILD_H

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct rdzv_child {
    pid_t pid;
    int in; /* the server ends when it is closed */
    int port;
};

static inline void rdzv_child_start(struct rdzv_child *c)
{
    int in[2], out[2];
    char line[16] = "";
    size_t len = 0;

    cr_assert(pipe(in) == 0 && pipe(out) == 0);
    c->pid = fork();
    if (c->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(in[0], 0);
        (void)dup2(out[1], 1);
        for (int fd = 3; fd < 256; fd++)
            (void)close(fd);
        (void)execl(CDI_TEST_RDZV, CDI_TEST_RDZV, (char *)NULL);
        _exit(127);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    while (len + 1 < sizeof line && read(out[0], line + len, 1) == 1 && line[len] != '\n')
        len++;
    (void)close(out[0]);
    c->in = in[1];
    c->port = atoi(line);
    cr_assert_gt(c->port, 0, "the server did not say its port");
}

static inline void rdzv_child_stop(struct rdzv_child *c)
{
    int status = -1;

    (void)close(c->in);
    (void)waitpid(c->pid, &status, 0);
    cr_assert_eq(status, 0, "the server ended with status %d", status);
}

#endif
