/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_planted FILE: the terminal view of --top, which reads its answers from a file instead of a rendezvous. A missing
 * file is a lost connection; "hang" as its text, a server that does not answer.
 */
#include "watch/query.h"
#include "watch/top.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ncurses keeps its memory for the next screen, and loses the address of some of it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libtinfo.so\n";
}

const char *__lsan_default_options(void);
const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

struct query {
    const char *path;
};

cddp_status query_open(struct query **out, const char *endpoint, const struct cdi_secret *secret, int64_t timeout_ms,
                       struct cdi_error *err)
{
    (void)secret;
    (void)timeout_ms;
    if (access(endpoint, R_OK) != 0)
        return cdi_fail(err, CDDP_E_IO, "no answer");
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    (*out)->path = endpoint;
    return CDDP_OK;
}

cddp_status query_ask(struct query *q, const char *job, int64_t timeout_ms, json_t **reply, struct cdi_error *err)
{
    (void)job;
    *reply = json_load_file(q->path, 0, NULL);
    if (*reply == NULL)
        return cdi_fail(err, CDDP_E_CLOSED, "no answer");
    if (json_object_get(*reply, "hang") == NULL)
        return CDDP_OK;
    json_decref(*reply);
    (void)usleep((useconds_t)timeout_ms * 1000);
    return cdi_fail(err, CDDP_E_TIMEOUT, "no answer");
}

void query_close(struct query *q)
{
    free(q);
}

int main(int argc, char **argv)
{
    struct cdi_error err;
    int signal;

    if (argc != 2)
        return 2;
    if (top_run(argv[1], NULL, &signal, &err) != CDDP_OK) {
        fprintf(stderr, "top_planted: %s\n", err.msg);
        return 1;
    }
    return signal != 0 ? 128 + signal : 0;
}
