/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole steps in a CUDA graph on the stand-in, as a program that cddprun starts: device_whole WHAT. A step has a
 * backward pass that reads the parameters, its bucketed reductions, clipping and the optimizer. Its replays must make
 * the parameters that steps without a capture make, bit for bit, after each step: with a learning rate and a scale that
 * change from step to step, steps that are left out, and gradients that add up over two passes.
 *
 *     all      every way to end a step
 *     ahead    the compute stream is blocked while the host enqueues all steps: each reads the numbers of its time
 *     saved    a state that graphs have made is saved and loaded
 *     refused  what the host would have to know, or to change, cannot be captured; nothing is broken
 *     nan      with CDDP_NAN_CHECK: a launch with a NaN is reported, and with "error" it changes nothing
 *     dies     rank 1 ends itself where it should launch the graph once more: the next call reports it
 *
 * Exit status: 0 all was right, 3 a wrong result, 4 libcddp gave an error.
 */
#include "device_death.h"
#include "device_job.h"
#include "items.h"

#include <stdlib.h>

#define STEPS 8
#define LEFT_OUT 4 /* in this step a gradient is infinite */

/* How a step ends. */
enum way { PLAIN, PLAIN_CLIPPED, DIVIDED, DIVIDED_CLIPPED, DIVIDED_IN_ONE, N_WAYS };

/* One run: the reducer, and what its steps are made of. */
struct run {
    struct job *j;
    enum way way;
    cddp_optim *optim;
    CUgraphExec adds, whole; /* NULL: steps are not captured */
};

static bool is_divided(enum way way)
{
    return way >= DIVIDED;
}

/* ------------------------------------------------------------------------------------------------------- a step ----
 */

/* g = made + w / 8 for parameters of float32; others have only the first term. add: to what is in g. */
static void pass(struct job *j, bool add, bool tells)
{
    for (size_t i = N_PARAMS; i-- > 0;) {
        CUdeviceptr g = (CUdeviceptr)cddp_ddp_grad(j->ddp, i), made = (CUdeviceptr)j->made[i];

        if (types[i] == CDDP_FLOAT32) {
            if (!add)
                CU(cuMemsetD8Async(g, 0, bytes_of(i), j->compute));
            device_axpy(&j->device, 1, made, g, counts[i], j->compute);
            device_axpy(&j->device, 0.125f, (CUdeviceptr)j->data[i], g, counts[i], j->compute);
        } else if (!add) {
            CU(cuMemcpyDtoDAsync(g, made, bytes_of(i), j->compute));
        }
        if (tells)
            DO(cddp_ddp_grad_ready(j->ddp, i));
    }
}

static void end_step(struct run *r)
{
    const cddp_optim_step_args plain = {.size = sizeof plain, .flags = CDDP_OPTIM_SKIP_NONFINITE},
                               all = {.size = sizeof all, .flags = CDDP_OPTIM_SKIP_NONFINITE, .max_norm = 0.75};
    struct job *j = r->j;

    if (!is_divided(r->way))
        DO(cddp_ddp_wait(j->ddp));
    if (r->way == PLAIN_CLIPPED || r->way == DIVIDED_CLIPPED)
        DO(cddp_ddp_clip_grad_norm(j->ddp, 0.5, r->way == PLAIN_CLIPPED ? 2 : INFINITY, 0, NULL));
    if (is_divided(r->way))
        DO(cddp_optim_step(r->optim, r->way == DIVIDED_IN_ONE ? &all : &plain));
    for (size_t i = 0; i < N_PARAMS && !is_divided(r->way); i++) /* the program's own optimizer */
        if (types[i] == CDDP_FLOAT32)
            device_axpy(&j->device, -0.5f, (CUdeviceptr)cddp_ddp_grad(j->ddp, i), (CUdeviceptr)j->data[i], counts[i],
                        j->compute);
}

/* Two passes, of which the second one communicates. */
static void whole_step(struct run *r)
{
    pass(r->j, false, false);
    pass(r->j, true, true);
    end_step(r);
}

/* The numbers of step s: they are set before it, and outside of graphs. */
static void set_numbers(struct run *r, int s)
{
    if (!is_divided(r->way))
        return;
    DO(cddp_optim_set_lr(r->optim, 0.01 * (s + 1)));
    DO(cddp_optim_set_grad_scale(r->optim, s % 2 == 0 ? 1 : 0.5));
}

