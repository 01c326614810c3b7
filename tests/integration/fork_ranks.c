/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children of a rank. What a child calls is refused there, at once and by name, and neither its parent nor the other
 * ranks notice: parents wait for their children first, so that a child which took part would do so before them.
 *
 *     cddprun --standalone --nproc_per_node=2 fork_ranks        or, which starts two ranks itself,
 *     fork_ranks by-hand
 */
#include "by_hand.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>

#define LIMIT_S 100
#define LARGE (4u << 20)

static struct job {
    cddp_comm *comm, *part;
    cddp_ddp *ddp, *sharded;
    cddp_optim *optim;
    cddp_fsdp *fsdp;
    cddp_store *store;
    void *memory;
    uint64_t ticket; /* of what was begun before the fork */
    pid_t parent;
    int rank;
} job;
static double weights[2][4];
static float small[2], *large;

/* The message of the last error names the function, this process and its owner. rank: also which rank that is. */
static bool blames(const char *function, bool rank)
{
    char here[64], from[64];

    (void)snprintf(here, sizeof here, "%s: this process (pid %d) was forked from ", function, (int)getpid());
    if (rank)
        (void)snprintf(from, sizeof from, "forked from rank %d, pid %d,", job.rank, (int)job.parent);
    else
        (void)snprintf(from, sizeof from, "forked from pid %d,", (int)job.parent);
    return strncmp(cddp_last_error(), here, strlen(here)) == 0 && strstr(cddp_last_error(), from) != NULL;
}

static void refused(const char *function, cddp_status status)
{
    if (status == CDDP_E_STATE && blames(function, strncmp(function, "cddp_store_", 11) != 0))
        return;
    fprintf(stderr, "%s in a child: status %d, \"%s\"\n", function, (int)status, cddp_last_error());
    _exit(1);
}

/* A function that returns no status. */
static void quietly_refused(const char *function)
{
    refused(function, CDDP_E_STATE);
    (void)cddp_all_reduce(NULL, NULL, NULL, 0, CDDP_INT8, CDDP_SUM); /* another last error */
}

#define REFUSED(function, ...) refused(#function, function(__VA_ARGS__))
#define QUIETLY(function, ...) (function(__VA_ARGS__), quietly_refused(#function))

static void refuse_collectives(cddp_comm *comm)
{
    const size_t counts[2] = {1, 1};
    const cddp_coll_args work = {.size = sizeof work,
                                 .coll = CDDP_COLL_ALL_REDUCE,
                                 .dtype = CDDP_FLOAT32,
                                 .in = large,
                                 .out = large,
                                 .count = LARGE / 4};
    uint64_t ticket;
    int stop;
    float x[2] = {100, 100}, y[2];

    REFUSED(cddp_all_reduce, comm, x, x, 2, CDDP_FLOAT32, CDDP_SUM);
    REFUSED(cddp_all_reduce, comm, large, large, LARGE / 4, CDDP_FLOAT32, CDDP_SUM);
    REFUSED(cddp_broadcast, comm, x, 2, CDDP_FLOAT32, 0);
    REFUSED(cddp_all_gather, comm, x, y, 1, CDDP_FLOAT32);
    REFUSED(cddp_all_gatherv, comm, x, y, counts, CDDP_FLOAT32);
    REFUSED(cddp_reduce, comm, x, x, 2, CDDP_FLOAT32, CDDP_SUM, 0);
    REFUSED(cddp_reduce_scatter, comm, x, y, 1, CDDP_FLOAT32, CDDP_SUM);
    REFUSED(cddp_all_to_all, comm, x, y, 1, CDDP_FLOAT32);
    REFUSED(cddp_send, comm, x, 2, CDDP_FLOAT32, 1 - job.rank);
    REFUSED(cddp_recv, comm, x, 2, CDDP_FLOAT32, 1 - job.rank);
    REFUSED(cddp_barrier, comm);
    REFUSED(cddp_should_stop, comm, &stop);
    REFUSED(cddp_request_stop, comm);
    REFUSED(cddp_coll_start, comm, &work, 1, &ticket);
    REFUSED(cddp_coll_test, comm, job.ticket);
    REFUSED(cddp_coll_wait, comm, job.ticket);
    REFUSED(cddp_coll_run, comm, &work, 1);
    REFUSED(cddp_coll_enqueue, comm, &work, 1, NULL);
}

static void count_line(void *arg, cddp_log_level level, const char *line)
{
    char head[32];

    (void)snprintf(head, sizeof head, "[rank %d", job.rank);
    if (level == CDDP_LOG_ERROR && strncmp(line, head, strlen(head)) == 0)
        ++*(int *)arg;
}

