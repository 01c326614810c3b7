/* SPDX-License-Identifier: Apache-2.0 */
/* Failed checks in programs that tests start: the reason on stderr, and an exit status for its kind. */
#ifndef MUST_H
#define MUST_H

#include <cddp/cddp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRONG 3  /* exit status: a result */
#define FAILED 4 /* exit status: a call of libcddp's */

#define DO(call)                                                   \
    do {                                                           \
        if ((call) != CDDP_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, cddp_last_error()); \
            exit(FAILED);                                          \
        }                                                          \
    } while (0)

#define MUST(is, ...)                     \
    do {                                  \
        if (!(is)) {                      \
            fprintf(stderr, __VA_ARGS__); \
            exit(WRONG);                  \
        }                                 \
    } while (0)

/* The call is rejected with this status, and its error message contains `word`. */
#define REFUSED(call, status, word)                                                                                   \
    do {                                                                                                              \
        cddp_status got_ = (call);                                                                                    \
        MUST(got_ == (status) && strstr(cddp_last_error(), word) != NULL, "%s: %s (%s), wanted %s and '%s'\n", #call, \
             cddp_status_name(got_), cddp_last_error(), cddp_status_name(status), word);                              \
    } while (0)

#endif