/* -------------------------------------------------------------------------------------------------------- a run ----
 */

/* One graph for a pass that only adds, one for the pass that communicates and the rest of the step. */
static void capture(struct run *r)
{
    CU(cuStreamBeginCapture(r->j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pass(r->j, false, false);
    r->adds = device_end_capture(r->j->compute);
    CU(cuStreamBeginCapture(r->j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pass(r->j, true, true);
    end_step(r);
    r->whole = device_end_capture(r->j->compute);
}

static void replay(struct run *r)
{
    CU(cuGraphLaunch(r->adds, r->j->compute));
    CU(cuGraphLaunch(r->whole, r->j->compute));
}

static void begin(struct job *j)
{
    static double host[MOST];

    for (size_t i = 0; i < N_PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++)
            number_put(types[i], host, k, (double)((int)((k * 5 + i) % 23) - 11) / 8);
        DO(cddp_copy(j->comm, j->data[i], host, bytes_of(i)));
    }
}

static void open_run(struct run *r, struct job *j, enum way way)
{
    cddp_optim_options o;

    *r = (struct run){.j = j, .way = way};
    begin(j); /* an optimizer copies parameters of 16 bits */
    open_ddp(j, way % 2 != 0 ? CDDP_DDP_SUM : 0);
    cddp_optim_defaults(&o, sizeof o, CDDP_OPTIM_ADAMW);
    if (is_divided(way))
        DO(cddp_optim_create(&r->optim, j->ddp, &o));
    make(j, N_PARAMS, 0);
    for (int s = 0; s < 3; s++) { /* settles the buckets */
        set_numbers(r, s);
        whole_step(r);
    }
    CU(cuStreamSynchronize(j->compute));
}

static void close_run(struct run *r)
{
    CU(cuStreamSynchronize(r->j->compute));
    if (r->whole != NULL) {
        CU(cuGraphExecDestroy(r->adds));
        CU(cuGraphExecDestroy(r->whole));
    }
    cddp_optim_destroy(r->optim);
    cddp_ddp_destroy(r->j->ddp);
}

static uint64_t hash_of_parameters(struct job *j)
{
    static double host[MOST];
    uint64_t sum = 1;

    CU(cuStreamSynchronize(j->compute));
    for (size_t i = 0; i < N_PARAMS; i++) {
        DO(cddp_copy(j->comm, host, j->data[i], bytes_of(i)));
        for (size_t k = 0; k < bytes_of(i); k++)
            sum = (sum ^ ((uint8_t *)(void *)host)[k]) * 1099511628211u;
    }
    return sum;
}

/* ------------------------------------------------------------------------------------------------------- all, ahead -
 */

/* Runs the steps and notes the parameters after each. With a capture one step in four is not captured all the same. */
static void run_steps(struct job *j, enum way way, bool captured, uint64_t *after)
{
    uint64_t skipped = 0;
    struct run r;

    open_run(&r, j, way);
    if (captured)
        capture(&r);
    for (int s = 0; s < STEPS; s++) {
        make(j, is_divided(way) && s == LEFT_OUT ? 0 : N_PARAMS, INFINITY);
        set_numbers(&r, s);
        if (captured && s % 4 != 2)
            replay(&r);
        else
            whole_step(&r);
        after[s] = hash_of_parameters(j);
    }
    if (is_divided(way))
        DO(cddp_optim_skipped(r.optim, &skipped));
    MUST(skipped == is_divided(way), "way %d: %d steps were left out\n", (int)way, (int)skipped);
    close_run(&r);
}

static void check_all(struct job *j)
{
    for (enum way way = PLAIN; way < N_WAYS; way++) {
        uint64_t plain[STEPS], captured[STEPS];

        run_steps(j, way, false, plain);
        run_steps(j, way, true, captured);
        for (int s = 0; s < STEPS; s++) {
            MUST(plain[s] == captured[s], "rank %d: way %d: step %d has other bits in a replay\n", cddp_rank(j->comm),
                 (int)way, s);
            MUST(s == 0 || (plain[s] == plain[s - 1]) == (is_divided(way) && s == LEFT_OUT),
                 "way %d: step %d changes nothing, or too much\n", (int)way, s);
        }
    }
}

static void check_ahead(struct job *j)
{
    uint64_t after[2], waits;

    for (int captured = 0; captured < 2; captured++) {
        struct run r;

        open_run(&r, j, DIVIDED_IN_ONE);
        if (captured)
            capture(&r);
        close_gate(j);
        waits = standin_waits();
        for (int s = 0; s < STEPS; s++) {
            set_numbers(&r, s);
            if (captured)
                replay(&r);
            else
                whole_step(&r);
        }
        MUST(standin_waits() == waits, "the host waited %d times\n", (int)(standin_waits() - waits));
        atomic_store(&gate_is_open, true);
        after[captured] = hash_of_parameters(j);
        close_run(&r);
    }
    MUST(after[0] == after[1], "rank %d: steps that are ahead of the device read wrong numbers\n", cddp_rank(j->comm));
}

/* -------------------------------------------------------------------------------------------------------- saved ----
 */

/* The host does not wait for the replays before it saves: the checkpoint is in the order of the compute stream. */
static void check_saved(struct job *j)
{
    char folder[32] = "/tmp/device_whole.XXXXXX", command[64];
    cddp_checkpoint_item item;
    uint64_t after[2];
    struct run r;

    if (cddp_rank(j->comm) == 0)
        MUST(mkdtemp(folder) != NULL, "no temporary folder\n");
    DO(cddp_broadcast(j->comm, folder, sizeof folder, CDDP_UINT8, 0));
    for (int again = 0; again < 2; again++) {
        open_run(&r, j, DIVIDED);
        capture(&r);
        item = item_of(CDDP_ITEM_OPTIM, "optim", r.optim);
        for (int s = 0; s < STEPS && again == 0; s++)
            replay(&r);
        if (again == 0)
            DO(cddp_checkpoint_save(j->comm, folder, 1, &item, 1, NULL));
        else
            DO(cddp_checkpoint_load(j->comm, folder, &item, 1, NULL));
        begin(j); /* which waits for nothing of the compute stream that matters: the state alone is compared */
        set_numbers(&r, STEPS);
        replay(&r);
        after[again] = hash_of_parameters(j);
        close_run(&r);
    }
    MUST(after[0] == after[1], "rank %d: a loaded state gives other bits\n", cddp_rank(j->comm));
    DO(cddp_barrier(j->comm));
    if (cddp_rank(j->comm) == 0) {
        (void)snprintf(command, sizeof command, "rm -r %s", folder);
        MUST(system(command) == 0, "%s stays\n", folder); /* NOLINT(cert-env33-c,concurrency-mt-unsafe) */
    }
}

/* ------------------------------------------------------------------------------------------------------ refused ----
 */

static void check_refused(struct job *j)
{
    uint64_t skipped, before;
    CUgraph graph;
    struct run r;
    double norm;

    open_run(&r, j, DIVIDED);
    before = hash_of_parameters(j);
    CU(cuStreamBeginCapture(j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REFUSED(cddp_optim_set_lr(r.optim, 1), CDDP_E_UNSUPPORTED, "captures a graph");
    REFUSED(cddp_optim_set_grad_scale(r.optim, 2), CDDP_E_UNSUPPORTED, "captures a graph");
    REFUSED(cddp_optim_skipped(r.optim, &skipped), CDDP_E_UNSUPPORTED, "captures a graph");
    REFUSED(cddp_optim_step(r.optim, NULL), CDDP_E_STATE, "5 of 5 gradients are missing");
    pass(j, false, true);
    REFUSED(cddp_ddp_wait(j->ddp), CDDP_E_STATE, "cddp_optim_step");
    REFUSED(cddp_ddp_grad_norm(j->ddp, 2, &norm), CDDP_E_UNSUPPORTED, "cddp_ddp_grad_norm");
    REFUSED(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 0, &norm), CDDP_E_UNSUPPORTED, "pass NULL");
    REFUSED(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 1, NULL), CDDP_E_UNSUPPORTED, "pass NULL");
    REFUSED(cddp_ddp_clip_grad_norm(j->ddp, 1, 3, 0, NULL), CDDP_E_INVALID, "type 3");
    DO(cddp_optim_step(r.optim, NULL));
    CU(cuStreamEndCapture(j->compute, &graph)); /* all the same */
    CU(cuGraphDestroy(graph));
    MUST(hash_of_parameters(j) == before, "a capture has changed parameters\n");
    CU(cuStreamBeginCapture(j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL)); /* given up before the optimizer */
    pass(j, false, true);
    DO(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 0, NULL));
    CU(cuStreamEndCapture(j->compute, &graph));
    CU(cuGraphDestroy(graph));
    capture(&r);
    set_numbers(&r, 5);
    whole_step(&r);
    replay(&r);
    close_run(&r);
}

/* ---------------------------------------------------------------------------------------------------------- nan ----
 */

static void check_nan(struct job *j)
{
    const char *mode = getenv("CDDP_NAN_CHECK");
    const bool leaves_out = mode != NULL && strcmp(mode, "error") == 0;
    uint64_t before, after, skipped;
    struct run r;

    for (enum way way = PLAIN_CLIPPED; way <= DIVIDED; way++)
        for (int bad = 0; bad < N_PARAMS; bad++) {
            char text[64];

            open_run(&r, j, way);
            capture(&r);
            replay(&r);
            before = hash_of_parameters(j);
            DO(cddp_ddp_replay_status(j->ddp));
            make(j, (size_t)bad, NAN);
            replay(&r);
            after = hash_of_parameters(j);
            (void)snprintf(text, sizeof text, "launch 2: the gradient of 'p%d'", bad);
            if (leaves_out)
                MUST(cddp_ddp_replay_status(j->ddp) == CDDP_E_NONFINITE && strstr(cddp_last_error(), text) != NULL &&
                         strstr(cddp_last_error(), "has NaN; rank 0 brought it") != NULL,
                     "way %d, %s: not told: %s\n", (int)way, text, cddp_last_error());
            DO(cddp_ddp_replay_status(j->ddp)); /* once */
            if (way ==
                DIVIDED) { /* which also has CDDP_OPTIM_SKIP_NONFINITE: that counts what the check lets through */
                DO(cddp_optim_skipped(r.optim, &skipped));
                MUST(skipped == !leaves_out && before == after, "a launch with a NaN has changed parameters\n");
                make(j, N_PARAMS, 0);
                replay(&r);
                MUST(hash_of_parameters(j) != after, "later launches change nothing\n");
                DO(cddp_ddp_replay_status(j->ddp));
            }
            make(j, N_PARAMS, 0);
            begin(j);
            whole_step(&r); /* a step that is not captured has its own search */
            close_run(&r);
        }
}

/* --------------------------------------------------------------------------------------------------------- dies ----
 */

/* A replay of rank 0 waits for rank 1. The next call reports its end, and that of later launches. */
static int lose_a_peer(struct job *j)
{
    cddp_status st[4];
    struct run r;

    open_run(&r, j, DIVIDED_IN_ONE);
    capture(&r);
    replay(&r);
    CU(cuStreamSynchronize(j->compute));
    lose_rank_1(j->comm, true);
    replay(&r);
    CU(cuStreamSynchronize(j->compute));
    replay(&r); /* ends at once */
    CU(cuStreamSynchronize(j->compute));
    st[0] = cddp_optim_set_lr(r.optim, 0.5);
    print_end(st[0]);
    st[1] = cddp_ddp_grad_ready(j->ddp, 0);
    st[2] = cddp_optim_step(r.optim, NULL);
    st[3] = cddp_ddp_replay_status(j->ddp);
    all_report_the_peer(st);
    CU(cuGraphExecDestroy(r.adds));
    CU(cuGraphExecDestroy(r.whole));
    return FAILED;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    static struct job j;

    open_job(&j);
    if (strcmp(what, "dies") == 0)
        return lose_a_peer(&j);
    if (strcmp(what, "ahead") == 0)
        check_ahead(&j);
    else if (strcmp(what, "saved") == 0)
        check_saved(&j);
    else if (strcmp(what, "nan") == 0)
        check_nan(&j);
    else if (strcmp(what, "refused") == 0)
        check_refused(&j);
    else
        check_all(&j);
    close_job(&j);
    return 0;
}
