/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MLP of mlp.h, trained by SGD in one of several ways, and timed:
 *
 *     mlp_train ddp BATCH STEPS            gradients averaged by cddp_ddp while the backward pass runs
 *     mlp_train alternate BATCH STEPS      the same, but every second step does not synchronise (as under no_sync)
 *     mlp_train alternate BATCH STEPS auto the same, after sizes were tried (CDDP_DDP_TUNE) in idle passes
 *     mlp_train zero BATCH STEPS           the same training, with the optimizer divided among the ranks
 *     mlp_train stage2|stage3 BATCH STEPS  the same, with gradients, or with parameters and gradients divided, too
 *     mlp_train server BATCH STEPS         rank 0 is a parameter server beside its own training: it receives every
 *                                          gradient, takes the step, and sends the parameters back
 *     mlp_train threads BATCH STEPS N      one process of N threads with a batch each; one of them sums and steps
 *
 * BATCH is that of a rank (or thread). Every step begins with a barrier that is not timed, and its time is that of the
 * slowest rank. One line of JSON from rank 0: times in ms, and the loss of the last step over all samples.
 */
#include "mlp_train.h"

#include <cddp/cddp.h>
#include <pthread.h>

static void must(cddp_status st)
{
    if (st != CDDP_OK)
        die(cddp_last_error());
}

/* ---------------------------------------------------------------------------------------------- many processes ---- */

static double called_ms; /* of this step: in calls that communicate, or may wait for it */

/* The same as must(call), and its time counts. */
#define TIMED(call)                    \
    do {                               \
        const double at_ms = now_ms(); \
                                       \
        must(call);                    \
        called_ms += now_ms() - at_ms; \
    } while (0)

static void note(cddp_comm *comm, struct times *t, cddp_ddp *ddp, double began, double grads, double ended)
{
    cddp_ddp_stats stats = {.size = sizeof stats};
    double six[6] = {grads - began, ended - began};

    if (ddp != NULL)
        must(cddp_ddp_get_stats(ddp, &stats));
    t->told = ddp != NULL;
    six[5] = -called_ms;
    called_ms = 0;
    six[4] = -(double)stats.last_thread_ns;
    six[2] = -(double)stats.last_comm_ns;
    six[3] = -(double)stats.last_exposed_ns;
    must(cddp_all_reduce(comm, six, six, 6, CDDP_FLOAT64, CDDP_MAX));
    t->grads[t->n] = six[0];
    t->step[t->n] = six[1];
    t->comm[t->n] = -six[2] * 1e-6;
    t->thread[t->n] = -six[4] * 1e-6;
    t->called[t->n] = -six[5];
    t->exposed[t->n++] = -six[3] * 1e-6;
}

static void ready(void *ddp, size_t i)
{
    TIMED(cddp_ddp_grad_ready(ddp, i));
}

/* Steps in which no parameter moves, until the bucket size is chosen. */
static void try_sizes(struct trainer *t, cddp_comm *comm, cddp_ddp *ddp)
{
    load(t, 0, cddp_rank(comm), cddp_world_size(comm));
    while (cddp_ddp_bucket_cap(ddp) == 0) {
        must(cddp_barrier(comm));
        (void)pass(t, ready, ddp);
        must(cddp_ddp_wait(ddp));
    }
}

static double train_ddp(cddp_comm *comm, size_t batch, long steps, const char *mode, bool automatic,
                        struct times *times)
{
    const cddp_ddp_options options = {.size = sizeof options, .flags = automatic ? CDDP_DDP_TUNE : 0};
    const cddp_optim_options sgd_options = {.size = sizeof sgd_options, .kind = CDDP_OPTIM_SGD, .lr = (double)RATE};
    bool alternate = strcmp(mode, "alternate") == 0;
    cddp_optim *optim = NULL;
    struct trainer t = {0};
    cddp_param params[MLP_PARAMS];
    static char names[MLP_PARAMS][16];
    cddp_ddp *ddp;
    double loss = 0;

