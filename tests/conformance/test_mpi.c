/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite over MPI, in TAP. test_mpi RANKS LAUNCHER... starts this program again by LAUNCHER, with the
 * number of ranks, as the ranks. They run all cases in one job, except that each case with a death has a separate job.
 * Ranks and parent share the board, which is a memfd of the parent.
 */
#include "common/clock.h"
#include "conformance.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASE_S 60
#define JOB_MS 200000
#define SURVIVORS_MS 10000
#define CASES_MAX 64
#define NOT_RUN (-1)
#define SELF_WORDS 5 /* this program --rank BOARD RANKS CASE */

struct job {
    struct ranks_board board;
    _Atomic int arrived, generation;
    _Atomic int result[CASES_MAX][RANKS_MAX];
};

/* ---------------------------------------------------------------------------------------------------- a rank ---- */

static void meet(struct job *j, int n)
{
    int generation = atomic_load(&j->generation);

    if (atomic_fetch_add(&j->arrived, 1) + 1 == n) {
        memset(&j->board, 0, sizeof j->board); /* no other process uses it now */
        ranks_board_init(&j->board);
        atomic_store(&j->arrived, 0);
        atomic_store(&j->generation, generation + 1);
        return;
    }
    while (atomic_load(&j->generation) == generation)
        (void)usleep(100);
}

static void go_through_cases(struct job *j, int rank, int n, int only)
{
    const struct ranks_layout l = {.name = "mpi", .node_size = {n}, .module = "mpi"};

    for (int i = 0; i < (int)conformance_n_cases; i++) {
        const struct conformance_case *c = &conformance_cases[i];

        if (n < c->min_ranks || (only >= 0 ? i != only : c->dies >= 0))
            continue;
        (void)alarm(CASE_S);
        meet(j, n);
        atomic_store(&j->result[i][rank], ranks_run_here(rank, &l, CASE_S, &j->board, c->fn));
        if (only < 0)
            meet(j, n);
    }
}

/* Hydra kills the process groups of its other processes when one dies: the rank is a child in a separate group. */
static void step_aside(void)
{
    pid_t pid = fork();
    int status = 0;

    if (pid == 0) {
        (void)setpgid(0, 0);
        return;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        (void)raise(WTERMSIG(status));
    _exit(WEXITSTATUS(status));
}

/* argv: the path of the board, the number of ranks, the case or -1 for all cases without a death */
static int be_a_rank(char **argv)
{
    const char *open_mpi = getenv("OMPI_COMM_WORLD_RANK"), *text = open_mpi != NULL ? open_mpi : getenv("PMI_RANK");
    int fd = open(argv[0], O_RDWR), only = atoi(argv[2]);
    struct job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (j == MAP_FAILED || text == NULL)
        return 2;
    (void)close(fd);
    if (open_mpi == NULL && only >= 0)
        step_aside();
    go_through_cases(j, atoi(text), atoi(argv[1]), only);
    return 0;
}

/* ----------------------------------------------------------------------------------------------- the starter ---- */

/* Runs one job of the launcher; kills it, with all its processes, if it takes too long. */
static void run_job(char **launcher, int n_words, int fd, char *ranks, int only)
{
    char board[64], which[16], self[PATH_MAX], mark[] = "--rank";
    char **argv = calloc((size_t)n_words + SELF_WORDS + 1, sizeof *argv);
    int64_t deadline_ms = cdi_now_ms() + JOB_MS;
    pid_t pid;
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);

    self[len > 0 ? len : 0] = '\0';
    (void)snprintf(board, sizeof board, "/proc/%d/fd/%d", (int)getpid(), fd);
    (void)snprintf(which, sizeof which, "%d", only);
    memcpy(argv, launcher, (size_t)n_words * sizeof *argv);
    memcpy(argv + n_words, (char *[]){self, mark, board, ranks, which}, SELF_WORDS * sizeof *argv);
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)setpgid(0, 0);
        (void)dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout of this program is TAP */
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (cdi_now_ms() > deadline_ms) {
            (void)kill(-pid, SIGTERM);
            (void)usleep(1000000);
            (void)kill(-pid, SIGKILL);
            deadline_ms = INT64_MAX;
        }
        (void)usleep(2000);
    }
    free(argv);
}

static int judge(const struct job *j, int i, int n)
{
    for (int r = 0; r < n; r++)
        if (atomic_load(&j->result[i][r]) != (r == conformance_cases[i].dies ? NOT_RUN : 0))
            return 0;
    return 1;
}

/* Hydra may end before the survivors do. */
static void await_survivors(const struct job *j, int i, int n)
{
    int64_t deadline_ms = cdi_now_ms() + SURVIVORS_MS;

    for (int r = 0; r < n && i >= 0; r++)
        while (r != conformance_cases[i].dies && atomic_load(&j->result[i][r]) == NOT_RUN && cdi_now_ms() < deadline_ms)
            (void)usleep(2000);
}

static int run_all(struct job *j, int fd, char *ranks, char **launcher, int n_words)
{
    int n = atoi(ranks), failed = 0;

    printf("1..%zu\n", conformance_n_cases);
    for (int i = -1; i < (int)conformance_n_cases; i++)
        if (i < 0 || (conformance_cases[i].dies >= 0 && n >= conformance_cases[i].min_ranks)) {
            run_job(launcher, n_words, fd, ranks, i);
            await_survivors(j, i, n);
        }
    for (int i = 0; i < (int)conformance_n_cases; i++) {
        const struct conformance_case *c = &conformance_cases[i];
        int ok = judge(j, i, n);

        if (n < c->min_ranks) {
            printf("ok %d - %s # SKIP needs %d ranks\n", i + 1, c->name, c->min_ranks);
            continue;
        }
        failed += !ok;
        printf("%s %d - %s (%d ranks)\n", ok ? "ok" : "not ok", i + 1, c->name, n);
    }
    return failed != 0;
}

int main(int argc, char **argv)
{
    int fd, rc;
    struct job *j;

    if (argc == SELF_WORDS && strcmp(argv[1], "--rank") == 0)
        return be_a_rank(argv + 2);
    if (argc < 3 || atoi(argv[1]) < 1 || atoi(argv[1]) > RANKS_MAX) {
        fprintf(stderr, "usage: %s RANKS LAUNCHER...\n", argv[0]);
        return 2;
    }
    fd = memfd_create("board", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof *j) != 0)
        return 2;
    j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (j == MAP_FAILED)
        return 2;
    ranks_board_init(&j->board);
    for (int i = 0; i < CASES_MAX; i++)
        for (int r = 0; r < RANKS_MAX; r++)
            atomic_store(&j->result[i][r], NOT_RUN);
    rc = run_all(j, fd, argv[1], argv + 2, argc - 2);
    (void)munmap(j, sizeof *j);
    return rc;
}
