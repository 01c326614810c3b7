/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/plan/machine.h"

#include <ftw.h>
#include <string.h>
#include <sys/stat.h>

CDI_SUITE(machine);

static int remove_entry(const char *path, const struct stat *sb, int type, struct FTW *where)
{
    (void)sb, (void)type, (void)where;
    return remove(path);
}

static void make_dirs(const char *root, const char *path)
{
    char full[512];

    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(full, 0700);
            *p = '/';
        }
    }
    (void)mkdir(full, 0700);
}

Test(machine, counts_gpus_from_files)
{
    char root[] = "/tmp/cdi-machine-XXXXXX";
    struct machine m;

    cr_assert_not_null(mkdtemp(root));
    machine_read(&m, root, NULL);
    cr_assert_eq(m.n_gpus, 0);
    cr_assert_geq(m.n_cores, 1);
    cr_assert_neq(m.host[0], '\0');
    make_dirs(root, "/proc/driver/nvidia/gpus/0000:01:00.0");
    make_dirs(root, "/proc/driver/nvidia/gpus/0000:02:00.0");
    make_dirs(root, "/proc/driver/nvidia/gpus/0000:03:00.0");
    machine_read(&m, root, NULL);
    cr_assert_eq(m.n_gpus, 3);
    make_dirs(root, "/dev/nvidia0");
    make_dirs(root, "/dev/nvidia2");
    make_dirs(root, "/dev/nvidiactl");
    make_dirs(root, "/dev/nvidia-uvm");
    machine_read(&m, root, NULL);
    cr_assert_eq(m.n_gpus, 2, "a container has nodes for its own devices only");
    machine_read(&m, root, "1");
    cr_assert_eq(m.n_gpus, 1);
    cr_assert_eq(nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}
