/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes that call cddp_init, for tests of the public interface: the variables of one, and a whole world.
 */
#ifndef CDI_TEST_COMM_RANKS_H
#define CDI_TEST_COMM_RANKS_H

#include "port.h"

#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const comm_env_names[] = {"RANK",
                                             "WORLD_SIZE",
                                             "MASTER_ADDR",
                                             "MASTER_PORT",
                                             "LOCAL_RANK",
                                             "CDDP_BACKEND",
                                             "LOCAL_WORLD_SIZE",
                                             "TORCHELASTIC_USE_AGENT_STORE",
                                             "GROUP_RANK",
                                             "CDDP_TIMEOUT",
                                             "GROUP_WORLD_SIZE",
                                             "TORCHELASTIC_RESTART_COUNT",
                                             "CDDP_FLIGHT",
                                             "CDDP_JOIN_TIMEOUT",
                                             "CDDP_AUTH_TOKEN_FILE",
                                             "TORCHELASTIC_RUN_ID",
                                             "OMPI_COMM_WORLD_SIZE",
                                             "PMI_SIZE",
                                             "SLURM_STEP_ID"};

static inline void clean_env(void)
{
    for (size_t i = 0; i < sizeof comm_env_names / sizeof comm_env_names[0]; i++)
        (void)unsetenv(comm_env_names[i]);
}

static inline void set_env(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof text, "%d", value);
    (void)setenv(name, text, 1);
}

static inline void rank_env(int rank, int size, int port)
{
    clean_env();
    set_env("RANK", rank);
    set_env("WORLD_SIZE", size);
    set_env("MASTER_PORT", port);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    (void)setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
}

/* Run body as `n` ranks of a world of `size`; the number of them that did not return 0. Releases the ports of
 * free_port(). */
static inline int run_ranks(int port, int n, int size, int (*body)(int rank))
{
    pid_t pid[8];
    int bad = 0;

    (void)fflush(NULL);
    for (int r = 0; r < n; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            (void)alarm(30);
            rank_env(r, size, port);
            _exit(body(r));
        }
    }
    for (int r = 0; r < n; r++) {
        int status = -1;

        (void)waitpid(pid[r], &status, 0);
        bad += status != 0;
    }
    port_release();
    return bad;
}

#define CHECK(cond)                                                                            \
    do {                                                                                       \
        if (!(cond)) {                                                                         \
            fprintf(stderr, "%s:%d: %s [%s]\n", __FILE__, __LINE__, #cond, cddp_last_error()); \
            return 1;                                                                          \
        }                                                                                      \
    } while (0)

#endif
