/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of divided parameters on the stand-in, as a program that cddprun starts: device_sharded WHAT. A step has a
 * forward pass that reads each unit's parameters, a backward pass that reads them and what the forward pass made,
 * clipping and the optimizer, so one wrong bit anywhere spreads.
 *
 *     all      launches of a captured step have the bits of other steps, in every way of gathering; both take turns,
 *              and units are gathered in between
 *     ahead    the compute stream is blocked while the host takes steps: no call waits or allocates
 *     refused  orders of calls of which a capture has only a part are refused; nothing is broken
 *     dies     rank 1 ends itself where it should launch the graph once more: the next call names it
 *
 * Exit status: 0 all was right, 3 a wrong result, 4 libcddp gave an error.
 */
#include "device.h"
#include "device_death.h"
#include "gate_kernel.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNITS 6
#define MOST 12001
#define WARM 2
#define STEPS 9

static const size_t counts[UNITS][2] = {{5003}, {1, 777}, {MOST}, {33}, {2048}, {640, 5}};

static const struct kind {
    size_t live, gradients;
    int stage;
    uint64_t keep;    /* a bit for each unit */
    bool own, clips;  /* the program's own optimizer; clipping */
    int in_one_graph; /* steps */
} kinds[] = {
    {.clips = true},
    {.live = 1, .gradients = 1},
    {.live = 2, .gradients = 2, .in_one_graph = 3},
    {.live = 100, .gradients = 100, .clips = true},
    {.stage = 2},
    {.live = 2, .keep = 0x12, .own = true},
};

struct job {
    cddp_comm *comm;
    struct device device;
    CUkernel gate;
    CUstream compute;
    CUdeviceptr made[UNITS][2], seen[UNITS][2]; /* a part of the gradients; what the forward pass makes */
};

struct run {
    struct job *j;
    const struct kind *kind;
    cddp_fsdp *f;
    cddp_optim *optim; /* NULL: the program's own */
    CUgraphExec graph; /* NULL: none */
};

/* What a call costs the host, while counts_calls is set. */
static uint64_t waits, allocations;
static bool counts_calls;
static const char *volatile current_call;

static void call_begins(const char *call)
{
    current_call = call;
    waits = standin_waits();
    allocations = standin_allocations();
}

static void call_ended(void)
{
    MUST(!counts_calls || standin_waits() == waits, "the host waited %d times in %s\n", (int)(standin_waits() - waits),
         current_call);
    MUST(!counts_calls || standin_allocations() == allocations, "%s allocated memory\n", current_call);
}

/* A call that polls for what the device does counts as none of the driver's waits, and never returns. */
static void on_alarm(int signal)
{
    static const char text[] = "this call waits for the device: ";

    (void)signal;
    (void)!write(2, text, sizeof text - 1);
    (void)!write(2, current_call, strlen(current_call));
    (void)!write(2, "\n", 1);
    _exit(WRONG);
}

