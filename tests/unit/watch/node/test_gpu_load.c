/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU of a worker, by its environment, and its load, by a stand-in for NVIDIA's library (support/fake_nvml.c). */
#include "watch/node/gpu_load.h"

#include "common/clock.h"
#include "hygiene.h"
#include "within.h"

#include <dirent.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

CDI_SUITE(gpu_load);

static const struct cdi_gpu alike[] = {{.uuid = "GPU-aa", .model = "X"}, {.uuid = "GPU-bb", .model = "X"}};
static const struct cdi_gpu mixed[] = {{.uuid = "GPU-aa", .model = "X"}, {.uuid = "GPU-bb", .model = "Y"}};

/* Each variable ends with a bar in place of a NUL. */
static int gpu_of(const char *variables, const struct cdi_gpu *all)
{
    char text[200];
    size_t n = strlen(variables);

    memcpy(text, variables, n + 1);
    for (size_t i = 0; i < n; i++)
        text[i] = text[i] == '|' ? '\0' : text[i];
    return gpu_load_of(text, n, all, 2);
}

Test(gpu_load, visible_devices_and_local_rank_select_the_gpu)
{
    cr_assert_eq(gpu_of("LOCAL_RANK=0|", alike), 0);
    cr_assert_eq(gpu_of("A=b|LOCAL_RANK=1|", alike), 1);
    cr_assert_eq(gpu_of("CUDA_VISIBLE_DEVICES=1,0|LOCAL_RANK=0|", alike), 1);
    cr_assert_eq(gpu_of("CUDA_VISIBLE_DEVICES=GPU-bb|LOCAL_RANK=3|", alike), 1, "there is only one");
    cr_assert_eq(gpu_of("CUDA_VISIBLE_DEVICES=1|", alike), 1);
    cr_assert_eq(gpu_of("LOCAL_RANK=1", alike), 1, "the last entry lacks its end");
}

Test(gpu_load, otherwise_it_is_not_known)
{
    cr_assert_eq(gpu_of("", alike), -1);
    cr_assert_eq(gpu_of("LOCAL_RANK=2|", alike), -1);
    cr_assert_eq(gpu_of("LOCAL_RANK=x|", alike), -1);
    cr_assert_eq(gpu_of("XLOCAL_RANK=1|LOCAL_RANKS=1|", alike), -1);
    cr_assert_eq(gpu_of("CUDA_VISIBLE_DEVICES=|LOCAL_RANK=0|", alike), -1);
    cr_assert_eq(gpu_of("CUDA_VISIBLE_DEVICES=-1|LOCAL_RANK=0|", alike), -1);
    cr_assert_eq(gpu_of("CUDA_VISIBLE_DEVICES=MIG-aa|LOCAL_RANK=0|", alike), -1, "an instance");
    cr_assert_eq(gpu_of("LOCAL_RANK=0|", mixed), -1, "CUDA may begin with the faster one");
    cr_assert_eq(gpu_of("LOCAL_RANK=0|CUDA_DEVICE_ORDER=PCI_BUS_ID|", mixed), 0);
    cr_assert_eq(gpu_of("LOCAL_RANK=0|CUDA_VISIBLE_DEVICES= GPU-bb,GPU-aa|", mixed), 1);
}

/* A worker that sleeps. */
static pid_t spawn(const char *visible, const char *local_rank)
{
    char *const argv[] = {"sleep", "100", NULL};
    char *const env[] = {(char *)(uintptr_t)visible, (char *)(uintptr_t)local_rank, NULL};
    pid_t pid;

    cr_assert_eq(posix_spawn(&pid, "/bin/sleep", NULL, NULL, argv, env), 0);
    return pid;
}

static void end(const pid_t *pids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(kill(pids[i], SIGKILL), 0);
        cr_assert_eq(waitpid(pids[i], NULL, 0), pids[i]);
    }
}

