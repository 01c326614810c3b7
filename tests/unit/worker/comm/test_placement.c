/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/comm/placement.h"

#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(place, .timeout = 10);

/* Ranks on hosts named by one letter each. */
static void place_of(const char *hosts, int rank, struct cdi_node_layout *by_host, struct cdi_node_layout *by_run)
{
    uint8_t ids[16 * CDI_HOST_ID] = {0};
    int size = (int)strlen(hosts);

    for (int r = 0; r < size; r++)
        ids[(r + 1) * CDI_HOST_ID - 1] = (uint8_t)hosts[r];
    cdi_node_layout_of(ids, size, rank, by_host, by_run);
}

static void want(const char *hosts, int rank, struct cdi_node_layout by_host, struct cdi_node_layout by_run)
{
    struct cdi_node_layout h, r;

    place_of(hosts, rank, &h, &r);
    cr_assert_eq(memcmp(&h, &by_host, sizeof h), 0, "%s, rank %d by host: %d/%d on %d/%d", hosts, rank, h.local_rank,
                 h.local_size, h.node_rank, h.n_nodes);
    cr_assert_eq(memcmp(&r, &by_run, sizeof r), 0, "%s, rank %d by run: %d/%d on %d/%d", hosts, rank, r.local_rank,
                 r.local_size, r.node_rank, r.n_nodes);
}

Test(place, ranks_of_one_host_are_counted_together)
{
    want("a", 0, (struct cdi_node_layout){0, 1, 0, 1}, (struct cdi_node_layout){0, 1, 0, 1});
    want("aaaa", 2, (struct cdi_node_layout){2, 4, 0, 1}, (struct cdi_node_layout){2, 4, 0, 1});
    want("aaabb", 3, (struct cdi_node_layout){0, 2, 1, 2}, (struct cdi_node_layout){0, 2, 1, 2});
    want("aaabb", 1, (struct cdi_node_layout){1, 3, 0, 2}, (struct cdi_node_layout){1, 3, 0, 2});
    want("cab", 2, (struct cdi_node_layout){0, 1, 2, 3}, (struct cdi_node_layout){0, 1, 2, 3});
}

Test(place, ranks_dealt_out_in_turn_share_a_host_but_no_run)
{
    want("abab", 2, (struct cdi_node_layout){1, 2, 0, 2}, (struct cdi_node_layout){0, 1, 2, 4});
    want("abab", 1, (struct cdi_node_layout){0, 2, 1, 2}, (struct cdi_node_layout){0, 1, 1, 4});
    want("abba", 2, (struct cdi_node_layout){1, 2, 1, 2}, (struct cdi_node_layout){1, 2, 1, 3});
    want("abba", 3, (struct cdi_node_layout){1, 2, 0, 2}, (struct cdi_node_layout){0, 1, 2, 3});
}

Test(place, processes_of_one_host_agree_on_its_id)
{
    uint8_t mine[CDI_HOST_ID], theirs[CDI_HOST_ID];
    int out[2];
    pid_t pid;

    cr_assert_eq(pipe(out), 0);
    cdi_host_id(mine);
    pid = fork();
    if (pid == 0) {
        cdi_host_id(theirs);
        _exit(write(out[1], theirs, sizeof theirs) != (ssize_t)sizeof theirs);
    }
    cr_assert_eq(read(out[0], theirs, sizeof theirs), (ssize_t)sizeof theirs);
    cr_assert_eq(memcmp(mine, theirs, sizeof mine), 0);
    (void)waitpid(pid, NULL, 0);
    (void)close(out[0]);
    (void)close(out[1]);
}

Test(place, a_network_namespace_of_its_own_is_another_host)
{
    uint8_t before[CDI_HOST_ID], after[CDI_HOST_ID];

    cdi_host_id(before);
    if (unshare(CLONE_NEWNET) != 0)
        cr_skip_test("no right to make a network namespace");
    cdi_host_id(after);
    cr_assert_neq(memcmp(before, after, sizeof before), 0);
}
