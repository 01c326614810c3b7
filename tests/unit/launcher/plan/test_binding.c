/* SPDX-License-Identifier: Apache-2.0 */
#include "common/gpus.h"
#include "hygiene.h"
#include "launcher/plan/topology.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

CDI_SUITE(bind);

static struct cdi_error err;
static struct bind_worker w[64];

/* By hwloc itself, from its own description of a node. */
static struct bind_topology machine_of(const char *synthetic)
{
    struct bind_topology t = {.n = 0};

    cr_assert_eq(setenv("HWLOC_SYNTHETIC", synthetic, 1), 0);
    if (topology_read(&t, &err) == CDDP_E_UNSUPPORTED)
        cr_skip_test("built without hwloc");
    cr_assert_gt(t.n, 0);
    return t;
}

/* One node for most tests: two sockets of two NUMA nodes, each with two caches of two cores of two processors. */
#define BOX "pack:2 numa:2 l3:2 core:2 pu:2"

static cddp_status plan(const char *synthetic, enum bind_mode mode, uint32_t n, const int *gpu_nodes, uint32_t n_gpus)
{
    struct bind_topology t = machine_of(synthetic);
    cddp_status st = bind_make(w, n, mode, &t, gpu_nodes, n_gpus, &err);

    free(t.cpus);
    return st;
}

/* The workers' processors, with a blank between them and - for none. */
static void expect(uint32_t n, const char *lists)
{
    char text[512] = "";

    for (uint32_t i = 0; i < n; i++) {
        size_t at = strlen(text);

        (void)snprintf(text + at, sizeof text - at, "%s%.100s", i > 0 ? " " : "", w[i].cpus == NULL ? "-" : w[i].cpus);
    }
    cr_expect_str_eq(text, lists);
    bind_free(w, n);
}

Test(bind, reads_topology_of_hwloc)
{
    struct bind_topology t = machine_of(BOX);

    cr_assert_eq(t.n, 32);
    for (uint32_t i = 0; i < t.n; i++) {
        cr_expect_eq(t.cpus[i].cpu, i);
        cr_expect_eq(t.cpus[i].core, i / 2);
        cr_expect_eq(t.cpus[i].cache, i / 4);
        cr_expect_eq(t.cpus[i].node, i / 8);
        cr_expect_eq(t.cpus[i].package, i / 16);
    }
    free(t.cpus);
}

Test(bind, node_mode_uses_gpus_numa_node)
{
    const int nodes[] = {3, 3, 0, 0};

    cr_assert_eq(plan(BOX, BIND_NODE, 4, nodes, 4), CDDP_OK);
    cr_assert_eq(w[0].node, 3);
    cr_assert_eq(w[2].gpu, 2);
    expect(4, "24-31 24-31 0-7 0-7");
    cr_assert_eq(plan(BOX, BIND_NODE, 6, nodes, 4), CDDP_OK, "more workers than GPUs begin again");
    cr_assert_eq(w[5].gpu, 1);
    expect(6, "24-31 24-31 0-7 0-7 24-31 24-31");
}

Test(bind, socket_mode_uses_gpus_socket)
{
    const int nodes[] = {1, 2};

    cr_assert_eq(plan(BOX, BIND_SOCKET, 2, nodes, 2), CDDP_OK);
    expect(2, "0-15 16-31");
}

Test(bind, exclusive_mode_divides_cores_of_node)
{
    const int nodes[] = {1, 1, 1, 2};
    const int many[] = {0, 0, 0, 0, 0};

    cr_assert_eq(plan(BOX, BIND_EXCLUSIVE, 4, nodes, 4), CDDP_OK);
    expect(4, "8-11 12-13 14-15 16-23");
    cr_assert_eq(plan(BOX, BIND_EXCLUSIVE, 5, many, 5), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg,
                     "--numa_binding=exclusive: NUMA node 0 has 4 usable cores for 5 workers; start fewer workers, "
                     "or use --numa_binding=node");
}

Test(bind, core_complex_mode_assigns_caches)
{
    const int nodes[] = {0, 0, 0, 3};

    cr_assert_eq(plan(BOX, BIND_CORE_COMPLEX, 4, nodes, 4), CDDP_OK);
    expect(4, "0-3 4-7 0-3 24-27");
}

Test(bind, larger_caches_first)
{
    struct bind_cpu cpus[] = {{.cpu = 0, .cache = 7},
                              {.cpu = 1, .cache = 8},
                              {.cpu = 2, .cache = 8},
                              {.cpu = 5, .cache = 9},
                              {.cpu = 6, .cache = 9}};
    struct bind_topology t = {.cpus = cpus, .n = 5};
    const int nodes[] = {0, 0, 0};

    cr_assert_eq(bind_make(w, 3, BIND_CORE_COMPLEX, &t, nodes, 3, &err), CDDP_OK);
    expect(3, "1-2 5-6 0");
}