    trainer_init(&t, batch);
    own_params(&t);
    for (size_t i = 0; i < MLP_PARAMS; i++) {
        (void)snprintf(names[i], sizeof names[i], "fc%zu.%s", i / 2, i % 2 == 0 ? "weight" : "bias");
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = t.params[i],
                                 .count = mlp_param_count(i),
                                 .dtype = CDDP_FLOAT32};
    }
    must(cddp_ddp_create(&ddp, comm, params, MLP_PARAMS, &options));
    if (strcmp(mode, "zero") == 0)
        must(cddp_optim_create(&optim, ddp, &sgd_options));
    for (size_t i = 0; i < MLP_PARAMS; i++)
        t.grads[i] = cddp_ddp_grad(ddp, i);
    try_sizes(&t, comm, ddp);
    times->bucket_bytes = cddp_ddp_bucket_cap(ddp);
    for (long step = 0; step < steps; step++) {
        bool sync = !alternate || step % 2 == 0;
        double began, grads;

        load(&t, step, cddp_rank(comm), cddp_world_size(comm));
        must(cddp_barrier(comm));
        began = now_ms();
        loss = pass(&t, sync ? ready : NULL, ddp);
        if (optim != NULL)
            must(cddp_optim_step(optim, NULL)); /* which updates parameters, too, so its time says little */
        else if (sync)
            TIMED(cddp_ddp_wait(ddp));
        grads = now_ms();
        if (sync && optim == NULL)
            sgd(&t, RATE);
        called_ms = optim != NULL ? 0 : called_ms;
        note(comm, times, ddp, began, grads, now_ms());
    }
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    return loss;
}

/* A layer is a unit. */
struct divided {
    struct trainer t;
    cddp_fsdp *f;
    cddp_fsdp_unit units[MLP_LAYERS];
    size_t held; /* a layer; MLP_LAYERS: none */
};

static cddp_status fill(void *arg, size_t u, void *const *data)
{
    (void)arg;
    mlp_init_param(data[0], 2 * u);
    mlp_init_param(data[1], 2 * u + 1);
    return CDDP_OK;
}

static void leave(struct divided *d)
{
    if (d->held < MLP_LAYERS)
        must(cddp_fsdp_release(d->f, d->held));
    d->held = MLP_LAYERS;
}

static void enter(void *arg, size_t layer, bool back)
{
    struct divided *d = arg;

    leave(d);
    TIMED(cddp_fsdp_gather(d->f, layer));
    TIMED(cddp_fsdp_wait_unit(d->f, layer));
    d->held = layer;
    for (size_t i = 0; i < 2; i++) {
        d->t.params[2 * layer + i] = (float *)(uintptr_t)cddp_fsdp_param(d->f, layer, i); /* only read */
        if (back)
            TIMED((d->t.grads[2 * layer + i] = cddp_fsdp_grad(d->f, layer, i)) != NULL ? CDDP_OK : CDDP_E_STATE);
    }
}

/* A layer's weights come after its bias. */
static void divide(void *arg, size_t i)
{
    if (i % 2 == 0)
        TIMED(cddp_fsdp_grads_ready(((struct divided *)arg)->f, i / 2));
}

static void sgd_of_shares(struct divided *d, float rate)
{
    for (size_t i = 0; i < MLP_PARAMS; i++) {
        cddp_fsdp_shard_info mine = {.size = sizeof mine};

        must(cddp_fsdp_shard(d->f, i / 2, i % 2, &mine));
        for (size_t k = 0; k < mine.count; k++)
            ((float *)mine.param)[k] -= rate * ((float *)mine.grad)[k];
    }
}

