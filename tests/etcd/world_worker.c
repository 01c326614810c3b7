/* SPDX-License-Identifier: Apache-2.0 */
/*
 *     cddprun ... world_worker DIR
 *
 * A rank that shows when it runs, and in which world. Rank 0 of a world draws its name. All ranks then take steps,
 * until a file DIR/end exists. A thread writes every 2 ms to DIR/rank-PID, for as long as the kernel lets this process
 * run:
 *
 *     NAME SIZE RANK FIRST_NS LAST_NS STEPS LAST_STEP_NS LONGEST_PAUSE_NS     (CLOCK_MONOTONIC)
 *
 * A process that was stopped for long and continued runs for some milliseconds until its agent does: LAST_NS stays, but
 * a step that it completes counts, although it had begun before the stop.
 */
#include <cddp/cddp.h>
#include <cddp/coll.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define LONG_NS 500000000

static uint64_t name;
static int size, rank, fd;
static int64_t first_ns;
static atomic_int_fast64_t steps, step_ns; /* of the last step that is complete */
static atomic_int_fast64_t pause_ns;       /* between two steps */
static atomic_bool over;

static int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void show(int64_t last_ns)
{
    char line[200];
    int n = snprintf(line, sizeof line,
                     "%016" PRIx64 " %3d %3d %20" PRId64 " %20" PRId64 " %10" PRId64 " %20" PRId64 " %20" PRId64 "\n",
                     name, size, rank, first_ns, last_ns, (int64_t)steps, (int64_t)step_ns, (int64_t)pause_ns);

    if (pwrite(fd, line, (size_t)n, 0) != n)
        _exit(3);
}

static void *show_on(void *arg)
{
    const struct timespec pause = {.tv_nsec = 2000000};

    int64_t shown_ns = now_ns(), stopped_ns = 0;

    while (!over) {
        if (now_ns() - shown_ns > LONG_NS)
            stopped_ns = shown_ns;
        shown_ns = now_ns();
        show(stopped_ns != 0 ? stopped_ns : shown_ns);
        (void)nanosleep(&pause, NULL);
    }
    return arg;
}

static _Noreturn void end(const char *what)
{
    fprintf(stderr, "world_worker: %s: %s\n", what, cddp_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    char path[4096], end_path[4096];
    uint64_t wants_end, all = 0;
    cddp_comm *comm;
    pthread_t thread;

    if (argc != 2 || cddp_init(&comm, NULL) != CDDP_OK)
        end("init");
    rank = cddp_rank(comm);
    size = cddp_world_size(comm);
    if (getrandom(&name, sizeof name, 0) != sizeof name || cddp_broadcast(comm, &name, 1, CDDP_UINT64, 0) != CDDP_OK)
        end("name");
    (void)snprintf(path, sizeof path, "%s/rank-%d", argv[1], (int)getpid());
    (void)snprintf(end_path, sizeof end_path, "%s/end", argv[1]);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    first_ns = now_ns();
    if (fd < 0 || pthread_create(&thread, NULL, show_on, NULL) != 0)
        end("cannot write");
    while (all == 0) {
        int64_t end_ns;

        wants_end = access(end_path, F_OK) == 0;
        if (cddp_all_reduce(comm, &wants_end, &all, 1, CDDP_UINT64, CDDP_SUM) != CDDP_OK)
            end("step");
        end_ns = now_ns();
        if (steps++ > 0 && end_ns - step_ns > pause_ns)
            pause_ns = end_ns - step_ns;
        step_ns = end_ns;
        (void)nanosleep(&pause, NULL);
    }
    over = true;
    (void)pthread_join(thread, NULL);
    show(now_ns());
    return cddp_finalize(comm) == CDDP_OK ? 0 : 1;
}