Test(bind, without_gpus_blocks_of_workers_per_node)
{
    cr_assert_eq(plan(BOX, BIND_NODE, 8, NULL, 0), CDDP_OK);
    expect(8, "0-7 0-7 8-15 8-15 16-23 16-23 24-31 24-31");
    cr_assert_eq(plan(BOX, BIND_EXCLUSIVE, 8, NULL, 0), CDDP_OK);
    expect(8, "0-3 4-7 8-11 12-15 16-19 20-23 24-27 28-31");
    cr_assert_eq(plan(BOX, BIND_NODE, 2, NULL, 0), CDDP_OK);
    expect(2, "0-7 16-23");
}

Test(bind, auto_binds_if_several_nodes_and_no_loss)
{
    const int nodes[] = {2, 0}, unknown[] = {2, -1};

    cr_assert_eq(plan(BOX, BIND_AUTO, 2, nodes, 2), CDDP_OK);
    expect(2, "16-23 0-7");
    cr_assert_eq(plan(BOX, BIND_AUTO, 4, NULL, 0), CDDP_OK);
    expect(4, "0-7 8-15 16-23 24-31");
    cr_assert_eq(plan(BOX, BIND_AUTO, 2, NULL, 0), CDDP_OK, "two workers would leave two nodes without work");
    expect(2, "- -");
    cr_assert_eq(plan(BOX, BIND_AUTO, 2, unknown, 2), CDDP_OK);
    expect(2, "- -");
    cr_assert_eq(plan("numa:1 core:4 pu:1", BIND_AUTO, 4, NULL, 0), CDDP_OK);
    expect(4, "- - - -");
    cr_assert_eq(plan(BOX, BIND_NONE, 2, nodes, 2), CDDP_OK);
    expect(2, "- -");
}

Test(bind, divides_single_node)
{
    cr_assert_eq(plan("numa:1 core:4 pu:2", BIND_EXCLUSIVE, 2, NULL, 0), CDDP_OK);
    expect(2, "0-3 4-7");
}

Test(bind, respects_affinity_mask)
{
    struct bind_cpu cpus[] = {
        {.cpu = 2, .core = 1, .node = 0}, {.cpu = 9, .core = 4, .node = 1}, {.cpu = 11, .core = 5, .node = 1}};
    struct bind_topology t = {.cpus = cpus, .n = 3};
    const int nodes[] = {1, 0, 2};

    cr_assert_eq(bind_make(w, 2, BIND_AUTO, &t, nodes, 2, &err), CDDP_OK);
    expect(2, "9,11 2");
    cr_assert_eq(bind_make(w, 3, BIND_NODE, &t, nodes, 3, &err), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "GPU 2 is at NUMA node 2, but this job may not use any core there"), "%s",
                       err.msg);
    cr_assert_eq(bind_make(w, 3, BIND_AUTO, &t, nodes, 3, &err), CDDP_OK);
    expect(3, "9,11 2 -");
}

Test(bind, detects_numa_by_file)
{
    char root[] = "/tmp/cdi-bind-XXXXXX", path[128];
    static const char *const dirs[] = {"/sys", "/sys/devices", "/sys/devices/system", "/sys/devices/system/node"};
    FILE *f;

    cr_assert_not_null(mkdtemp(root));
    cr_assert_not(topology_is_numa(root));
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof path, "%s%s", root, dirs[i]);
        cr_assert_eq(mkdir(path, 0700), 0);
    }
    (void)snprintf(path, sizeof path, "%s%s/has_cpu", root, dirs[3]);
    for (int several = 0; several < 2; several++) {
        f = fopen(path, "w");
        cr_assert_not_null(f);
        fputs(several ? "0-1\n" : "0\n", f);
        (void)fclose(f);
        cr_assert_eq(topology_is_numa(root), several);
    }
    (void)remove(path);
    for (size_t i = 4; i-- > 0;) {
        (void)snprintf(path, sizeof path, "%s%s", root, dirs[i]);
        (void)remove(path);
    }
    (void)remove(root);
}

Test(bind, report_names_cores_node_and_gpu)
{
    static char cores[] = "0-7,16-23";
    struct bind_worker one = {.cpus = cores, .node = 1, .gpu = -1};
    char text[200];

    bind_text(&one, 3, text, sizeof text);
    cr_assert_str_eq(text, "rank 3 runs on cores 0-7,16-23 (NUMA node 1)");
    one.gpu = 2;
    bind_text(&one, 3, text, sizeof text);
    cr_assert_str_eq(text, "rank 3 runs on cores 0-7,16-23 (NUMA node 1, GPU 2)");
    cr_assert(cdi_gpu_pci(one.gpu_pci, "00000000:3B:00.0"));
    bind_text(&one, 3, text, sizeof text);
    cr_assert_str_eq(text, "rank 3 runs on cores 0-7,16-23 (NUMA node 1, GPU 2 at 0000:3b:00.0)");
    one.cpus = NULL;
    bind_text(&one, 3, text, sizeof text);
    cr_assert_str_eq(text, "rank 3 is not bound to cores");
}
