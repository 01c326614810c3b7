/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory each of many ranks of a node is charged with, after a barrier, a small and a large all-reduce, the
 * last one both of a rank's own memory and of shared memory. Started by cddprun. Sites that count RSS charge a shared
 * page to every rank that has it mapped.
 */
#include "rank_check.h"

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#define COUNT ((size_t)1 << 18) /* 1 MiB */
#define OWN_KIB (4 * 1024)      /* the program's own arrays and what the library keeps of them */
/* Of 64 ranks' segment, which has 54 MiB. It was 57 MiB in every rank when all of it was mapped everywhere. */
#define MOST_RSS_KIB (OWN_KIB + 6 * 1024)
#define MOST_PSS_KIB (OWN_KIB + 2 * 1024)
#define SKIPPED 77

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

static int rank;

static long rollup_kib(const char *name)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long kib = -1;

    CHECK(f != NULL, "no smaps_rollup");
    while (kib < 0 && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            (void)sscanf(line + strlen(name), "%ld", &kib);
    (void)fclose(f);
    CHECK(kib >= 0, "no %s", name);
    return kib;
}

/* Does this kernel map shared memory page by page? Not an old one, nor one that makes all of it huge pages. */
static bool maps_single_pages(void)
{
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "r");
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool works = p != MAP_FAILED && madvise(p, 4096, MADV_POPULATE_WRITE) == 0;
    char how[256] = "";

    if (f != NULL) {
        (void)fgets(how, sizeof how, f);
        (void)fclose(f);
    }
    (void)munmap(p, 4096);
    return works && strstr(how, "[always]") == NULL && strstr(how, "[within_size]") == NULL &&
           strstr(how, "[force]") == NULL;
}

static void add_up(cddp_comm *comm, float *x)
{
    int n = cddp_world_size(comm);

    for (size_t i = 0; i < COUNT; i++)
        x[i] = (float)rank;
    CHECK(cddp_all_reduce(comm, x, x, COUNT, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK, "large");
    for (size_t i = 0; i < COUNT; i++)
        CHECK(x[i] == (float)(n * (n - 1) / 2), "element %zu is %g", i, (double)x[i]);
}

int main(void)
{
    const char *kinds[2] = {"Rss:", "Pss:"};
    int64_t before[2], grown[2], most[2];
    float one = 1, *own, *shared;
    cddp_comm *comm;
    void *memory;

    if (!maps_single_pages())
        return SKIPPED;
    for (int k = 0; k < 2; k++)
        before[k] = rollup_kib(kinds[k]);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK, "init");
    rank = cddp_rank(comm);
    CHECK(cddp_barrier(comm) == CDDP_OK, "barrier");
    CHECK(cddp_all_reduce(comm, &one, &one, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK, "small");
    CHECK(one == (float)cddp_world_size(comm), "the sum is %g", (double)one);
    own = malloc(COUNT * sizeof *own);
    CHECK(own != NULL, "out of memory");
    CHECK(cddp_alloc(comm, COUNT * sizeof *shared, CDDP_MEM_COLLECTIVE, &memory) == CDDP_OK, "alloc");
    shared = memory;
    add_up(comm, own);
    add_up(comm, shared);
    for (int k = 0; k < 2; k++)
        grown[k] = rollup_kib(kinds[k]) - before[k];
    CHECK(cddp_all_reduce(comm, grown, most, 2, CDDP_INT64, CDDP_MAX) == CDDP_OK, "comparing");
    if (rank == 0)
        printf("RSS grew by %lld KiB, PSS by %lld KiB at most\n", (long long)most[0], (long long)most[1]);
    CHECK(grown[0] <= MOST_RSS_KIB, "RSS grew by %lld KiB", (long long)grown[0]);
    CHECK(grown[1] <= MOST_PSS_KIB, "PSS grew by %lld KiB", (long long)grown[1]);
    cddp_free(comm, memory);
    free(own);
    CHECK(cddp_finalize(comm) == CDDP_OK, "finalize");
    return 0;
}
