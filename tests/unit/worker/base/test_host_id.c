/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/base/host_id.h"

#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(host_id);

Test(host_id, is_equal_in_processes_of_one_node)
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

Test(host_id, differs_in_another_network_namespace)
{
    uint8_t before[CDI_HOST_ID], after[CDI_HOST_ID];

    cdi_host_id(before);
    if (unshare(CLONE_NEWNET) != 0)
        cr_skip_test("no right to make a network namespace");
    cdi_host_id(after);
    cr_assert_neq(memcmp(before, after, sizeof before), 0);
}
