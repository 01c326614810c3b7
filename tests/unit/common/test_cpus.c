/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cpus.h"
#include "hygiene.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(cpus);

static char root[64];

/* Writes text to root/path, and makes the folders above it. */
static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(full, 0700);
        *slash = '/';
    }
    f = fopen(full, "w");
    cr_assert_not_null(f, "%s", full);
    (void)fputs(text, f);
    (void)fclose(f);
}

static void make_root(void)
{
    (void)snprintf(root, sizeof root, "cpus-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static void drop_root(void)
{
    char cmd[128];

    (void)snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    cr_assert_eq(system(cmd), 0);
}

Test(cpus, smallest_quota_counts_in_version_2)
{
    make_root();
    put("/proc/self/cgroup", "0::/a/b\n");
    cr_assert_eq(cdi_cpus_quota(root), 0, "no file, no quota");
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 0);
    put("/sys/fs/cgroup/a/cpu.max", "350000 100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 3, "a half is none");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 2);
    put("/sys/fs/cgroup/a/b/cpu.max", "20000 100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 1, "never less than one");
    drop_root();
}

Test(cpus, reads_version_1_from_the_cpu_controller)
{
    make_root();
    put("/proc/self/cgroup", "9:memory:/m\n4:cpu,cpuacct:/job\n1:cpuset:/x\n0::/\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 0);
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
    cr_assert_eq(cdi_cpus_quota(root), 4);
    drop_root();
}

Test(cpus, container_with_the_hosts_path_uses_its_own_mount)
{
    make_root();
    put("/proc/self/cgroup", "4:cpu:/docker/0123\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "500000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 5);
    drop_root();
}

Test(cpus, ignores_a_malformed_quota)
{
    make_root();
    put("/proc/self/cgroup", "\n:\n0:\n0::/a\n0::/../../x\nx:cpu:\n");
    put("/sys/fs/cgroup/a/cpu.max", "many few\n");
    cr_assert_eq(cdi_cpus_quota(root), 0);
    put("/sys/fs/cgroup/a/cpu.max", "100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 0);
    put("/sys/fs/cgroup/a/cpu.max", "100000 0\n");
    cr_assert_eq(cdi_cpus_quota(root), 0);
    drop_root();
}

Test(cpus, two_points_in_a_groups_name_do_not_lead_up)
{
    make_root();
    put("/proc/self/cgroup", "0::/job..1/..x\n");
    put("/sys/fs/cgroup/job..1/cpu.max", "300000 100000\n");
    cr_assert_eq(cdi_cpus_quota(root), 3);
    put("/proc/self/cgroup", "0::/job..1/..\n");
    cr_assert_eq(cdi_cpus_quota(root), 0);
    drop_root();
}

Test(cpus, memory_is_what_the_host_and_the_groups_have_left)
{
    make_root();
    cr_assert_eq(cdi_memory_available(root, true), INT64_MAX, "not known");
    put("/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:     100 kB\nSwapFree:  0 kB\nMemAvailableNot: 1 kB\n");
    cr_assert_eq(cdi_memory_available(root, true), 102400);
    put("/proc/self/cgroup", "4:memory:/x\n0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "90000\n");
    cr_assert_eq(cdi_memory_available(root, true), 102400, "no limit");
    put("/sys/fs/cgroup/a/memory.max", "100000\n");
    put("/sys/fs/cgroup/a/memory.current", "95000\n");
    cr_assert_eq(cdi_memory_available(root, true), 5000, "a parent's limit");
    put("/sys/fs/cgroup/a/memory.stat", "anon 7\nfile 60000\ninactive_file 20000\nactive_file 10000\nshmem 30000\n");
    cr_assert_eq(cdi_memory_available(root, true), 35000, "the page cache can go, shared memory cannot");
    put("/sys/fs/cgroup/a/memory.current", "200000\n");
    cr_assert_eq(cdi_memory_available(root, true), 1, "none left is not no limit");
    put("/proc/meminfo", "MemAvailable:     100 kB\nSwapFree:  10 kB\n");
    cr_assert_eq(cdi_memory_available(root, true), 10241);
    cr_assert_eq(cdi_memory_available(root, false), 1);
    put("/sys/fs/cgroup/a/memory.swap.max", "3000\n");
    put("/sys/fs/cgroup/a/memory.swap.current", "1000\n");
    cr_assert_eq(cdi_memory_available(root, true), 2001, "a group's limit of swap");
    put("/sys/fs/cgroup/a/b/memory.swap.max", "0\n");
    put("/sys/fs/cgroup/a/b/memory.swap.current", "0\n");
    cr_assert_leq(cdi_memory_available(root, true), 2, "no swap");
    drop_root();
}

Test(cpus, reads_the_autogroup_if_enabled)
{
    make_root();
    cr_assert_eq(cdi_cpus_autogroup(root), 0, "a kernel without them");
    put("/proc/self/autogroup", "/autogroup-79561 nice 0\n");
    put("/proc/sys/kernel/sched_autogroup_enabled", "0\n");
    cr_assert_eq(cdi_cpus_autogroup(root), 0, "switched off");
    put("/proc/sys/kernel/sched_autogroup_enabled", "1\n");
    cr_assert_eq(cdi_cpus_autogroup(root), 79561);
    put("/proc/self/autogroup", "garbage\n");
    cr_assert_eq(cdi_cpus_autogroup(root), 0);
    drop_root();
}

Test(cpus, obeys_affinity)
{
    uint64_t mask[16];

    cpu_set_t all, one;
    int first = 0;

    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
    cr_assert_eq(cdi_usable_cpus(), 1);
    cdi_cpus_affinity(mask, 16);
    for (int i = 0; i < 16 * 64; i++)
        cr_assert_eq(mask[i / 64] >> i % 64 & 1, i == first, "processor %d", i);
}
