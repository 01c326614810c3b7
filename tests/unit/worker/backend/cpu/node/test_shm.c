/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cpus.h"
#include "hygiene.h"
#include "worker/backend/cpu/node/shm.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(shm);

#define MIB ((size_t)1 << 20)

static const struct cdi_mapper plain_mmap = {.map = NULL};

/* Returns the KiB of a kind ("Rss") of the mapping at p. */
static long smaps_kib(const void *p, const char *kind)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    bool here = false;
    char line[512], name[64], word[64];
    long kib = -1, value;

    (void)snprintf(name, sizeof name, "%s:", kind);
    cr_assert_not_null(f);
    while (kib < 0 && fgets(line, sizeof line, f) != NULL) {
        uintptr_t first, end;

        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &end) == 2)
            here = first == (uintptr_t)p;
        else if (here && sscanf(line, "%63s %ld", word, &value) == 2 && strcmp(word, name) == 0)
            kib = value;
    }
    (void)fclose(f);
    return kib;
}

/* Can this kernel make a huge page of shared memory now? Checked without the code under test. */
static bool huge_pages_work(void)
{
    int fd = memfd_create("probe", MFD_CLOEXEC);
    uint8_t *p = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *at;
    bool works = false;

    cr_assert(fd >= 0 && p != MAP_FAILED && ftruncate(fd, 4 * MIB) == 0);
    at = p + -(uintptr_t)p % (2 * MIB); /* the offset in the file must be aligned, too */
    if (mmap(at, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at) {
        memset(at, 1, 2 * MIB);
        works = madvise(at, 2 * MIB, 25 /* MADV_COLLAPSE */) == 0;
    }
    (void)munmap(p, 4 * MIB);
    (void)close(fd);
    return works;
}

Test(shm, memory_is_allocated_zeroed_with_requested_size)
{
    const size_t sizes[] = {4096, 2 * MIB - 4096, 2 * MIB, 2 * MIB + 4096, 5 * MIB};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct stat sb;
        uint8_t *p;
        void *mapped;
        int fd;

        cr_assert_eq(cdi_shm_memfd("test", sizes[i], true, &fd, NULL), CDDP_OK);
        cr_assert_eq(fstat(fd, &sb), 0);
        cr_assert_eq(sb.st_size, (off_t)sizes[i]);
        cr_assert_eq((size_t)sb.st_blocks * 512, sizes[i], "no byte may be missing when it is touched");
        cr_assert_eq(cdi_shm_map(&plain_mmap, fd, sizes[i], &mapped, NULL), CDDP_OK);
        p = mapped;
        for (size_t k = 0; k < sizes[i]; k++)
            cr_assert_eq(p[k], 0, "byte %zu of %zu", k, sizes[i]);
        memset(p, 0x5a, sizes[i]);
        cdi_shm_unmap(&plain_mmap, p, sizes[i]);
        (void)close(fd);
    }
}

Test(shm, large_memory_uses_huge_pages)
{
    void *p, *second;
    int fd;

    if (!huge_pages_work())
        cr_skip("this kernel gives no huge pages of shared memory");
    cr_assert_eq(cdi_shm_memfd("test", 5 * MIB, true, &fd, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain_mmap, fd, 5 * MIB, &p, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain_mmap, fd, 5 * MIB, &second, NULL), CDDP_OK, "as a peer does");
    memset(p, 1, 5 * MIB);
    cr_assert_eq(memcmp(p, second, 5 * MIB), 0);
    cr_assert_eq(smaps_kib(p, "ShmemPmdMapped"), 4096);
    cr_assert_eq(smaps_kib(second, "ShmemPmdMapped"), 4096);
    cdi_shm_unmap(&plain_mmap, p, 5 * MIB);
    cdi_shm_unmap(&plain_mmap, second, 5 * MIB);
    (void)close(fd);
}

