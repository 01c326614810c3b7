/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What cddp_init adds to the environment, in a program that cddprun starts: device_env PAGE [none]. Every variable is
 * on the page, with its value where that is fixed; and where all are set, the environment stays as it is, so that no
 * other thread's getenv is disturbed. none: nothing may be added.
 */
#include "must.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MOST 512

extern char **environ;

static size_t list(char *names[MOST])
{
    size_t n = 0;

    while (environ[n] != NULL && n < MOST) {
        names[n] = environ[n];
        n++;
    }
    return n;
}

static bool is_among(const char *entry, char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (names[i] == entry)
            return true;
    return false;
}

static char *read_page(const char *path)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "r");

    MUST(f != NULL, "%s cannot be read\n", path);
    MUST(fread(text, 1, sizeof text - 1, f) > 0, "%s is empty\n", path);
    (void)fclose(f);
    return text;
}

static void join_and_leave(void)
{
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    cddp_comm *comm;

    DO(cddp_init(&comm, &init));
    DO(cddp_finalize(comm));
}

int main(int argc, char **argv)
{
    char *before[MOST], *after[MOST], *again[MOST], **where;
    const char *page = argc > 1 ? read_page(argv[1]) : "";
    size_t n_before = list(before), n_after, n_again, n_new = 0;

    join_and_leave();
    n_after = list(after);
    for (size_t i = 0; i < n_after; i++) {
        char want[128];

        if (is_among(after[i], before, n_before))
            continue;
        n_new++;
        (void)snprintf(want, sizeof want, "`%.100s`", after[i]);
        if (strncmp(after[i], "NCCL_HOSTID=", 12) == 0) /* its value is of this host and rank */
            (void)snprintf(want, sizeof want, "`NCCL_HOSTID`");
        MUST(strstr(page, want) != NULL, "%s is not on the page\n", want);
    }
    MUST((n_new == 0) == (argc > 2), "%zu variables were set\n", n_new);
    where = environ;
    join_and_leave();
    n_again = list(again);
    MUST(environ == where && n_again == n_after && memcmp(after, again, n_after * sizeof *after) == 0,
         "the environment has changed again\n");
    return 0;
}