static void refuse_comm(void)
{
    cddp_checkpoint_item item = {
        .size = sizeof(cddp_checkpoint_item), .name = "x", .data = small, .bytes = sizeof small};
    cddp_device_info info = {.size = sizeof info};
    cddp_metric metric = {0};
    cddp_param param = {.size = sizeof(cddp_param), .name = "p", .data = weights[0], .count = 4, .dtype = CDDP_FLOAT64};
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;
    void *p = NULL;
    int first, n_lines = 0;

    REFUSED(cddp_comm_split, &comm, job.comm, 0, 0, NULL);
    REFUSED(cddp_comm_create_group, &comm, job.comm, &job.rank, 1, 0, NULL);
    REFUSED(cddp_get_device_info, job.comm, &info);
    REFUSED(cddp_comm_error, job.comm, NULL);
    REFUSED(cddp_alloc, job.comm, 64, 0, &p);
    REFUSED(cddp_register, job.comm, small, sizeof *small, CDDP_MEM_COLLECTIVE);
    REFUSED(cddp_unregister, job.comm, small);
    REFUSED(cddp_copy, job.comm, small, small + 1, sizeof *small);
    REFUSED(cddp_leader_first_begin, job.comm, CDDP_SCOPE_JOB, &first);
    REFUSED(cddp_leader_first_end, job.comm, 1, NULL);
    REFUSED(cddp_metric_reduce, job.comm, &metric, &metric, 1, NULL);
    REFUSED(cddp_checkpoint_save, job.comm, "/nonexistent", 1, &item, 1, NULL);
    REFUSED(cddp_checkpoint_wait, job.comm);
    REFUSED(cddp_checkpoint_load, job.comm, "/nonexistent", &item, 1, NULL);
    REFUSED(cddp_ddp_create, &ddp, job.comm, &param, 1, NULL);
    CHECK(comm == NULL && ddp == NULL && p == NULL);
    /* It may log in the name of its parent. */
    cddp_set_log_callback(count_line, &n_lines);
    cddp_log(job.comm, CDDP_LOG_ALL, CDDP_LOG_ERROR, "a child");
    cddp_set_log_callback(NULL, NULL);
    CHECK(n_lines == 1);
    /* A child may ask who its parent is. */
    CHECK(cddp_rank(job.comm) == job.rank && cddp_world_size(job.comm) == 2 && cddp_world_rank(job.comm, 1) == 1);
}

static void refuse_reducer(void)
{
    cddp_optim_options opt = {.size = sizeof opt, .kind = CDDP_OPTIM_SGD, .lr = 1};
    cddp_optim *optim = NULL;
    uint64_t skipped = 0;
    double norm;
    int used;

    CHECK(cddp_ddp_grad(job.ddp, 0) == NULL && blames("cddp_ddp_grad", true));
    REFUSED(cddp_ddp_grad_ready, job.ddp, 0);
    refused("cddp_ddp_grad_ready", cddp_ddp_grad_ready_on(job.ddp, 0, NULL));
    REFUSED(cddp_ddp_wait_param, job.ddp, 0);
    REFUSED(cddp_ddp_wait, job.ddp);
    REFUSED(cddp_ddp_was_used, job.ddp, 0, &used);
    REFUSED(cddp_ddp_set_frozen, job.ddp, NULL, 0, 1);
    REFUSED(cddp_ddp_set_weight, job.ddp, 1);
    REFUSED(cddp_ddp_sync_buffers, job.ddp);
    REFUSED(cddp_ddp_join, job.ddp);
    REFUSED(cddp_ddp_get_stats, job.ddp, NULL);
    REFUSED(cddp_ddp_set_hook, job.ddp, NULL);
    REFUSED(cddp_ddp_set_powersgd, job.ddp, NULL);
    REFUSED(cddp_ddp_grad_norm, job.ddp, 2, &norm);
    REFUSED(cddp_ddp_clip_grad_norm, job.ddp, 1, 2, 0, NULL);
    REFUSED(cddp_optim_create, &optim, job.ddp, &opt);
    REFUSED(cddp_optim_step, job.optim, NULL);
    REFUSED(cddp_optim_skip, job.optim);
    REFUSED(cddp_optim_skipped, job.optim, &skipped);
    REFUSED(cddp_optim_set_lr, job.optim, 2);
    REFUSED(cddp_optim_set_grad_scale, job.optim, 2);
    REFUSED(cddp_ddp_replay_status, job.ddp);
}

