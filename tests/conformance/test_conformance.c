/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite over the layout that argv names ("2+1": a node of two ranks and one of one; "nccl:4": four
 * ranks of the module), in TAP.
 */
#include "conformance.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define CASE_S 60

static int parse_layout(const char *text, struct ranks_layout *l)
{
    int total = 0;

    l->name = text;
    for (int n = 0; n < RANKS_MAX; n++) {
        char *end;

        l->node_size[n] = (int)strtol(text, &end, 10);
        total += l->node_size[n];
        if (end == text || l->node_size[n] < 1 || total > RANKS_MAX)
            return 0;
        if (*end == '\0')
            return 1;
        text = end + 1;
    }
    return 0;
}

static int run_case(const struct conformance_case *c, const struct ranks_layout *l)
{
    int status[RANKS_MAX], bad = ranks_fork_on(l, CASE_S, c->fn, NULL, status);

    if (c->dies < 0)
        return bad == 0;
    return bad == 1 && WIFSIGNALED(status[c->dies]) && WTERMSIG(status[c->dies]) == SIGKILL;
}

int main(int argc, char **argv)
{
    struct ranks_layout l = {0};
    char *colon = argc < 2 ? NULL : strchr(argv[1], ':');
    int failed = 0;

    if (colon != NULL) {
        *colon = '\0';
        l.module = argv[1];
    }
    if (argc < 2 || !parse_layout(colon != NULL ? colon + 1 : argv[1], &l)) {
        fprintf(stderr, "usage: %s [MODULE:]RANKS[+RANKS]... [CASE]\n", argv[0]);
        return 2;
    }
    printf("1..%zu\n", conformance_n_cases);
    for (size_t i = 0; i < conformance_n_cases; i++) {
        const struct conformance_case *c = &conformance_cases[i];
        int ok;

        if (argc > 2 && strstr(c->name, argv[2]) == NULL) {
            printf("ok %zu - %s # SKIP not asked for\n", i + 1, c->name);
            continue;
        }
        if (ranks_total(&l) < c->min_ranks) {
            printf("ok %zu - %s # SKIP needs %d ranks\n", i + 1, c->name, c->min_ranks);
            continue;
        }
        if (c->host_only && l.module != NULL) {
            printf("ok %zu - %s # SKIP for backends on the host\n", i + 1, c->name);
            continue;
        }
        ok = run_case(c, &l);
        failed += !ok;
        printf("%s %zu - %s (%s)\n", ok ? "ok" : "not ok", i + 1, c->name, l.name);
        (void)fflush(stdout);
    }
    return failed != 0;
}
