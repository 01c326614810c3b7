/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/base/owner.h"

#include "worker/base/last_error.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static _Atomic uint64_t without_page;
_Atomic uint64_t *cdi_owner_process = &without_page;
/* Inherited, so that a child's number differs from those of all its ancestors. */
static _Atomic uint64_t last_process;

static void owner_in_child(void)
{
    atomic_store(cdi_owner_process, 0);
    cdi_last_error_unlock();
}

static void owner_prepare(void)
{
    void *page = mmap(NULL, sizeof *cdi_owner_process, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page != MAP_FAILED) {
        (void)madvise(page, sizeof *cdi_owner_process, MADV_WIPEONFORK); /* the handler does it where this fails */
        cdi_owner_process = page;
    }
    (void)pthread_atfork(cdi_last_error_lock, cdi_last_error_unlock, owner_in_child);
}

struct cdi_owner cdi_owner_here(int rank)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, owner_prepare);
    if (atomic_load(cdi_owner_process) == 0) {
        uint64_t none = 0;

        (void)atomic_compare_exchange_strong(cdi_owner_process, &none, atomic_fetch_add(&last_process, 1) + 1);
    }
    return (struct cdi_owner){.process = atomic_load(cdi_owner_process), .pid = getpid(), .rank = rank};
}

bool cdi_owner_is_surely_here(const struct cdi_owner *o)
{
    return cdi_owner_is_here(o) && getpid() == o->pid;
}

cddp_status cdi_owner_refuse(const struct cdi_owner *o, const char *function, const char *what, struct cdi_error *err)
{
    char rank[32] = "";

    if (o->rank >= 0)
        (void)snprintf(rank, sizeof rank, "rank %d, ", o->rank);
    return cdi_fail(err, CDDP_E_STATE,
                    "%s: this process (pid %d) was forked from %spid %d, and only pid %d may use its %s", function,
                    (int)getpid(), rank, (int)o->pid, (int)o->pid, what);
}