Test(shm, pages_are_mapped_one_by_one)
{
    uint64_t mapped[1] = {0};
    void *p, *second;
    int fd;

    cr_assert_geq(cdi_shm_page_words(64 * 4096), 1);
    cr_assert_eq(cdi_shm_memfd("test", 64 * 4096, false, &fd, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain_mmap, fd, 64 * 4096, &p, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain_mmap, fd, 64 * 4096, &second, NULL), CDDP_OK, "as a peer does");
    cr_assert_eq(smaps_kib(second, "Rss"), 0, "allocating maps nothing");
    memset(p, 1, 64 * 4096); /* only pages with data are mapped beside others */
    if (madvise(second, 4096, 23 /* MADV_POPULATE_WRITE */) != 0)
        cr_skip("this kernel cannot map single pages");
    cdi_shm_map_pages(mapped, second, 20 * 4096 + 100, 0);
    cr_assert_eq(mapped[0], 0, "no bytes, no pages");
    cdi_shm_map_pages(mapped, second, 20 * 4096 + 100, 200);
    cdi_shm_map_pages(mapped, second, 41 * 4096 - 1, 2);
    cdi_shm_map_pages(mapped, second, 39 * 4096, 3 * 4096);
    cdi_shm_map_pages(mapped, second, 63 * 4096, 4096);
    cr_assert_eq(mapped[0], UINT64_C(1) << 20 | UINT64_C(7) << 39 | UINT64_C(1) << 63);
    for (int k = 20; k < 64; k = k == 20 ? 39 : k == 41 ? 63 : k + 1)
        cr_assert_eq(((uint8_t *)second)[k * 4096], 1, "page %d", k);
    if (smaps_kib(p, "Rss") == 64 * 4)
        cr_assert_eq(smaps_kib(second, "Rss"), 6 * 4, "the first page, too");
    cdi_shm_unmap(&plain_mmap, p, 64 * 4096);
    cdi_shm_unmap(&plain_mmap, second, 64 * 4096);
    (void)close(fd);
}

/* Beyond this limit the kernel kills by SIGXFSZ, also for memory without a name. */
Test(shm, limit_of_file_sizes_is_an_error)
{
    struct rlimit most;
    struct cdi_error err;
    int fd;

    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &most), 0);
    most.rlim_cur = MIB;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
    for (int huge = 0; huge < 2; huge++) {
        cr_assert_eq(cdi_shm_memfd("test", 5 * MIB, huge != 0, &fd, &err), CDDP_E_NOMEM);
        cr_assert_not_null(strstr(err.msg, "ulimit -f"), "%s", err.msg);
    }
    cr_assert_eq(cdi_shm_memfd("test", MIB, false, &fd, &err), CDDP_OK, "%s", err.msg);
    (void)close(fd);
}

/* The limit of file sizes keeps a mistake here from taking the machine's memory. */
Test(shm, more_memory_than_available_is_an_error_before_any_is_taken)
{
    struct rlimit most;
    struct cdi_error err;
    int fd;

    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &most), 0);
    most.rlim_cur = 64 * MIB;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &most), 0);
    for (int huge = 0; huge < 2; huge++) {
        cr_assert_eq(cdi_shm_memfd("test", (size_t)1 << 45, huge != 0, &fd, &err), CDDP_E_NOMEM);
        cr_assert_eq(err.status, CDDP_E_NOMEM);
        cr_assert_not_null(strstr(err.msg, "cannot allocate 35184372088832 bytes"), "%s", err.msg);
        cr_assert_not_null(strstr(err.msg, "bytes of memory are available"), "%s", err.msg);
    }
}

Test(shm, large_worlds_have_huge_pages_in_large_shares_only)
{
    cr_assert(cdi_shm_suits_huge(2, 5 * MIB));
    cr_assert(cdi_shm_suits_huge(8, 5 * MIB));
    cr_assert_not(cdi_shm_suits_huge(64, 64 * MIB));
    cr_assert(cdi_shm_suits_huge(64, 64 * 4 * MIB));
}

Test(shm, rejects_memfd_that_can_shrink)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct cdi_error err;
    void *p;

    cr_assert_eq(ftruncate(fd, 4096), 0);
    cr_assert_eq(cdi_shm_map(&plain_mmap, fd, 4096, &p, &err), CDDP_E_PROTOCOL);
    (void)close(fd);
}