static double train_divided(cddp_comm *comm, size_t batch, long steps, int stage, struct times *times)
{
    static struct divided d = {.held = MLP_LAYERS};
    static cddp_param params[MLP_PARAMS];
    static char names[MLP_PARAMS][16];
    double loss = 0;

    trainer_init(&d.t, batch);
    d.t.enter = enter;
    for (size_t i = 0; i < MLP_PARAMS; i++) {
        (void)snprintf(names[i], sizeof names[i], "fc%zu.%s", i / 2, i % 2 == 0 ? "weight" : "bias");
        params[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = names[i], .count = mlp_param_count(i), .dtype = CDDP_FLOAT32};
        d.units[i / 2] = (cddp_fsdp_unit){
            .size = sizeof(cddp_fsdp_unit), .name = names[i], .params = &params[i / 2 * 2], .n_params = 2};
    }
    must(cddp_fsdp_create(&d.f, comm, d.units, MLP_LAYERS,
                          &(cddp_fsdp_options){.size = sizeof(cddp_fsdp_options), .stage = stage, .fill = fill}));
    for (long step = 0; step < steps; step++) {
        double began, grads;

        load(&d.t, step, cddp_rank(comm), cddp_world_size(comm));
        must(cddp_barrier(comm));
        began = now_ms();
        loss = pass(&d.t, divide, &d);
        leave(&d);
        TIMED(cddp_fsdp_end_step(d.f));
        grads = now_ms();
        sgd_of_shares(&d, RATE);
        note(comm, times, NULL, began, grads, now_ms());
    }
    cddp_fsdp_destroy(d.f);
    return loss;
}

static void own_grads(struct trainer *t)
{
    for (size_t i = 0; i < MLP_PARAMS; i++)
        t->grads[i] = memory(mlp_param_count(i), sizeof(float));
}

static double train_server(cddp_comm *comm, size_t batch, long steps, struct times *times)
{
    struct trainer t = {0};
    int rank = cddp_rank(comm), n = cddp_world_size(comm);
    float *from = NULL;
    double loss = 0;

    trainer_init(&t, batch);
    own_params(&t);
    own_grads(&t);
    if (rank == 0)
        from = memory(mlp_param_count(2), sizeof *from); /* the largest */
    for (long step = 0; step < steps; step++) {
        double began, grads;

        load(&t, step, rank, n);
        must(cddp_barrier(comm));
        began = now_ms();
        loss = pass(&t, NULL, NULL);
        for (size_t i = MLP_PARAMS; i-- > 0;) {
            size_t count = mlp_param_count(i);

            if (rank != 0)
                must(cddp_send(comm, t.grads[i], count, CDDP_FLOAT32, 0));
            for (int r = 1; r < n && rank == 0; r++) {
                must(cddp_recv(comm, from, count, CDDP_FLOAT32, r));
                for (size_t k = 0; k < count; k++)
                    t.grads[i][k] += from[k];
            }
        }
        grads = now_ms();
        if (rank == 0)
            sgd(&t, RATE / (float)n);
        for (size_t i = 0; i < MLP_PARAMS; i++) {
            for (int r = 1; r < n && rank == 0; r++)
                must(cddp_send(comm, t.params[i], mlp_param_count(i), CDDP_FLOAT32, r));
            if (rank != 0)
                must(cddp_recv(comm, t.params[i], mlp_param_count(i), CDDP_FLOAT32, 0));
        }
        note(comm, times, NULL, began, grads, now_ms());
    }
    return loss;
}

/* ------------------------------------------------------------------------------------------------- one process ---- */

#define MAX_THREADS 64

struct crowd {
    pthread_barrier_t begin, passed, stepped;
    struct trainer trainers[MAX_THREADS];
    double loss[MAX_THREADS], passed_ms[MAX_THREADS];
    size_t batch;
    long steps;
    int n;
};

struct member {
    struct crowd *crowd;
    int rank;
};

static void *train_member(void *arg)
{
    const struct member *m = arg;
    struct crowd *c = m->crowd;

    for (long step = 0; step < c->steps; step++) {
        load(&c->trainers[m->rank], step, m->rank, c->n);
        (void)pthread_barrier_wait(&c->begin);
        c->loss[m->rank] = pass(&c->trainers[m->rank], NULL, NULL);
        (void)pthread_barrier_wait(&c->passed);
        (void)pthread_barrier_wait(&c->stepped);
    }
    return NULL;
}

