/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/base/owner.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(owner);

/* Runs fn in a child, and returns the exit status. */
static int in_child(int (*what)(const struct cdi_owner *o), const struct cdi_owner *o)
{
    int status;
    pid_t child = fork();

    if (child == 0)
        _exit(what(o));
    cr_assert_eq(waitpid(child, &status, 0), child);
    return status;
}

static int is_refused(const struct cdi_owner *o)
{
    char want[128];
    struct cdi_error err;

    (void)snprintf(want, sizeof want,
                   "f: this process (pid %d) was forked from rank 3, pid %d, and only pid %d may use its thing",
                   (int)getpid(), (int)getppid(), (int)getppid());
    if (cdi_owner_is_here(o) || cdi_owner_is_surely_here(o))
        return 1;
    return cdi_owner_refuse(o, "f", "thing", &err) != CDDP_E_STATE || strcmp(err.msg, want) != 0;
}

Test(owner, rejects_a_child_but_not_its_parent)
{
    const struct cdi_owner o = cdi_owner_here(3);

    cr_assert(cdi_owner_is_here(&o));
    cr_assert(cdi_owner_is_surely_here(&o));
    cr_assert_eq(in_child(is_refused, &o), 0);
    cr_assert(cdi_owner_is_here(&o));
    cr_assert_eq(in_child(is_refused, &o), 0, "also the second one");
}

static int owns_nothing(const struct cdi_owner *o)
{
    return cdi_owner_is_here(o);
}

/* A child with its own objects: those of its parent, its own and those of its child stay separate. */
static int owns_its_own(const struct cdi_owner *o)
{
    const struct cdi_owner own = cdi_owner_here(-1);

    if (!cdi_owner_is_here(&own) || !cdi_owner_is_surely_here(&own) || cdi_owner_is_here(o))
        return 1;
    return in_child(owns_nothing, &own) != 0 || in_child(owns_nothing, o) != 0;
}

Test(owner, child_can_own_its_own_objects)
{
    const struct cdi_owner o = cdi_owner_here(0), again = cdi_owner_here(1);

    cr_assert(cdi_owner_is_here(&o) && cdi_owner_is_here(&again), "a process may own several things");
    cr_assert_eq(in_child(owns_its_own, &o), 0);
    cr_assert(cdi_owner_is_here(&o));
}

Test(owner, detects_a_child_of_vfork)
{
    const struct cdi_owner o = cdi_owner_here(0);
    volatile bool surely = true;
    int status;
    pid_t child = vfork();

    if (child == 0) {
        surely = cdi_owner_is_surely_here(&o);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_not(surely);
    cr_assert(cdi_owner_is_surely_here(&o));
}