/* A call of a step. */
#define IN_STEP(call)       \
    do {                    \
        call_begins(#call); \
        DO(call);           \
        call_ended();       \
    } while (0)

/* ------------------------------------------------------------------------------------------------------- a step ----
 */

static size_t n_params(size_t u)
{
    return counts[u][1] > 0 ? 2 : 1;
}

static void hold(struct run *r, size_t u)
{
    IN_STEP(cddp_fsdp_gather(r->f, u));
    IN_STEP(cddp_fsdp_wait_unit(r->f, u));
}

static void forward(struct run *r)
{
    struct job *j = r->j;

    for (size_t u = 0; u < UNITS; u++) {
        hold(r, u);
        for (size_t i = 0; i < n_params(u); i++) {
            CU(cuMemsetD8Async(j->seen[u][i], 0, counts[u][i] * sizeof(float), j->compute));
            device_axpy(&j->device, 0.0625f, (CUdeviceptr)cddp_fsdp_param(r->f, u, i), j->seen[u][i], counts[u][i],
                        j->compute);
        }
        IN_STEP(cddp_fsdp_release(r->f, u));
    }
}

/* The gradient is made + w / 8 + seen. */
static void backward(struct run *r, size_t u)
{
    struct job *j = r->j;

    hold(r, u);
    for (size_t i = 0; i < n_params(u); i++) {
        CUdeviceptr g;

        call_begins("cddp_fsdp_grad");
        g = (CUdeviceptr)cddp_fsdp_grad(r->f, u, i);
        call_ended();
        MUST(g != 0, "cddp_fsdp_grad: %s\n", cddp_last_error());
        CU(cuMemsetD8Async(g, 0, counts[u][i] * sizeof(float), j->compute));
        device_axpy(&j->device, 1, j->made[u][i], g, counts[u][i], j->compute);
        device_axpy(&j->device, 0.125f, (CUdeviceptr)cddp_fsdp_param(r->f, u, i), g, counts[u][i], j->compute);
        device_axpy(&j->device, 1, j->seen[u][i], g, counts[u][i], j->compute);
    }
    IN_STEP(cddp_fsdp_release(r->f, u));
    IN_STEP(cddp_fsdp_grads_ready(r->f, u));
}

static cddp_fsdp_shard_info shard_of(const struct run *r, size_t u, size_t i)
{
    cddp_fsdp_shard_info own = {.size = sizeof own};

    DO(cddp_fsdp_shard(r->f, u, i, &own));
    return own;
}

static void end_step(struct run *r)
{
    const cddp_optim_step_args args = {.size = sizeof args, .max_norm = r->kind->clips ? 0.5 : 0};

    if (r->optim != NULL) {
        IN_STEP(cddp_optim_step(r->optim, &args));
        return;
    }
    IN_STEP(cddp_fsdp_end_step(r->f));
    for (size_t u = 0; u < UNITS; u++)
        for (size_t i = 0; i < n_params(u); i++) {
            cddp_fsdp_shard_info own = shard_of(r, u, i);

            if (own.count > 0)
                device_axpy(&r->j->device, -0.25f, (CUdeviceptr)own.grad, (CUdeviceptr)own.param, own.count,
                            r->j->compute);
        }
}

static void step(struct run *r)
{
    forward(r);
    for (size_t u = UNITS; u-- > 0;)
        backward(r, u);
    end_step(r);
}

static void set_numbers(struct run *r, int s)
{
    if (r->optim != NULL)
        DO(cddp_optim_set_lr(r->optim, 0.01 * (s + 1)));
}

/* -------------------------------------------------------------------------------------------------------- a run ----
 */

static void begin_capture(struct job *j)
{
    CU(cuStreamBeginCapture(j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static void capture(struct run *r)
{
    begin_capture(r->j);
    for (int n = 0; n == 0 || n < r->kind->in_one_graph; n++)
        step(r);
    r->graph = device_end_capture(r->j->compute);
}

/* Ends a capture of which nothing remains. full: it had a whole step. */
static void drop_capture(struct job *j, bool full)
{
    CUgraph graph = NULL;
    CUresult rc = cuStreamEndCapture(j->compute, &graph);

    MUST(!full || rc == CUDA_SUCCESS, "the capture ended with %d\n", (int)rc);
    if (graph != NULL)
        CU(cuGraphDestroy(graph));
}

static cddp_status fill(void *arg, size_t u, void *const *data)
{
    const struct job *j = arg;
    static float host[MOST];

    for (size_t i = 0; i < n_params(u); i++) {
        for (size_t k = 0; k < counts[u][i]; k++)
            host[k] = (float)((int)((k * 5 + u) % 23) - 11) / 8;
        CU(cuMemcpyHtoDAsync((CUdeviceptr)data[i], host, counts[u][i] * sizeof host[0], j->compute));
        CU(cuStreamSynchronize(j->compute));
    }
    return CDDP_OK;
}

static void open_run(struct run *r, struct job *j, const struct kind *kind)
{
    cddp_fsdp_options opt = {.size = sizeof opt,
                             .stage = kind->stage,
                             .max_live_units = kind->live,
                             .max_live_gradients = kind->gradients,
                             .fill = fill,
                             .arg = j,
                             .stream = j->compute};
    static const char *const names[UNITS] = {"u0", "u1", "u2", "u3", "u4", "u5"};
    cddp_fsdp_unit units[UNITS];
    cddp_param params[UNITS][2];
    cddp_optim_options rule;

    for (size_t u = 0; u < UNITS; u++) {
        for (size_t i = 0; i < 2; i++)
            params[u][i] = (cddp_param){
                .size = sizeof(cddp_param), .name = i == 0 ? "w" : "b", .count = counts[u][i], .dtype = CDDP_FLOAT32};
        units[u] = (cddp_fsdp_unit){.size = sizeof units[u],
                                    .name = names[u],
                                    .params = params[u],
                                    .n_params = n_params(u),
                                    .flags = (kind->keep >> u & 1) != 0 ? CDDP_FSDP_KEEP : 0};
    }
    *r = (struct run){.j = j, .kind = kind};
    DO(cddp_fsdp_create(&r->f, j->comm, units, UNITS, &opt));
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_ADAMW);
    if (!kind->own)
        DO(cddp_optim_create_sharded(&r->optim, r->f, &rule));
    for (int s = 0; s < WARM; s++) {
        set_numbers(r, s);
        step(r);
    }
}

static void close_run(struct run *r)
{
    CU(cuStreamSynchronize(r->j->compute));
    if (r->graph != NULL)
        CU(cuGraphExecDestroy(r->graph));
    cddp_optim_destroy(r->optim);
    cddp_fsdp_destroy(r->f);
}

static uint64_t hash(struct job *j, uint64_t sum, const void *at, size_t count)
{
    static float host[MOST];

    if (count == 0)
        return sum;
    DO(cddp_copy(j->comm, host, at, count * sizeof host[0]));
    for (size_t k = 0; k < count * sizeof host[0]; k++)
        sum = (sum ^ ((uint8_t *)(void *)host)[k]) * 1099511628211u;
    return sum;
}

/* Of this rank's shares, or of whole units, which are gathered. */
static uint64_t hash_of(struct run *r, bool whole)
{
    uint64_t sum = 1;

    CU(cuStreamSynchronize(r->j->compute));
    for (size_t u = 0; u < UNITS; u++) {
        if (whole) {
            hold(r, u);
            CU(cuStreamSynchronize(r->j->compute));
        }
        for (size_t i = 0; i < n_params(u); i++) {
            cddp_fsdp_shard_info own = shard_of(r, u, i);

            sum = whole ? hash(r->j, sum, cddp_fsdp_param(r->f, u, i), counts[u][i])
                        : hash(r->j, sum, own.param, own.count);
        }
        if (whole)
            DO(cddp_fsdp_release(r->f, u));
    }
    return sum;
}

/* ------------------------------------------------------------------------------------------------------- all, ahead -
 */

/* Takes steps, and notes the parameters after each. */
static void run_steps(struct job *j, const struct kind *kind, bool captured, uint64_t *after)
{
    int each = kind->in_one_graph > 0 ? kind->in_one_graph : 1;
    struct run r;

    open_run(&r, j, kind);
    if (captured)
        capture(&r);
    for (int s = 0; s < STEPS; s++) {
        set_numbers(&r, s);
        DO(cddp_fsdp_gather(r.f, (size_t)s % UNITS)); /* which may still be under way */
        DO(cddp_fsdp_release(r.f, (size_t)s % UNITS));
        if (captured && s % 4 != 2)
            CU(cuGraphLaunch(r.graph, j->compute));
        else
            for (int n = 0; n < each; n++)
                step(&r);
        after[s] = hash_of(&r, s % 3 != 0);
    }
    close_run(&r);
}

static void check_all(struct job *j)
{
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        uint64_t plain[STEPS], captured[STEPS];

        run_steps(j, &kinds[k], false, plain);
        run_steps(j, &kinds[k], true, captured);
        for (int s = 0; s < STEPS; s++)
            MUST(plain[s] == captured[s], "rank %d: kind %zu: step %d has other bits in a launch\n", cddp_rank(j->comm),
                 k, s);
        MUST(plain[1] != plain[2] && plain[4] != plain[5], "kind %zu: steps change nothing\n", k);
    }
}

static void check_ahead(struct job *j)
{
    (void)signal(SIGALRM, on_alarm);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        uint64_t after[2];

        for (int captured = 0; captured < 2; captured++) {
            struct run r;

            open_run(&r, j, &kinds[k]);
            if (captured)
                capture(&r);
            atomic_store(&gate_is_open, false);
            device_run(j->gate, j->compute, NULL);
            counts_calls = true;
            (void)alarm(10);
            for (int s = 0; s < STEPS; s++) {
                set_numbers(&r, s);
                if (captured && s % 3 != 2)
                    CU(cuGraphLaunch(r.graph, j->compute));
                else
                    for (int n = 0; n == 0 || n < kinds[k].in_one_graph; n++)
                        step(&r);
            }
            (void)alarm(0);
            counts_calls = false;
            atomic_store(&gate_is_open, true);
            after[captured] = hash_of(&r, true);
            close_run(&r);
        }
        MUST(after[0] == after[1], "rank %d: kind %zu: steps ahead of the device have wrong bits\n", cddp_rank(j->comm),
             k);
    }
}

/* ------------------------------------------------------------------------------------------------------ refused ----
 */

/* Every call of a step, in a capture that has begun in the middle of one. */
static void all_refused(struct run *r, const char *word)
{
    begin_capture(r->j);
    REFUSED(cddp_fsdp_gather(r->f, 1), CDDP_E_STATE, word);
    REFUSED(cddp_fsdp_wait_unit(r->f, 1), CDDP_E_STATE, word);
    MUST(cddp_fsdp_grad(r->f, 2, 0) == NULL && strstr(cddp_last_error(), word) != NULL, "not refused: %s\n",
         cddp_last_error());
    REFUSED(cddp_fsdp_grads_ready(r->f, 2), CDDP_E_STATE, word);
    drop_capture(r->j, true);
}

static void check_refused(struct job *j, const struct kind *kind)
{
    const char *const middle = "the capture began in the middle of step 2", *const missing = "not reported gradients";
    struct run r, same;
    uint64_t before;

    open_run(&same, j, kind); /* meets none of this */
    open_run(&r, j, kind);
    before = hash_of(&r, false);
    hold(&r, 0); /* held over the begin of a capture */
    all_refused(&r, middle);
    DO(cddp_fsdp_release(r.f, 0)); /* not held, but the pool has it */
    all_refused(&r, middle);
    begin_capture(j);
    if (r.optim != NULL)
        REFUSED(cddp_optim_step(r.optim, NULL), CDDP_E_STATE, missing);
    else
        REFUSED(cddp_fsdp_end_step(r.f), CDDP_E_STATE, missing);
    drop_capture(j, true);
    forward(&r); /* that step goes on */
    for (size_t u = UNITS; u-- > 0;) {
        all_refused(&r, middle); /* after the gradients of some units, */
        backward(&r, u);
    }
    all_refused(&r, middle); /* or of all */
    begin_capture(j);
    if (r.optim != NULL)
        REFUSED(cddp_optim_step(r.optim, NULL), CDDP_E_STATE, middle);
    else
        REFUSED(cddp_fsdp_end_step(r.f), CDDP_E_STATE, middle);
    drop_capture(j, true);
    MUST(hash_of(&r, false) == before, "a capture has changed parameters\n");
    end_step(&r);
    MUST(cddp_fsdp_grad(r.f, UNITS - 1, 0) != NULL, "no gradient\n"); /* written outside, and reported inside */
    all_refused(&r, "the capture began in the middle of step 3");
    step(&r);
    /* Misuse in a capture, which goes on, */
    begin_capture(j);
    REFUSED(cddp_fsdp_wait_unit(r.f, 0), CDDP_E_STATE, "is not held");
    REFUSED(cddp_fsdp_grads_ready(r.f, 0), CDDP_E_STATE, "has no gradients");
    forward(&r);
    for (size_t u = UNITS; u-- > 0;)
        backward(&r, u);
    REFUSED(cddp_fsdp_grads_ready(r.f, 0), CDDP_E_STATE, "were ready already");
    end_step(&r);
    drop_capture(j, true);
    /* and captures that end in the middle of a step, with units held and gradients reported. */
    begin_capture(j);
    hold(&r, 0);
    drop_capture(j, false);
    before = hash_of(&r, true);
    MUST(before != 0, "no parameters\n");
    begin_capture(j);
    forward(&r);
    backward(&r, UNITS - 1);
    hold(&r, UNITS - 2);
    MUST(cddp_fsdp_grad(r.f, UNITS - 2, 0) != 0, "no gradient\n");
    drop_capture(j, false);
    step(&r);
    for (int n = 0; n < 40; n++) { /* with more operations than there were outside of captures */
        begin_capture(j);
        step(&r);
        drop_capture(j, true);
    }
    capture(&r);
    CU(cuGraphLaunch(r.graph, j->compute));
    step(&r);
    for (int s = 0; s < 4 + (kind->in_one_graph > 0 ? kind->in_one_graph : 1); s++)
        step(&same);
    MUST(hash_of(&r, true) == hash_of(&same, true), "rank %d: refused captures have changed bits\n",
         cddp_rank(j->comm));
    close_run(&same);
    close_run(&r);
    open_run(&r, j, kind);
    close_run(&r);
}

/* --------------------------------------------------------------------------------------------------------- dies ----
 */

static int lose_a_peer(struct job *j)
{
    cddp_status st[4];
    struct run r;

    open_run(&r, j, &kinds[0]);
    capture(&r);
    CU(cuGraphLaunch(r.graph, j->compute));
    CU(cuStreamSynchronize(j->compute));
    lose_rank_1(j->comm, true);
    CU(cuGraphLaunch(r.graph, j->compute));
    CU(cuStreamSynchronize(j->compute));
    st[0] = cddp_fsdp_gather(r.f, 0);
    print_end(st[0]);
    st[1] = cddp_fsdp_wait_unit(r.f, 0);
    st[2] = cddp_fsdp_grads_ready(r.f, 0);
    st[3] = cddp_optim_step(r.optim, NULL);
    all_report_the_peer(st);
    CU(cuGraphExecDestroy(r.graph));
    return FAILED;
}

static void open_job(struct job *j)
{
    cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    static float host[MOST];

    DO(cddp_init(&j->comm, &init));
    device_open(&j->device, cddp_local_rank(j->comm));
    j->gate = device_kernel(&j->device, &gate_kernel);
    j->compute = device_stream();
    for (size_t u = 0; u < UNITS; u++)
        for (size_t i = 0; i < n_params(u); i++) {
            j->made[u][i] = device_floats(counts[u][i], 0);
            j->seen[u][i] = device_floats(counts[u][i], 0);
            for (size_t k = 0; k < counts[u][i]; k++)
                host[k] = sinf((float)(k + u + 7 * i) * 0.7f + (float)cddp_rank(j->comm));
            CU(cuMemcpyHtoD(j->made[u][i], host, counts[u][i] * sizeof host[0]));
        }
}

static void close_job(struct job *j)
{
    for (size_t u = 0; u < UNITS; u++)
        for (size_t i = 0; i < n_params(u); i++) {
            CU(cuMemFree(j->made[u][i]));
            CU(cuMemFree(j->seen[u][i]));
        }
    CU(cuStreamDestroy(j->compute));
    CU(cuLibraryUnload(j->device.library));
    DO(cddp_finalize(j->comm));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    static struct job j;

    open_job(&j);
    if (strcmp(what, "dies") == 0)
        return lose_a_peer(&j);
    if (strcmp(what, "ahead") == 0) {
        check_ahead(&j);
    } else if (strcmp(what, "refused") == 0) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            check_refused(&j, &kinds[k]);
    } else {
        check_all(&j);
    }
    close_job(&j);
    return 0;
}
