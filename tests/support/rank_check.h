/* SPDX-License-Identifier: Apache-2.0 */
/* CHECK for a rank's program that tests start: its rank is in a variable `rank`. */
#ifndef CDI_TEST_RANK_CHECK_H
#define CDI_TEST_RANK_CHECK_H

#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the rank with status 1 and a message, which begins with the arguments of printf that follow the condition. */
#define CHECK(condition, ...)                                                      \
    do {                                                                           \
        if (!(condition)) {                                                        \
            fprintf(stderr, "rank %d: line %d: %s: ", rank, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                          \
            fprintf(stderr, " (last error: %s)\n", cddp_last_error());             \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

#endif