/* All threads share the first one's parameters. */
static double train_threads(size_t batch, long steps, int n, struct times *times)
{
    static struct crowd c;
    static struct member members[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    double loss = 0;

    c.batch = batch;
    c.steps = steps;
    c.n = n;
    (void)pthread_barrier_init(&c.begin, NULL, (unsigned)n + 1);
    (void)pthread_barrier_init(&c.passed, NULL, (unsigned)n + 1);
    (void)pthread_barrier_init(&c.stepped, NULL, (unsigned)n + 1);
    own_params(&c.trainers[0]);
    for (int r = 0; r < n; r++) {
        trainer_init(&c.trainers[r], batch);
        own_grads(&c.trainers[r]);
        memcpy(c.trainers[r].params, c.trainers[0].params, sizeof c.trainers[0].params);
        members[r] = (struct member){&c, r};
        if (pthread_create(&threads[r], NULL, train_member, &members[r]) != 0)
            die("cannot start a thread");
    }
    for (long step = 0; step < steps; step++) {
        double began, grads;

        (void)pthread_barrier_wait(&c.begin);
        began = now_ms();
        (void)pthread_barrier_wait(&c.passed);
        for (int r = 1; r < n; r++)
            for (size_t i = 0; i < MLP_PARAMS; i++)
                for (size_t k = 0; k < mlp_param_count(i); k++)
                    c.trainers[0].grads[i][k] += c.trainers[r].grads[i][k];
        grads = now_ms();
        sgd(&c.trainers[0], RATE / (float)n);
        times->grads[times->n] = grads - began;
        times->step[times->n++] = now_ms() - began;
        loss = 0;
        for (int r = 0; r < n; r++)
            loss += c.loss[r] / n;
        (void)pthread_barrier_wait(&c.stepped);
    }
    for (int r = 0; r < n; r++)
        (void)pthread_join(threads[r], NULL);
    return loss;
}

/* ------------------------------------------------------------------------------------------------------ main ---- */

static void train_processes(const char *mode, size_t batch, long steps, bool automatic, struct times *times)
{
    cddp_comm *comm;
    double loss;
    int n;

    must(cddp_init(&comm, NULL));
    n = cddp_world_size(comm);
    loss = strcmp(mode, "server") == 0      ? train_server(comm, batch, steps, times)
           : strncmp(mode, "stage", 5) == 0 ? train_divided(comm, batch, steps, mode[5] - '0', times)
                                            : train_ddp(comm, batch, steps, mode, automatic, times);
    must(cddp_all_reduce(comm, &loss, &loss, 1, CDDP_FLOAT64, CDDP_AVG));
    if (cddp_rank(comm) == 0)
        print(mode, n, batch, times, loss);
    must(cddp_finalize(comm));
}

int main(int argc, char **argv)
{
    static struct times times;
    const char *mode = argc > 1 ? argv[1] : "";
    long batch = argc > 2 ? strtol(argv[2], NULL, 10) : 0, steps = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    long n = argc > 4 ? strtol(argv[4], NULL, 10) : 0;
    bool threads = strcmp(mode, "threads") == 0, automatic = argc == 5 && strcmp(argv[4], "auto") == 0;

    if ((!threads && strcmp(mode, "ddp") != 0 && strcmp(mode, "alternate") != 0 && strcmp(mode, "zero") != 0 &&
         strcmp(mode, "stage2") != 0 && strcmp(mode, "stage3") != 0 && strcmp(mode, "server") != 0) ||
        batch < 1 || batch > 100000 || steps < 4 || steps > MAX_STEPS ||
        (threads ? argc != 5 || n < 1 || n > MAX_THREADS : argc != 4 && !automatic) ||
        (automatic && strcmp(mode, "ddp") != 0 && strcmp(mode, "alternate") != 0)) {
        (void)fprintf(stderr,
                      "usage: mlp_train ddp|alternate BATCH STEPS [auto] | zero|stage2|stage3|server BATCH STEPS | "
                      "threads BATCH STEPS N\n"
                      "(at least 4 steps: the first two warm up)\n");
        return 2;
    }
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0); /* read when it is first used */
    if (threads)
        print(mode, (int)n, (size_t)batch, &times, train_threads((size_t)batch, steps, (int)n, &times));
    else
        train_processes(mode, (size_t)batch, steps, automatic, &times);
    return 0;
}
