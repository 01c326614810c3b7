/* SPDX-License-Identifier: Apache-2.0 */
/* One rank runs out of memory: each allocation of cddp_comm_split fails once. */
#include "hygiene.h"
#include "world.h"

#define MOST 32

CDI_SUITE(parts_memory);

void *__real_calloc(size_t n, size_t size); /* NOLINT(bugprone-reserved-identifier): the linker's name */
void *__wrap_calloc(size_t n, size_t size); /* NOLINT(bugprone-reserved-identifier) */

static _Atomic int until_failure; /* calls, including the failing one; 0: none fails */

void *__wrap_calloc(size_t n, size_t size) /* NOLINT(bugprone-reserved-identifier) */
{
    if (until_failure > 0 && --until_failure == 0)
        return NULL;
    return __real_calloc(n, size);
}

static int nth; /* call that fails on rank 0 */

static int splits(int rank)
{
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *part = NULL;
    cddp_status st;
    int files, left;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    files = hygiene_count_fds();
    until_failure = rank == 0 ? nth : 0;
    st = cddp_comm_split(&part, comm, 0, 0, NULL);
    left = until_failure;
    until_failure = 0;
    if (rank == 0) {
        CHECK(st == (left > 0 ? CDDP_OK : CDDP_E_NOMEM) && (part != NULL) == (left > 0));
        CHECK((left > 0 || hygiene_count_fds() == files) && (left == 0 || nth > 1));
    } else if (st == CDDP_OK && cddp_barrier(part) != CDDP_OK) { /* rank 0 has none, and reports it */
        cddp_last_error_info(&info);
        CHECK(info.status == CDDP_E_PEER && info.rank == 0 && strstr(info.message, "has left") != NULL);
    }
    if (rank == 0 && left > 0)
        CHECK(cddp_barrier(part) == CDDP_OK);
    if (part != NULL)
        (void)cddp_finalize(part);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts_memory, out_of_memory_leaks_nothing_and_ends_waits)
{
    int bad = 0;

    for (nth = 1; nth <= MOST && bad == 0; nth++)
        bad = run_world(2, splits);
    cr_assert_eq(bad, 0, "allocation %d", nth - 1);
}
