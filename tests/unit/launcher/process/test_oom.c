/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/process/oom.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(oom);

static char root[64];

/* Writes a file below root, and creates its directories. */
static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = strchr(full + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        *p = '\0';
        (void)mkdir(full, 0700);
        *p = '/';
    }
    f = fopen(full, "we");
    cr_assert_not_null(f, "%s", full);
    (void)fputs(text, f);
    (void)fclose(f);
}

static void make_root(void)
{
    (void)snprintf(root, sizeof root, "/tmp/cdi-oom-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
}

static int drop(const char *path, const struct stat *sb, int type, struct FTW *where)
{
    (void)sb;
    (void)type;
    (void)where;
    return remove(path);
}

static void remove_root(void)
{
    (void)nftw(root, drop, 8, FTW_DEPTH | FTW_PHYS);
}

/* Returns the explanation after path's text has become `after`; "": none. */
static const char *said(const char *path, const char *after)
{
    static char text[200];
    struct oom_count before = oom_look(root);

    put(path, after);
    text[0] = '\0';
    (void)oom_explain(root, &before, text, sizeof text);
    return text;
}

Test(oom, reads_cgroup_v2_and_least_limit_above)
{
    static const char path[] = "/sys/fs/cgroup/job/step/memory.events";

    make_root();
    put("/proc/self/cgroup", "0::/job/step\n");
    put(path, "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n");
    put("/sys/fs/cgroup/job/step/memory.max", "max\n");
    put("/sys/fs/cgroup/job/memory.max", "2147483648\n");
    cr_assert_str_eq(said(path, "max 3\noom 1\noom_kill 1\n"), "");
    cr_assert_str_eq(said(path, "max 9\noom 2\noom_kill 2\n"),
                     "the kernel killed it: out of memory (the limit of its memory cgroup is 2.0 GiB)");
    put("/sys/fs/cgroup/job/step/memory.max", "104857600\n");
    cr_assert_str_eq(said(path, "oom_kill 5\n"),
                     "the kernel killed it: out of memory (the limit of its memory cgroup is 100 MiB)");
    remove_root();
}

Test(oom, reads_cgroup_v1_beside_empty_v2)
{
    static const char path[] = "/sys/fs/cgroup/memory/slurm/job_7/memory.oom_control";

    make_root();
    put("/proc/self/cgroup", "9:name=systemd:/\n4:cpuacct,memory:/slurm/job_7\n3:memory_not:/x\n0::/\n");
    put(path, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
    put("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "9223372036854771712\n");
    cr_assert_str_eq(said(path, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
                     "the kernel killed it: out of memory");
    put("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "1073741824\n");
    cr_assert_str_eq(said(path, "oom_kill 2\n"),
                     "the kernel killed it: out of memory (the limit of its memory cgroup is 1.0 GiB)");
    remove_root();
}

Test(oom, reads_files_at_top_in_container)
{
    static const char path[] = "/sys/fs/cgroup/memory.events";

    make_root();
    put("/proc/self/cgroup", "0::/../../docker/abc\n");
    put(path, "oom_kill 0\n");
    put("/sys/fs/cgroup/memory.max", "536870912\n");
    cr_assert_str_eq(said(path, "oom_kill 1\n"),
                     "the kernel killed it: out of memory (the limit of its memory cgroup is 512 MiB)");
    remove_root();
}

Test(oom, counts_whole_node_without_memory_cgroup)
{
    make_root();
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/vmstat", "nr_free_pages 7\noom_kill 4\npgfault 9\n");
    cr_assert_str_eq(said("/proc/vmstat", "nr_free_pages 7\noom_kill 4\n"), "");
    cr_assert_str_eq(said("/proc/vmstat", "nr_free_pages 7\noom_kill 5\n"),
                     "the kernel has just killed a process on this node because it was out of memory");
    remove_root();
}

Test(oom, ignores_invalid_files)
{
    static const char *const texts[] = {"",          ":",  "4",   "4:",   "4:memory",
                                        "4:memory:", "::", "0::", "\n\n", "4:memory:x\n0::y"};

    make_root();
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        put("/proc/self/cgroup", texts[i]);
        cr_assert_eq(oom_look(root).kills, -1, "%s", texts[i]);
        cr_assert_str_eq(said("/proc/self/cgroup", texts[i]), "");
    }
    remove_root();
}