static size_t threads(void)
{
    DIR *d = opendir("/proc/self/task");
    size_t n = 0;

    cr_assert_not_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

static size_t threads_before;

static struct gpu_load *create(size_t n, const char *library)
{
    struct gpu_load *g;

    threads_before = threads();
    cr_assert_eq(gpu_load_create(&g, n, library), CDDP_OK);
    return g;
}

/* Until the thread that reads is over. */
static void wait_for_thread(void)
{
    int64_t until = cdi_now_ms() + 60000;

    while (threads() > threads_before && cdi_now_ms() < until)
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    cr_assert_eq(threads(), threads_before);
}

/* Looks until there is an answer: a busy machine may take longer than the first look waits. */
static void look(struct gpu_load *g, const pid_t *pids, struct cdi_rank_report *ranks, size_t n)
{
    int64_t until = cdi_now_ms() + 60000;

    do {
        gpu_load_look(g, pids, ranks, n);
        wait_for_thread();
    } while (ranks[0].gpu_permille < 0 && cdi_now_ms() < until);
}

Test(gpu_load, each_rank_gets_its_gpu)
{
    const pid_t pids[] = {spawn("CUDA_VISIBLE_DEVICES=1,0", "LOCAL_RANK=0"), spawn("X=1", "LOCAL_RANK=0"),
                          spawn("X=1", "LOCAL_RANK=2"), spawn("X=1", "LOCAL_RANK=3"), spawn("X=1", "LOCAL_RANK=4")};
    struct cdi_rank_report ranks[6] = {{.rank = 0}};
    pid_t with_none[6] = {0};
    struct gpu_load *g;

    memcpy(with_none, pids, sizeof pids);
    g = create(6, CDI_TEST_NVML);
    look(g, with_none, ranks, 6);
    cr_assert(ranks[0].gpu_permille == 900 && ranks[0].gpu_used_bytes >> 30 == 12);
    cr_assert(ranks[0].gpu_total_bytes >> 30 == 80);
    cr_assert(ranks[1].gpu_permille == 800 && ranks[1].gpu_used_bytes >> 30 == 11);
    cr_assert(ranks[2].gpu_permille == -1 && ranks[2].gpu_total_bytes == 0, "it is divided into instances");
    cr_assert(ranks[3].gpu_permille == -1 && ranks[3].gpu_used_bytes >> 30 == 14, "its load is not supported");
    cr_assert(ranks[4].gpu_permille == -1 && ranks[4].gpu_total_bytes == 0, "CUDA shows four");
    cr_assert(ranks[5].gpu_permille == -1 && ranks[5].gpu_total_bytes == 0, "no process");
    end(pids, 5);
    gpu_load_look(g, with_none, ranks, 6);
    wait_for_thread();
    gpu_load_look(g, with_none, ranks, 6);
    cr_assert_eq(ranks[0].gpu_permille, -1, "its process is gone");
    wait_for_thread();
    gpu_load_destroy(g);
}

Test(gpu_load, without_the_library_nothing_is_known)
{
    const pid_t pid = getpid();
    struct cdi_rank_report r = {.rank = 0};
    struct gpu_load *g;

    g = create(1, "libcddp-no-such-library.so.1");
    for (int i = 0; i < 3; i++) {
        gpu_load_look(g, &pid, &r, 1);
        cr_assert(r.gpu_permille == -1 && r.gpu_total_bytes == 0);
    }
    wait_for_thread();
    gpu_load_destroy(g);
}

/* A lost GPU: the report waits for a moment, and only once; the answer is for a later one. */
Test(gpu_load, driver_that_hangs_holds_nothing_up)
{
    const pid_t pid = spawn("X=1", "LOCAL_RANK=0");
    struct cdi_rank_report r = {.rank = 0};
    struct gpu_load *g;
    int64_t begun_ms = cdi_now_ms();

    cr_assert_eq(setenv("FAKE_NVML_BLOCK_MS", "1500", 1), 0);
    g = create(1, CDI_TEST_NVML);
    for (int i = 0; i < 100; i++) {
        gpu_load_look(g, &pid, &r, 1);
        if (cdi_now_ms() - begun_ms < 1500)
            cr_assert_eq(r.gpu_permille, -1);
    }
    cr_assert_lt(cdi_now_ms() - begun_ms, cdi_within_ms(1000));
    wait_for_thread();
    gpu_load_look(g, &pid, &r, 1);
    cr_assert_eq(r.gpu_permille, 800, "the earlier answer is still valid");
    gpu_load_destroy(g); /* while the thread reads: it frees the rest */
    wait_for_thread();
    end(&pid, 1);
}
