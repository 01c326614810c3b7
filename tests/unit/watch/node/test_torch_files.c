/* SPDX-License-Identifier: Apache-2.0 */
/* Which dump of PyTorch's recorder belongs to a worker: a child that only has the variables. */
#include "common/clock.h"
#include "hygiene.h"
#include "watch/node/torch_files.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(torch_files);

static char folder[64], said[128], dump_path[128], pipe_path[128];
static struct torch_rank rank;
static atomic_bool stopping;

/* Writes the dump, with a time so many seconds after the start of the worker. */
static void write_dump(double after_s)
{
    const double at = (double)rank.started_wall_ms / 1000 + after_s;
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {.tv_sec = (time_t)at, .tv_nsec = (long)((at - (double)(time_t)at) * 1e9)}};
    FILE *f = fopen(dump_path, "we");

    cr_assert_not_null(f);
    (void)fclose(f);
    cr_assert_eq(utimensat(AT_FDCWD, dump_path, times, 0), 0);
}

/* Starts the worker as rank 5: by the agent's clock, so many seconds ago. */
static void begin(double ago_s)
{
    char file[160], pipe[160];
    int ends[2];
    char byte;

    (void)snprintf(folder, sizeof folder, "/tmp/torch_files.XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(said, sizeof said, "%s/trace_", folder);
    (void)snprintf(dump_path, sizeof dump_path, "%s/trace_5", folder);
    (void)snprintf(pipe_path, sizeof pipe_path, "%s/pipe_5.pipe", folder);
    (void)snprintf(file, sizeof file, "TORCH_FR_DUMP_TEMP_FILE=%s/trace_", folder);
    (void)snprintf(pipe, sizeof pipe, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=%s/pipe_", folder);
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    rank = (struct torch_rank){.rank = 5, .pid = fork(), .started_wall_ms = cdi_wall_ms() - (int64_t)(ago_s * 1000)};
    if (rank.pid == 0) {
        char *const args[] = {(char *)"sleep", (char *)"1000", NULL}, *const env[] = {file, pipe, NULL};

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execve("/bin/sleep", args, env);
        _exit(127);
    }
    (void)close(ends[1]);
    cr_assert_eq(read(ends[0], &byte, 1), 0, "it has its variables from exec on");
    (void)close(ends[0]);
}

static void end(void)
{
    cr_assert_eq(kill(rank.pid, SIGKILL), 0);
    cr_assert_eq(waitpid(rank.pid, NULL, 0), rank.pid);
    (void)unlink(dump_path);
    (void)unlink(pipe_path);
    cr_assert_eq(rmdir(folder), 0);
}

Test(torch_files, a_dump_of_an_earlier_worker_is_not_taken)
{
    begin(0);
    cr_assert_not(torch_files_find(&rank, 1, 0, &stopping), "the pipe for the question is missing");
    cr_assert_str_eq(rank.dump, "");
    write_dump(-0.02);
    (void)torch_files_find(&rank, 1, 0, &stopping);
    cr_assert_str_eq(rank.dump, "", "the round before ended just before this one began");
    write_dump(0.02);
    (void)torch_files_find(&rank, 1, 0, &stopping);
    cr_assert_str_eq(rank.dump, said);
    end();
}

Test(torch_files, the_time_of_the_entry_in_proc_does_not_matter)
{
    begin(60); /* the entry is made now, as for a worker whose entry the kernel has dropped meanwhile */
    write_dump(30);
    (void)torch_files_find(&rank, 1, 0, &stopping);
    cr_assert_str_eq(rank.dump, said);
    end();
}

/* What the worker does when it is asked; the file server's clock is an hour late. */
static void *answer(void *arg)
{
    char bytes[8];

    cr_assert_gt(read(*(int *)arg, bytes, sizeof bytes), 0);
    write_dump(-3600);
    return NULL;
}

Test(torch_files, a_dump_that_was_asked_for_may_have_any_time)
{
    char question[8];
    pthread_t thread;
    int fd;

    begin(0);
    cr_assert_eq(mkfifo(pipe_path, 0600), 0);
    fd = open(pipe_path, O_RDWR | O_CLOEXEC);
    write_dump(-7200);
    cr_assert(torch_files_find(&rank, 1, 50, &stopping));
    cr_assert_str_eq(rank.dump, "", "the old one stays what it is");
    cr_assert_eq(read(fd, question, sizeof question), 2);
    cr_assert_eq(pthread_create(&thread, NULL, answer, &fd), 0);
    cr_assert(torch_files_find(&rank, 1, 15000, &stopping));
    (void)pthread_join(thread, NULL);
    cr_assert_str_eq(rank.dump, said);
    (void)close(fd);
    end();
}
