/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "preflight/judge.h"
#include "preflight/table.h"

#include <stdio.h>

CDI_SUITE(judge);

#define N 8
#define GIB ((uint64_t)1 << 30)

static struct preflight_facts nodes[N];
static struct preflight_finding found[64];
static size_t n_found;

static void healthy(void)
{
    memset(nodes, 0, sizeof nodes);
    for (uint32_t i = 0; i < N; i++) {
        struct preflight_facts *f = &nodes[i];

        *f = (struct preflight_facts){.known = true,
                                      .workers = 8,
                                      .cpus = 64,
                                      .gpus = 8,
                                      .memory = 100 * GIB,
                                      .memory_free = 90 * GIB,
                                      .files = 1024,
                                      .shm = 50 * GIB,
                                      .shm_free = 50 * GIB,
                                      .clock_known = true,
                                      .clock_us = 100 * (int64_t)i,
                                      .n_disks = 1,
                                      .disk[0] = {.path = "/tmp", .total = 9 * GIB, .free = 8 * GIB, .free_files = 9}};
        (void)snprintf(f->host, sizeof f->host, "host%u", i);
        for (uint32_t d = 1; d < N; d *= 2)
            *preflight_link_to(f, (i + d) % N) =
                (struct preflight_link){.to = (i + d) % N, .reached = true, .mib_s = 1000 + 10 * i};
    }
}

static void judge(void)
{
    n_found = preflight_judge(nodes, N, found, sizeof found / sizeof found[0]);
}

/* Only this finding. */
static void names(uint32_t node, bool error, const char *text)
{
    judge();
    cr_assert_eq(n_found, 1, "%zu findings, the first: %s", n_found, n_found > 0 ? found[0].text : "");
    cr_assert_eq(found[0].node, node);
    cr_assert_eq(found[0].error, error);
    cr_assert(strstr(found[0].text, text) != NULL, "%s", found[0].text);
    healthy();
}

static void fail_link(uint32_t from, uint32_t to)
{
    struct preflight_link *l = preflight_link_to(&nodes[from], to);

    l->reached = false;
    l->mib_s = 0;
    (void)snprintf(l->why, sizeof l->why, "10.0.0.%u:30000: Connection timed out", to);
}

Test(judge, finds_nothing_on_healthy_nodes)
{
    healthy();
    judge();
    cr_assert_eq(n_found, 0, "%s", found[0].text);
}

Test(judge, names_the_resource_that_is_missing)
{
    healthy();
    nodes[3].shm_free = 1 << 20;
    names(3, true, "/dev/shm is full (1.0 of 51200 MiB free)");
    nodes[4].disk[0].free = 1 << 20;
    names(4, true, "the disk of /tmp is full (1.0 of 9216 MiB free)");
    nodes[4].disk[0].free_files = 0;
    names(4, true, "the disk of /tmp has no inode left");
    nodes[0].files = 100;
    names(0, true, "may open only 100 files");
    nodes[0].files = 400;
    names(0, false, "may open 400 files, elsewhere 1024");
    nodes[7].memory_free = GIB;
    names(7, false, "only 1.0 of 100.0 GiB of memory are free");
    nodes[7].memory = 64 * GIB;
    nodes[7].memory_free = 60 * GIB;
    names(7, false, "has 64.0 GiB of memory, the others 100.0 GiB");
    nodes[2].known = false;
    for (size_t k = 0; k < 3; k++) /* nobody has reached it either, but that is one finding */
        if (nodes[1].link[k].to == 2)
            fail_link(1, 2);
    names(2, true, "has not reported in time");
}

Test(judge, names_gpus_that_are_lost_or_ill)
{
    healthy();
    nodes[1].gpus = 7;
    names(1, true, "it has 7 GPUs, the others 8");
    nodes[1].gpus_bad = 1;
    names(1, true, "1 of 8 GPUs have memory errors");
    nodes[1].gpus_slow = 2;
    names(1, false, "2 of 8 GPUs are slowed down");
}

Test(judge, measures_clocks_from_the_middle_one_not_from_node_0)
{
    healthy();
    nodes[5].clock_us = 5000000;
    names(5, false, "its clock is 5.0 s fast");
    for (int i = 1; i < N; i++) /* node 0 is slow, so all others seem fast */
        nodes[i].clock_us = 3000000 + i;
    names(0, false, "its clock is 3.0 s slow");
    nodes[5].clock_known = false;
    judge();
    cr_assert_eq(n_found, 0);
}