/* Returns the first two processors that this test may use; both are equal if there is only one. */
static void two_processors(int cpu[2])
{
    uint64_t mask[CDI_SHM_CPU_WORDS];
    int n = 0;

    cdi_cpus_affinity(mask, CDI_SHM_CPU_WORDS);
    for (int i = 0; i < CDI_SHM_CPU_WORDS * 64 && n < 2; i++)
        if (mask[i / 64] >> i % 64 & 1)
            cpu[n++] = i;
    cr_assert_gt(n, 0);
    if (n == 1)
        cpu[1] = cpu[0];
}

static void bind_to(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    cr_assert_eq(sched_setaffinity(0, sizeof set, &set), 0);
}

/* Two ranks of one segment, each bound to a processor: returns how many processors they have. */
static int usable_by(int first, int second)
{
    struct cdi_shm *a, *b;
    void *mem;
    int fd, n;

    cr_assert_eq(cdi_shm_memfd("test", cdi_shm_bytes(2, false), true, &fd, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain_mmap, fd, cdi_shm_bytes(2, false), &mem, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_create(&a, 0, 2, 0, false, NULL, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_create(&b, 1, 2, 0, false, NULL, NULL), CDDP_OK);
    bind_to(first);
    cdi_shm_format(a, mem);
    cr_assert_eq(cdi_shm_map(&plain_mmap, fd, cdi_shm_bytes(2, false), &mem, NULL), CDDP_OK);
    bind_to(second);
    cr_assert_eq(cdi_shm_adopt(b, mem, NULL), CDDP_OK);
    n = cdi_shm_usable_cpus(a);
    cr_assert_eq(cdi_shm_usable_cpus(b), n);
    cdi_shm_destroy(b);
    cdi_shm_destroy(a);
    (void)close(fd);
    return n;
}

Test(shm, ranks_bound_to_one_processor_each_have_two)
{
    int cpu[2], quota = cdi_cpus_quota("");

    two_processors(cpu);
    cr_assert_eq(usable_by(cpu[0], cpu[0]), 1);
    if (cpu[0] == cpu[1] || quota == 1)
        cr_skip("this test may use one processor only");
    cr_assert_eq(usable_by(cpu[0], cpu[1]), 2);
}

/* Returns rank 0 of a segment for two, which is the caller's, and the segment's descriptor. */
static struct cdi_shm *rank_0_of_two(int *fd)
{
    struct cdi_shm *s;
    void *mem;

    cr_assert_eq(cdi_shm_memfd("test", cdi_shm_bytes(2, false), true, fd, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_map(&plain_mmap, *fd, cdi_shm_bytes(2, false), &mem, NULL), CDDP_OK);
    cr_assert_eq(cdi_shm_create(&s, 0, 2, 0, false, NULL, NULL), CDDP_OK);
    cdi_shm_format(s, mem);
    return s;
}

Test(shm, ranks_in_separate_scheduler_groups_do_not_yield)
{
    int fd;
    struct cdi_shm *s = rank_0_of_two(&fd);

    atomic_store(&s->ranks[1].autogroup, atomic_load(&s->ranks[0].autogroup));
    cr_assert(cdi_shm_can_yield(s));
    atomic_store(&s->ranks[1].autogroup, atomic_load(&s->ranks[0].autogroup) + 1);
    cr_assert_not(cdi_shm_can_yield(s));
    cdi_shm_destroy(s);
    (void)close(fd);
}

Test(shm, death_is_seen_in_a_container_with_equal_pids)
{
    int fd;
    struct cdi_shm *s = rank_0_of_two(&fd);

    cdi_shm_hold(s, fd);
    atomic_store(&s->ranks[1].holds, 1); /* nobody has its lock */
    atomic_store(&s->ranks[1].pid, getpid());
    atomic_store(&s->ranks[1].process, atomic_load(&s->ranks[0].process));
    cr_assert_not(cdi_shm_has_died(s, 1), "a thread of this process");
    atomic_store(&s->ranks[1].process, atomic_load(&s->ranks[0].process) + 1);
    cr_assert(cdi_shm_has_died(s, 1));
    cdi_shm_destroy(s);
}