static void refuse_divided(void)
{
    cddp_fsdp_shard_info info = {.size = sizeof info};
    cddp_fsdp_unit unit = {0};
    cddp_fsdp *fsdp = NULL;
    cddp_optim *optim = NULL;
    double norm;

    REFUSED(cddp_fsdp_create, &fsdp, job.comm, &unit, 1, NULL);
    REFUSED(cddp_fsdp_gather, job.fsdp, 0);
    REFUSED(cddp_fsdp_wait_unit, job.fsdp, 0);
    REFUSED(cddp_fsdp_release, job.fsdp, 0);
    CHECK(cddp_fsdp_grad(job.fsdp, 0, 0) == NULL && blames("cddp_fsdp_grad", true));
    REFUSED(cddp_fsdp_grads_ready, job.fsdp, 0);
    REFUSED(cddp_fsdp_end_step, job.fsdp);
    REFUSED(cddp_fsdp_grad_norm, job.fsdp, 2, &norm);
    REFUSED(cddp_fsdp_shard, job.fsdp, 0, 0, &info);
    refused("cddp_optim_create", cddp_optim_create_sharded(&optim, job.fsdp, NULL));
}

static void refuse_store(cddp_store *store)
{
    const char *const key = "k";
    size_t len;
    char buf[8];
    int all;

    REFUSED(cddp_store_set, store, key, "v", 1);
    REFUSED(cddp_store_get, store, key, buf, sizeof buf, &len, 1000);
    REFUSED(cddp_store_add, store, key, 1, NULL);
    REFUSED(cddp_store_compare_set, store, key, "", 0, "v", 1, buf, sizeof buf, &len);
    REFUSED(cddp_store_wait, store, &key, 1, 1000);
    REFUSED(cddp_store_check, store, &key, 1, &all);
    REFUSED(cddp_store_delete, store, key, NULL);
}

static void refuse_ends(void)
{
    QUIETLY(cddp_free, job.comm, job.memory);
    QUIETLY(cddp_optim_destroy, job.optim);
    QUIETLY(cddp_fsdp_destroy, job.fsdp);
    QUIETLY(cddp_ddp_destroy, job.ddp);
    QUIETLY(cddp_store_close, job.store);
    QUIETLY(cddp_abort, job.comm, "a child's wish");
    REFUSED(cddp_finalize, job.part);
    REFUSED(cddp_finalize, job.comm);
}

static void refuse_all(void)
{
    refuse_collectives(job.comm);
    refuse_collectives(job.part);
    refuse_comm();
    refuse_reducer();
    refuse_divided();
    refuse_store(job.store);
    refuse_store(cddp_comm_store(job.comm));
    refuse_ends();
}

/* It ends as a program does that knows nothing of this: with what atexit() was given. */
static void leave_by_exit(void)
{
    exit(0);
}

static void run_another_program(void)
{
    (void)execl("/bin/true", "true", (char *)NULL);
    _exit(1);
}

static void join_a_job_of_its_own(void)
{
    static const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CDDP_FLIGHT"};
    cddp_comm *own;
    float x = 3;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        (void)unsetenv(names[i]);
    CHECK(cddp_init(&own, NULL) == CDDP_OK);
    CHECK(cddp_all_reduce(own, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK && x == 3);
    refuse_collectives(job.comm);
    CHECK(cddp_finalize(own) == CDDP_OK);
    REFUSED(cddp_finalize, job.comm);
}

/* Run it in a child until its end. */
static void in_child(void (*what)(void))
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(LIMIT_S);
        what();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0)
        fprintf(stderr, "rank %d: the child ended with status %#x\n", job.rank, (unsigned)status);
    CHECK(status == 0);
}

/* A child that was made without the C library: no handlers have run. */
static void in_bare_child(void)
{
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
    int status;
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

    CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(LIMIT_S);
        refuse_collectives(job.comm);
        _exit(0);
    }
    CHECK(waitpid((pid_t)child, &status, 0) == (pid_t)child && status == 0);
#endif
}

/* It has its parent's memory, and may only call exec and _exit; some call exit(), and with it what atexit() was given.
 */
static void in_vforked_child(void)
{
    cddp_comm *comm = job.comm;
    volatile cddp_status ended = CDDP_OK;
    int status;
    pid_t child = vfork();

    if (child == 0) {
        cddp_abort(comm, "a child's wish");
        ended = cddp_finalize(comm);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(ended == CDDP_E_STATE);
}

static bool sums_are_right(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != 3)
            return false;
    return true;
}