Test(judge, blames_the_end_that_explains_most_bad_links)
{
    healthy();
    for (uint32_t i = 0; i < N; i++) /* nobody reaches node 6 */
        for (size_t k = 0; k < nodes[i].n_links; k++)
            if (nodes[i].link[k].to == 6)
                fail_link(i, 6);
    names(6, true, "host2 cannot reach its data ports: 10.0.0.6:30000: Connection timed out (and 2 more of its links)");
    fail_link(1, 2); /* a single one: the end that was to be reached */
    names(2, true, "host1 cannot reach its data ports");
    for (size_t k = 0; k < nodes[1].n_links; k++) /* node 1 reaches nobody */
        fail_link(1, nodes[1].link[k].to);
    names(1, true, "it cannot reach the data ports of host2");
    for (size_t k = 0; k < nodes[4].n_links; k++)
        nodes[4].link[k].mib_s = 5;
    names(4, false, "the link from host4 to host5 is slow: 5 MiB/s, the median is 1030 (and 2 more of its links)");
}

Test(judge, needs_two_rates_to_call_one_slow)
{
    healthy();
    cr_assert_eq(preflight_slow_below(nodes, 0), 0);
    nodes[0].n_links = 1;
    nodes[0].link[0].mib_s = 1;
    cr_assert_eq(preflight_slow_below(nodes, 1), 0);
    nodes[1].n_links = 1;
    nodes[0].link[0].to = 1;
    nodes[1].link[0] = (struct preflight_link){.to = 0, .reached = true, .mib_s = 900};
    cr_assert_float_eq(preflight_slow_below(nodes, 2), 300, 1e-9);
    n_found = preflight_judge(nodes, 2, found, 64);
    cr_assert_eq(n_found, 1);
    cr_assert(strstr(found[0].text, "from host0 to host1 is slow") != NULL);
}

Test(judge, keeps_to_its_room_and_orders_by_node)
{
    healthy();
    for (int i = 0; i < N; i++) {
        nodes[i].shm_free = 0;
        nodes[i].memory_free = 0;
    }
    cr_assert_eq(preflight_judge(nodes, N, found, 3), 3);
    judge();
    cr_assert_eq(n_found, 2 * N);
    for (size_t i = 0; i < n_found; i++)
        cr_assert(found[i].node == i / 2 && found[i].error == (i % 2 == 0));
    cr_assert_eq(preflight_judge(nodes, 0, found, 3), 0);
}

/* ------------------------------------------------------------------------------------------------------- table ---- */

static void table_is(size_t n, const char *expected)
{
    struct cdi_buf b;

    cdi_buf_init(&b, 0);
    n_found = preflight_judge(nodes, n, found, 64);
    cr_assert_eq(preflight_table(&b, nodes, n, found, n_found, 1.24), CDDP_OK);
    cr_assert(b.len == strlen(expected) && memcmp(cdi_buf_data(&b), expected, b.len) == 0, "%.*s", (int)b.len,
              (const char *)cdi_buf_data(&b));
    cdi_buf_release(&b);
}

Test(judge, table_has_a_line_for_each_node_and_finding)
{
    healthy();
    nodes[1].files = 100;
    nodes[1].clock_us = -2500;
    nodes[2].known = false;
    for (int i = 0; i < 3; i++)
        nodes[i].n_links = 0;
    nodes[0].n_links = 1;
    nodes[0].link[0] = (struct preflight_link){.to = 1, .reached = true, .mib_s = 1234.5};
    table_is(3, "node  host       workers  cpus  GPUs    clock      memory         disk  files  MiB/s out, in\n"
                "   0  host0            8    64     8        0  90/100 GiB  8.0/9.0 GiB   1024        1234, 0\n"
                "   1  host1            8    64     8  -2.5 ms  90/100 GiB  8.0/9.0 GiB    100        0, 1234\n"
                "   2  no report\n"
                "error: node 1 (host1): a worker may open only 100 files; raise the limit (ulimit -n)\n"
                "error: node 2 (unknown host): it has not reported in time\n"
                "preflight: 3 nodes, 2 errors, 0 warnings, 1.2 s\n");
}

Test(judge, table_of_many_nodes_fits_on_a_screen)
{
    static struct preflight_facts many[200];
    struct cdi_buf b;
    size_t lines = 0;

    healthy();
    for (int i = 0; i < 200; i++) {
        many[i] = nodes[0];
        many[i].n_links = 0;
    }
    many[77].files = 10;
    cdi_buf_init(&b, 0);
    n_found = preflight_judge(many, 200, found, 64);
    cr_assert_eq(preflight_table(&b, many, 200, found, n_found, 1), CDDP_OK);
    for (size_t i = 0; i < b.len; i++)
        lines += cdi_buf_data(&b)[i] == '\n';
    cr_assert_eq(lines, 6); /* head, nodes 0 and 77, the rest, the finding, the sum */
    cr_assert(memmem(cdi_buf_data(&b), b.len, "(198 more nodes)", 16) != NULL);
    cdi_buf_release(&b);
}