/* Children first, then the collective: blocking, or begun before there were children. */
static void reduce(float *x, size_t n, bool begun)
{
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .dtype = CDDP_FLOAT32,
                           .op = CDDP_SUM,
                           .in = x,
                           .out = x,
                           .count = n};

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(job.rank + 1);
    if (begun)
        CHECK(cddp_coll_start(job.comm, &work, 1, &job.ticket) == CDDP_OK);
    if (job.rank == 0 || begun)
        in_child(refuse_all);
    if (begun)
        CHECK(cddp_coll_wait(job.comm, job.ticket) == CDDP_OK);
    else
        CHECK(cddp_all_reduce(job.comm, x, x, n, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK);
    CHECK(sums_are_right(x, n));
}

static void train(void)
{
    for (size_t i = 0; i < 4; i++)
        ((double *)cddp_ddp_grad(job.ddp, 0))[i] = job.rank;
    CHECK(cddp_ddp_grad_ready(job.ddp, 0) == CDDP_OK);
    in_child(refuse_all);
    CHECK(cddp_ddp_wait(job.ddp) == CDDP_OK);
    for (size_t i = 0; i < 4; i++)
        CHECK(((double *)cddp_ddp_grad(job.ddp, 0))[i] == 0.5);
    for (size_t i = 0; i < 4; i++)
        ((double *)cddp_ddp_grad(job.sharded, 0))[i] = job.rank;
    CHECK(cddp_ddp_grad_ready(job.sharded, 0) == CDDP_OK);
    CHECK(cddp_optim_step(job.optim, NULL) == CDDP_OK && weights[1][3] == 0.5);
}

static void set_up(void)
{
    const cddp_optim_options opt = {.size = sizeof opt, .kind = CDDP_OPTIM_SGD, .lr = 1};
    cddp_param params[2] = {
        {.size = sizeof(cddp_param), .name = "p", .data = weights[0], .count = 4, .dtype = CDDP_FLOAT64},
        {.size = sizeof(cddp_param), .name = "q", .data = weights[1], .count = 4, .dtype = CDDP_FLOAT64}};

    const cddp_fsdp_unit unit = {.size = sizeof unit, .name = "u", .params = params, .n_params = 1};

    for (size_t i = 0; i < 4; i++)
        weights[0][i] = weights[1][i] = 1;
    CHECK(cddp_init(&job.comm, NULL) == CDDP_OK);
    job.rank = cddp_rank(job.comm);
    job.parent = getpid();
    CHECK(cddp_world_size(job.comm) == 2);
    CHECK(cddp_comm_split(&job.part, job.comm, 0, 0, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&job.ddp, job.comm, &params[0], 1, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&job.sharded, job.comm, &params[1], 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&job.optim, job.sharded, &opt) == CDDP_OK);
    CHECK(cddp_fsdp_create(&job.fsdp, job.comm, &unit, 1, NULL) == CDDP_OK);
    CHECK(cddp_store_open(&job.store, NULL) == CDDP_OK);
    CHECK(cddp_alloc(job.comm, 64, 0, &job.memory) == CDDP_OK);
}

static void finalize_at_exit(void)
{
    (void)cddp_finalize(job.comm);
}

static int be_a_rank(int rank)
{
    (void)rank; /* cddp_init knows it */
    (void)alarm(LIMIT_S);
    large = calloc(1, LARGE);
    CHECK(large != NULL);
    set_up();
    (void)atexit(finalize_at_exit);
    reduce(small, 2, false);
    reduce(large, LARGE / 4, false);
    reduce(small, 2, true);
    reduce(large, LARGE / 4, true);
    in_child(leave_by_exit);
    in_child(run_another_program);
    in_child(join_a_job_of_its_own);
    in_bare_child();
    in_vforked_child();
    train();
    reduce(small, 2, false);
    CHECK(cddp_store_set(job.store, "late", "v", 1) == CDDP_OK);
    cddp_free(job.comm, job.memory);
    cddp_store_close(job.store);
    cddp_optim_destroy(job.optim);
    cddp_fsdp_destroy(job.fsdp);
    cddp_ddp_destroy(job.sharded);
    cddp_ddp_destroy(job.ddp);
    CHECK(cddp_finalize(job.part) == CDDP_OK);
    CHECK(cddp_finalize(job.comm) == CDDP_OK);
    job.comm = NULL;
    free(large);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 1 || strcmp(argv[1], "by-hand") != 0)
        return be_a_rank(-1);
    by_hand_start(free_port(), be_a_rank);
    return by_hand_wait();
}
