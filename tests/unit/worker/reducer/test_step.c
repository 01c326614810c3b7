/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "fake_backend.h"
#include "hygiene.h"

#include <stdint.h>
#include <string.h>

CDI_SUITE(reducer);

static float w1[832], b1[64], w2[192], b2[3], big_data[20000];

static const cddp_param model[4] = {
    {.size = sizeof(cddp_param), .name = "fc1.weight", .data = w1, .count = 832, .dtype = CDDP_FLOAT32},
    {.size = sizeof(cddp_param), .name = "fc1.bias", .data = b1, .count = 64, .dtype = CDDP_FLOAT32},
    {.size = sizeof(cddp_param), .name = "fc2.weight", .data = w2, .count = 192, .dtype = CDDP_FLOAT32},
    {.size = sizeof(cddp_param), .name = "fc2.bias", .data = b2, .count = 3, .dtype = CDDP_FLOAT32},
};

/* Buckets in launch order: fc2.bias and fc2.weight; fc1.bias and fc1.weight. */
static const cddp_ddp_options small = {.size = sizeof small, .first_bucket_bytes = 700, .bucket_bytes = 4000};

static cddp_ddp *open_with(cddp_comm *comm, const cddp_param *params, size_t n, const cddp_ddp_options *opt)
{
    cddp_ddp *d = NULL;

    cr_assert_eq(cddp_ddp_create(&d, comm, params, n, opt), CDDP_OK, "%s", cddp_last_error());
    return d;
}

Test(reducer, gradients_start_zeroed_aligned_and_fixed)
{
    cddp_comm comm;
    cddp_ddp *d;
    void *before[4];

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    for (size_t i = 0; i < 4; i++) {
        float *g = before[i] = cddp_ddp_grad(d, i);

        cr_assert_eq((uintptr_t)g % 64, 0);
        for (size_t k = 0; k < model[i].count; k++)
            cr_assert_eq(g[k], 0.0f);
    }
    cr_assert_null(cddp_ddp_grad(d, 4));
    for (int step = 0; step < 3; step++) {
        for (size_t i = 4; i-- > 0;)
            cr_assert_eq(cddp_ddp_grad_ready(d, i), CDDP_OK);
        cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
        for (size_t i = 0; i < 4; i++)
            cr_assert_eq(cddp_ddp_grad(d, i), before[i]);
    }
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, launches_complete_buckets_in_order)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, &small);
    cr_assert_eq(cddp_ddp_bucket_count(d), 2);
    cr_assert_eq(cddp_ddp_bucket_bytes(d, 0), 64 + 192 * 4, "fc2.bias takes 12 bytes and is padded to 64");
    cr_assert_eq(cddp_ddp_bucket_bytes(d, 1), (64 + 832) * 4);
    cr_assert_eq(cddp_ddp_bucket_bytes(d, 2), 0);

    cr_assert_eq(cddp_ddp_grad_ready(d, 3), CDDP_OK);
    cr_assert_eq(cddp_ddp_grad_ready(d, 1), CDDP_OK);
    cr_assert_eq(cddp_ddp_grad_ready(d, 0), CDDP_OK);
    cr_assert_eq(comm.n_ops, 0, "bucket 1 is full, but bucket 0 is not");
    cr_assert_eq(cddp_ddp_grad_ready(d, 2), CDDP_OK);
    cr_assert_eq(comm.n_ops, 2);
    cr_assert_eq(comm.n_joins, 0, "nothing waited yet");
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, enqueues_mean_in_arena)
{
    cddp_comm comm;
    cddp_ddp *d;
    const struct cdi_coll *op = comm.ops;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, &small);
    for (size_t i = 4; i-- > 0;)
        (void)cddp_ddp_grad_ready(d, i);
    for (int b = 0; b < 2; b++) {
        cr_assert_eq(op[b].kind, CDI_ALL_REDUCE);
        cr_assert_eq(op[b].op, CDDP_AVG);
        cr_assert_eq(op[b].dtype, CDDP_FLOAT32);
        cr_assert_eq(op[b].bucket, b);
        cr_assert_eq(op[b].in, op[b].out);
        cr_assert_not_null(op[b].region);
        cr_assert_eq(op[b].count * 4, cddp_ddp_bucket_bytes(d, (size_t)b));
    }
    cr_assert_eq(op[0].out, cddp_ddp_grad(d, 3));
    cr_assert_eq(op[1].out, cddp_ddp_grad(d, 1));
    cr_assert_not(op[0].lazy, "there is work left to overlap with");
    cr_assert(op[1].lazy, "the last one is for cddp_ddp_wait");
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

/* The gradient of fc1.bias is in the caller's memory; operations wait for fake_complete, and halve their input. */
static cddp_ddp *open_with_own(cddp_comm *comm, cddp_param params[4], float own[64], const cddp_ddp_options *opt)
{
    memcpy(params, model, sizeof model);
    params[1].grad = own;
    fake_open(comm, 1);
    comm->manual = true;
    comm->factor = 0.5;
    return open_with(comm, params, 4, opt);
}

Test(reducer, copies_user_gradients_in_and_out)
{
    float own[64];
    cddp_param params[4];
    cddp_comm comm;
    cddp_ddp *d;

    d = open_with_own(&comm, params, own, NULL);
    cr_assert_eq(cddp_ddp_grad(d, 1), own);
    for (size_t i = 4; i-- > 0;) {
        float *g = cddp_ddp_grad(d, i);

        for (size_t k = 0; k < params[i].count; k++)
            g[k] = (float)(i + 1);
        (void)cddp_ddp_grad_ready(d, i);
    }
    cr_assert_eq(own[5], 2.0f);
    fake_complete(&comm, 1);
    cr_assert_eq(own[5], 2.0f, "the result arrives with wait");
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < params[i].count; k++)
            cr_assert_eq(((float *)cddp_ddp_grad(d, i))[k], (float)(i + 1) / 2);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, ready_twice_aborts_and_names_gradient)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    cr_assert_eq(cddp_ddp_grad_ready(d, 2), CDDP_OK);
    cr_assert_eq(cddp_ddp_grad_ready(d, 2), CDDP_E_STATE);
    cr_assert(strstr(cddp_last_error(), "parameter 2 'fc2.weight' was ready already") != NULL, "%s", cddp_last_error());
    cr_assert(strncmp(comm.abort_text, "rank 0: ", 8) == 0, "peers hear of it: %s", comm.abort_text);
    cr_assert_eq(cddp_ddp_grad_ready(d, 1), CDDP_E_STATE, "it is sticky");
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_STATE, "one check per loop is enough");
    cr_assert(strstr(cddp_last_error(), "'fc2.weight'") != NULL);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, names_missing_gradients_and_aborts)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    (void)cddp_ddp_grad_ready(d, 3);
    (void)cddp_ddp_grad_ready(d, 1);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_STATE);
    cr_assert_str_eq(cddp_last_error(), "2 of 4 gradients are missing in step 0: 'fc1.weight', 'fc2.weight'; call "
                                        "cddp_ddp_grad_ready for every parameter before cddp_ddp_wait");
    cr_assert(strncmp(comm.abort_text, "rank 0: 2 of 4 gradients are missing", 36) == 0, "%s", comm.abort_text);
    cr_assert_eq(cddp_ddp_grad_ready(d, 0), CDDP_E_STATE);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, errors_include_model_name)
{
    char name[] = "generator";
    const cddp_ddp_options opt = {.size = sizeof opt, .name = name},
                           bad = {.size = sizeof bad, .name = "critic", .comm_dtype = CDDP_INT8};
    cddp_comm comm;
    cddp_ddp *d, *none = NULL;

    fake_open(&comm, 1);
    cr_assert_eq(cddp_ddp_create(&none, &comm, model, 4, &bad), CDDP_E_INVALID);
    cr_assert(strncmp(cddp_last_error(), "model 'critic': cddp_ddp_options.comm_dtype", 43) == 0, "%s",
              cddp_last_error());
    d = open_with(&comm, model, 4, &opt);
    memset(name, 'x', 3); /* it was copied */
    (void)cddp_ddp_grad_ready(d, 3);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_STATE);
    cr_assert(strncmp(cddp_last_error(), "model 'generator': 3 of 4 gradients", 35) == 0, "%s", cddp_last_error());
    cr_assert(strncmp(comm.abort_text, "rank 0: model 'generator': 3 of 4", 33) == 0, "%s", comm.abort_text);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, names_at_most_eight_missing_gradients)
{
    static float data[20];
    static char names[20][8];
    cddp_param params[20] = {{0}};
    cddp_comm comm;
    cddp_ddp *d;

    for (int i = 0; i < 20; i++) {
        (void)snprintf(names[i], sizeof names[i], "p%d", i);
        params[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = names[i], .data = &data[i], .count = 1, .dtype = CDDP_FLOAT32};
    }
    fake_open(&comm, 1);
    d = open_with(&comm, params, 20, NULL);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_STATE);
    cr_assert(strstr(cddp_last_error(), "20 of 20 gradients are missing in step 0: 'p0', 'p1', 'p2', 'p3', 'p4', 'p5', "
                                        "'p6', 'p7' and 12 more; ") != NULL,
              "%s", cddp_last_error());
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, rejects_unknown_parameter)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    cr_assert_eq(cddp_ddp_grad_ready(d, 4), CDDP_E_INVALID);
    cr_assert_str_eq(cddp_last_error(), "there is no parameter 4, only 0 to 3");
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_INVALID);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, wait_returns_backend_error_and_keeps_it)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    for (size_t i = 4; i-- > 0;)
        (void)cddp_ddp_grad_ready(d, i);
    comm.fail_join = CDDP_E_PEER;
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_PEER);
    cr_assert_str_eq(cddp_last_error(), "scripted: join failed");
    comm.fail_join = CDDP_OK;
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_PEER);
    cr_assert_eq(cddp_ddp_grad_ready(d, 0), CDDP_E_PEER);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, wait_returns_failed_launch)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    comm.fail_enqueue = CDDP_E_TIMEOUT;
    for (size_t i = 4; i-- > 0;)
        (void)cddp_ddp_grad_ready(d, i);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_TIMEOUT);
    cr_assert_str_eq(cddp_last_error(), "scripted: cannot enqueue");
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, flight_page_counts_steps)
{
    cddp_comm comm;
    cddp_ddp *d;
    struct cdi_flight_view v;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    for (int step = 0; step < 5; step++) {
        for (size_t i = 0; i < 4; i++)
            (void)cddp_ddp_grad_ready(d, i);
        cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    }
    cdi_flight_read(comm.world.flight, &v);
    cr_assert_eq(v.step, 5);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

/* One whole step. */
static void take_step(cddp_ddp *d)
{
    for (size_t i = 4; i-- > 0;)
        cr_assert_eq(cddp_ddp_grad_ready(d, i), CDDP_OK);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
}

Test(reducer, flight_page_has_steps_and_names)
{
    struct cdi_flight_step s[8];
    char names[CDI_FLIGHT_NAMES];
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, &small);
    for (int step = 0; step < 3; step++)
        take_step(d);
    cr_assert_eq(cdi_flight_steps(comm.world.flight, 0, s, 8), 3);
    for (size_t i = 0; i < 3; i++)
        cr_expect(s[i].step == i && s[i].n_buckets == 2 && s[i].end_ns > 0 && s[i].end_ns >= s[i].begun_ns &&
                  s[i].late_rank == -1);
    cr_expect(s[1].begun_ns == s[0].end_ns && s[2].begun_ns == s[1].end_ns);
    cdi_flight_names(comm.world.flight, 0, names);
    cr_expect_str_eq(names, "fc2.weight, fc2.bias");
    cdi_flight_names(comm.world.flight, 1, names);
    cr_expect_str_eq(names, "fc1.weight, fc1.bias");
    cdi_flight_names(comm.world.flight, 2, names);
    cr_expect_str_eq(names, "");
    cddp_ddp_destroy(d);
    d = open_with(&comm, model, 4, NULL);
    cdi_flight_names(comm.world.flight, 0, names);
    cr_expect_str_eq(names, "fc1.weight, fc1.bias and 2 more");
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, stats_of_operations_that_the_backend_has_timed)
{
    cddp_ddp_stats s = {.size = sizeof s};
    int64_t begin;
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, &small);
    cr_assert_eq(cddp_ddp_get_stats(d, &s), CDDP_OK);
    cr_assert(s.size == sizeof s && s.steps == 0 && s.n_buckets == 2 && s.slowest_rank == -1);
    cr_assert(s.bucket_bytes >= 4 * (832 + 64 + 192 + 3) && s.largest_bucket_bytes == 4 * (832 + 64));
    take_step(d);
    begin = cdi_now_ns();
    for (size_t i = 4; i-- > 0;)
        cr_assert_eq(cddp_ddp_grad_ready(d, i), CDDP_OK);
    for (size_t k = 2; k < 4; k++) { /* the fake backend leaves the times to the test */
        cr_assert_not_null(comm.ops[k].times);
        cr_assert(comm.ops[k].ready_ns > 0 && comm.ops[k].enqueued_ns >= comm.ops[k].ready_ns);
        *comm.ops[k].times =
            (struct cdi_coll_times){.started_ns = begin, .done_ns = begin + (int64_t)k * 1000, .late_rank = -1};
    }
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    cr_assert_eq(cddp_ddp_get_stats(d, &s), CDDP_OK);
    cr_assert(s.steps == 1 && s.comm_ns == 3000 && s.last_comm_ns == 3000 && s.late_ns == 0);
    cr_assert(s.exposed_ns + s.hidden_ns == 3000 && s.bytes == s.bucket_bytes);
    take_step(d);
    cr_assert_eq(cddp_ddp_get_stats(d, &s), CDDP_OK);
    cr_assert(s.steps == 2 && s.comm_ns == 3000 && s.last_comm_ns == 0 && s.last_step_ns <= s.step_ns);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, stats_are_filled_as_far_as_both_know)
{
    struct {
        cddp_ddp_stats s;
        uint64_t later;
    } larger = {.s.size = sizeof larger, .later = 5};
    cddp_ddp_stats s = {.size = offsetof(cddp_ddp_stats, bytes), .bytes = 77};
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, NULL);
    cr_assert(cddp_ddp_get_stats(d, &s) == CDDP_OK && s.bytes == 77);
    cr_assert(cddp_ddp_get_stats(d, &larger.s) == CDDP_OK && larger.s.n_buckets == 1);
    s.size = 0;
    cr_assert_eq(cddp_ddp_get_stats(d, &s), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_get_stats(d, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_get_stats(NULL, &s), CDDP_E_INVALID);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, destroy_does_not_wait_and_keeps_memory_in_flight)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, &small);
    (void)cddp_ddp_grad_ready(d, 3);
    (void)cddp_ddp_grad_ready(d, 2);
    cr_assert_eq(comm.n_ops, 1);
    cddp_ddp_destroy(d);
    cr_assert(comm.n_joins == 0 && comm.n_regions == 1 && comm.graves != NULL);
    cddp_ddp_destroy(NULL);
    fake_close(&comm, 1);
    fake_open(&comm, 1);
    d = open_with(&comm, model, 4, &small);
    (void)cddp_ddp_grad_ready(d, 3);
    (void)cddp_ddp_grad_ready(d, 2);
    comm.fail_health = CDDP_E_PEER;
    cddp_ddp_destroy(d);
    cr_assert(comm.n_joins == 1 && comm.n_regions == 0, "after an error nothing is left to go on");
    fake_close(&comm, 1);
}

/* ------------------------------------------------------------------------------------------- several threads ---- */

struct workers {
    cddp_ddp *d;
    _Atomic size_t next; /* parameter to report */
    size_t n;
};

static void *report_gradients(void *arg)
{
    struct workers *c = arg;
    size_t i;

    while ((i = atomic_fetch_add(&c->next, 1)) < c->n)
        if (cddp_ddp_grad_ready(c->d, c->n - 1 - i) != CDDP_OK)
            return c;
    return NULL;
}

Test(reducer, threads_keep_launch_order)
{
    enum { N = 60, THREADS = 4, STEPS = 4 };
    static float data[N][64], grads[N][64];
    cddp_param params[N] = {{0}};
    cddp_ddp_options opt = {.size = sizeof opt, .first_bucket_bytes = 256, .bucket_bytes = 256};
    struct workers workers = {.n = N};
    cddp_comm comm;

    for (int i = 0; i < N; i++)
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = "p",
                                 .data = data[i],
                                 .count = 64,
                                 .dtype = CDDP_FLOAT32,
                                 .grad = i % 2 == 0 ? grads[i] : NULL};
    fake_open(&comm, 1);
    workers.d = open_with(&comm, params, N, &opt);
    cr_assert_eq(cddp_ddp_bucket_count(workers.d), N);
    for (int step = 0; step < STEPS; step++) {
        pthread_t t[THREADS];

        workers.next = 0;
        for (int k = 0; k < THREADS; k++)
            cr_assert_eq(pthread_create(&t[k], NULL, report_gradients, &workers), 0);
        for (int k = 0; k < THREADS; k++) {
            void *failed;

            (void)pthread_join(t[k], &failed);
            cr_assert_null(failed);
        }
        cr_assert_eq(cddp_ddp_wait(workers.d), CDDP_OK);
    }
    cr_assert_eq(comm.n_ops, STEPS * N);
    for (int k = 0; k < STEPS * N; k++)
        cr_assert_eq(comm.ops[k].bucket, k % N);
    cddp_ddp_destroy(workers.d);
    fake_close(&comm, 1);
}

static void *abort_soon(void *arg)
{
    const struct cdi_error enough = {.status = CDDP_E_ABORTED, .msg = "enough"};
    cddp_comm *comm = arg;

    cdi_comm_ops(comm)->abort(cdi_comm_backend(comm), &enough);
    return NULL;
}

Test(reducer, abort_from_thread_ends_wait)
{
    cddp_comm comm;
    cddp_ddp *d;
    pthread_t t;

    fake_open(&comm, 1);
    comm.manual = true;
    d = open_with(&comm, model, 4, NULL);
    for (size_t i = 4; i-- > 0;)
        (void)cddp_ddp_grad_ready(d, i);
    cr_assert_eq(pthread_create(&t, NULL, abort_soon, &comm), 0);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_ABORTED);
    cr_assert_str_eq(cddp_last_error(), "enough");
    (void)pthread_join(t, NULL);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

/* ---------------------------------------------------------------------------------------------------- create ---- */

Test(reducer, rejects_bad_parameters)
{
    static const size_t two_by_four[] = {2, 4}, huge[] = {SIZE_MAX, SIZE_MAX};
    static const struct {
        cddp_param p;
        const char *text;
    } bad[] = {
        {{.name = "a", .data = w1, .count = 1, .dtype = CDDP_FLOAT32},
         "parameters: cddp_param.size is 0, so it is not set: write .size = sizeof(cddp_param)"},
        {{.size = sizeof(cddp_param), .data = w1, .count = 1, .dtype = CDDP_FLOAT32}, "parameter 0 has no name"},
        {{.size = sizeof(cddp_param), .name = "", .data = w1, .count = 1, .dtype = CDDP_FLOAT32},
         "parameter 0 has no name"},
        {{.size = sizeof(cddp_param), .name = "a", .count = 1, .dtype = CDDP_FLOAT32}, "'a' has no data"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .dtype = CDDP_FLOAT32}, "'a' has no elements"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1}, "'a' has no valid type (0)"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1, .dtype = CDDP_INT32}, "'a' is int32"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1, .dtype = CDDP_UINT16},
         "'a' is uint16, but a reducer supports float16, bfloat16, float32 and float64"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1, .dtype = CDDP_FLOAT8_E4M3},
         "'a' is float8_e4m3, but a reducer supports float16, bfloat16, float32 and float64"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1, .dtype = (cddp_dtype)40},
         "'a' has no valid type (40)"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = SIZE_MAX / 2, .dtype = CDDP_FLOAT64},
         "more than memory can hold"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1, .dtype = CDDP_FLOAT32, .flags = 4},
         "unknown flags (0x4)"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1, .dtype = CDDP_FLOAT32, .flags = 1},
         "has CDDP_PARAM_FROZEN, which is for cddp_fsdp_create"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 1, .dtype = CDDP_FLOAT32, .zero = 9},
         "'a' has 0x9 in `zero`"},
        {{.size = sizeof(cddp_param),
          .name = "a",
          .data = w1,
          .count = 1,
          .dtype = CDDP_FLOAT32,
          .grad_dtype = CDDP_FLOAT16},
         "parameter 0 'a' is float32 and has grad_dtype float16 (7): use 0 for its own type, or CDDP_FLOAT32"},
        {{.size = sizeof(cddp_param),
          .name = "a",
          .data = w1,
          .count = 1,
          .dtype = CDDP_BFLOAT16,
          .grad_dtype = CDDP_FLOAT64},
         "parameter 0 'a' is bfloat16 and has grad_dtype float64 (9)"},
        {{.size = sizeof(cddp_param), .name = "a", .data = w1, .count = 6, .dtype = CDDP_FLOAT32, .n_dims = 1},
         "n_dims 1 but no shape"},
        {{.size = sizeof(cddp_param),
          .name = "a",
          .data = w1,
          .count = 6,
          .dtype = CDDP_FLOAT32,
          .shape = two_by_four,
          .n_dims = SIZE_MAX},
         "'a' has n_dims 18446744073709551615: at most 64"},
        {{.size = sizeof(cddp_param),
          .name = "a",
          .data = w1,
          .count = 6,
          .dtype = CDDP_FLOAT32,
          .shape = two_by_four,
          .n_dims = 2},
         "has 8 elements, but its count is 6"},
        {{.size = sizeof(cddp_param),
          .name = "a",
          .data = w1,
          .count = 6,
          .dtype = CDDP_FLOAT32,
          .shape = huge,
          .n_dims = 2},
         "shape of parameter 0 'a' is too large"},
    };
    cddp_comm comm;
    cddp_ddp *d = NULL;

    fake_open(&comm, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(cddp_ddp_create(&d, &comm, &bad[i].p, 1, NULL), CDDP_E_INVALID, "case %zu", i);
        cr_assert(strstr(cddp_last_error(), bad[i].text) != NULL, "case %zu: %s", i, cddp_last_error());
    }
    cr_assert_eq(cddp_ddp_create(&d, &comm, model, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_create(&d, &comm, NULL, 3, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_create(&d, NULL, model, 4, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_ddp_create(NULL, &comm, model, 4, NULL), CDDP_E_INVALID);
    cr_assert_null(d);
    fake_close(&comm, 1);
}

Test(reducer, rejects_bad_options)
{
    static const struct {
        cddp_ddp_options opt;
        const char *text;
    } bad[] = {
        {{.size = 0}, "size is 0"},
        {{.size = sizeof(void *)}, "size is 8, so it is not set: write .size = sizeof(cddp_ddp_options)"},
        {{.size = sizeof(cddp_ddp_options), .flags = 0x80000000u}, "unknown bits"},
    };
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(cddp_ddp_create(&d, &comm, model, 4, &bad[i].opt), CDDP_E_INVALID);
        cr_assert(strstr(cddp_last_error(), bad[i].text) != NULL, "case %zu: %s", i, cddp_last_error());
    }
    fake_close(&comm, 1);
}

Test(reducer, out_of_memory_for_arena_leaks_nothing)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    comm.fail_region = CDDP_E_NOMEM;
    cr_assert_eq(cddp_ddp_create(&d, &comm, model, 4, NULL), CDDP_E_NOMEM);
    cr_assert_str_eq(cddp_last_error(), "scripted: no region");
    comm.fail_gather = CDDP_E_PEER;
    cr_assert_eq(cddp_ddp_create(&d, &comm, model, 4, NULL), CDDP_E_PEER);
    fake_close(&comm, 1);
}

struct pair {
    float data[2][4];
    uint32_t flags;
    const char *bad_name; /* rank 1's name */
    cddp_status status[2];
    char message[2][256];
};

static void create_on_rank(cddp_comm *comm, void *arg)
{
    struct pair *pair = arg;
    int r = comm->world.rank;
    cddp_param p = {.size = sizeof(cddp_param),
                    .name = r == 1 ? pair->bad_name : "w",
                    .data = pair->data[r],
                    .count = 4,
                    .dtype = CDDP_FLOAT32};
    cddp_ddp_options opt = {.size = sizeof opt, .flags = pair->flags};
    cddp_ddp *d = NULL;

    pair->status[r] = cddp_ddp_create(&d, comm, &p, 1, &opt);
    (void)snprintf(pair->message[r], sizeof pair->message[r], "%s", cddp_last_error());
    cddp_ddp_destroy(d);
}

Test(reducer, broadcasts_parameters_unless_disabled)
{
    for (uint32_t flags = 0; flags <= CDDP_DDP_NO_BROADCAST; flags++) {
        struct pair pair = {.data = {{1, 2, 3, 4}, {5, 6, 7, 8}}, .flags = flags, .bad_name = "w"};
        cddp_comm comms[2];

        fake_open(comms, 2);
        fake_run(comms, 2, create_on_rank, &pair);
        cr_assert_eq(pair.status[1], CDDP_OK);
        cr_assert_eq(pair.data[1][2], flags == 0 ? 3.0f : 7.0f);
        fake_close(comms, 2);
    }
}

/* Many small parameters and a large one. */
struct crowd {
    float small[2][1000][5], *large[2];
    bool device;
    cddp_status status[2];
};

#define LARGE_COUNT ((size_t)400000)

static void create_crowd(cddp_comm *comm, void *arg)
{
    static cddp_param params[2][1001];
    struct crowd *c = arg;
    int r = comm->world.rank;
    cddp_ddp *d = NULL;

    comm->device = c->device;
    for (size_t i = 0; i < 1001; i++) {
        size_t k = i < 500 ? i : i - 1;

        params[r][i] = i == 500 ? (cddp_param){.size = sizeof(cddp_param),
                                               .name = "p",
                                               .data = c->large[r],
                                               .count = LARGE_COUNT,
                                               .dtype = CDDP_FLOAT32}
                                : (cddp_param){.size = sizeof(cddp_param),
                                               .name = "p",
                                               .data = c->small[r][k],
                                               .count = 5,
                                               .dtype = CDDP_FLOAT32};
    }
    c->status[r] = cddp_ddp_create(&d, comm, params[r], 1001, NULL);
    cddp_ddp_destroy(d);
}

Test(reducer, broadcasts_small_parameters_together)
{
    for (int device = 0; device < 2; device++) {
        struct crowd c = {.device = device == 1};
        cddp_comm comms[2];

        for (int r = 0; r < 2; r++) {
            c.large[r] = malloc(LARGE_COUNT * sizeof(float));
            for (size_t i = 0; i < 5000; i++)
                c.small[r][i / 5][i % 5] = r == 0 ? (float)i : -1;
            for (size_t i = 0; i < LARGE_COUNT; i++)
                c.large[r][i] = r == 0 ? (float)i : -1;
        }
        fake_open(comms, 2);
        fake_run(comms, 2, create_crowd, &c);
        cr_assert(c.status[0] == CDDP_OK && c.status[1] == CDDP_OK);
        cr_assert_eq(comms[0].n_broadcasts, 3, "500 small ones, the large one, 500 small ones");
        cr_assert_eq(memcmp(c.small[0], c.small[1], sizeof c.small[0]), 0);
        cr_assert(c.small[0][999][4] == 4999 && c.large[0][1] == 1, "rank 0's are what they were");
        cr_assert_eq(memcmp(c.large[0], c.large[1], LARGE_COUNT * sizeof(float)), 0);
        if (c.device) {
            cr_assert_str_eq(comms[0].calls, "wait_stream 0; pack; pack; copy; ", "the host waits at the end");
            cr_assert_str_eq(comms[1].calls, "wait_stream 0; unpack; unpack; copy; ");
        }
        fake_close(comms, 2);
        free(c.large[0]);
        free(c.large[1]);
    }
}

Test(reducer, bad_parameter_on_one_rank_fails_all)
{
    struct pair pair = {.bad_name = NULL};
    cddp_comm comms[2];

    fake_open(comms, 2);
    fake_run(comms, 2, create_on_rank, &pair);
    cr_assert_eq(pair.status[0], CDDP_E_INVALID);
    cr_assert_eq(pair.status[1], CDDP_E_INVALID);
    cr_assert(strstr(pair.message[0], "rank 1 could not create its reducer: parameter 0 has no name") != NULL);
    cr_assert(strncmp(pair.message[1], "parameter 0 has no name", 23) == 0);
    fake_close(comms, 2);
}

/* ------------------------------------------------------------------------------------- parts of a step, devices ----
 */

Test(reducer, waits_for_one_gradient)
{
    float own[64];
    cddp_param params[4];
    cddp_comm comm;
    cddp_ddp *d;

    d = open_with_own(&comm, params, own, &small);
    cr_assert_eq(cddp_ddp_wait_param(d, 3), CDDP_E_STATE);
    cr_assert(strstr(cddp_last_error(), "parameter 3 'fc2.bias' cannot be waited for: its bucket 0 has not started") !=
                  NULL,
              "%s", cddp_last_error());
    cr_assert_eq(cddp_ddp_wait_param(d, 4), CDDP_E_INVALID);
    for (size_t i = 4; i-- > 0;) {
        for (size_t k = 0; k < params[i].count; k++)
            ((float *)cddp_ddp_grad(d, i))[k] = 2;
        cr_assert_eq(cddp_ddp_grad_ready(d, i), CDDP_OK, "an early wait breaks nothing");
    }
    fake_complete(&comm, 1);
    cr_assert_eq(cddp_ddp_wait_param(d, 3), CDDP_OK);
    cr_assert_eq(((float *)cddp_ddp_grad(d, 3))[0], 1.0f);
    cr_assert_eq(own[0], 2.0f, "the other bucket is still under way");
    fake_complete(&comm, 2);
    cr_assert_eq(cddp_ddp_wait_param(d, 1), CDDP_OK);
    cr_assert_eq(own[0], 1.0f);
    own[0] = 7; /* the optimizer already uses it */
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    cr_assert_eq(own[0], 7.0f, "it is not brought out twice");
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, sum_leaves_factor_to_optimizer)
{
    cddp_ddp_options opt = {.size = sizeof opt, .flags = CDDP_DDP_SUM};
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    for (uint32_t sum = 0; sum < 2; sum++) {
        comm.world.size = 1; /* creation is a collective */
        opt.flags = sum ? CDDP_DDP_SUM : 0;
        d = open_with(&comm, model, 4, &opt);
        comm.world.size = 4;
        cr_assert_eq(cddp_ddp_grad_scale(d), sum ? 0.25 : 1.0);
        for (size_t i = 4; i-- > 0;)
            (void)cddp_ddp_grad_ready(d, i);
        cr_assert_eq(comm.ops[comm.n_ops - 1].op, sum ? CDDP_SUM : CDDP_AVG);
        cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
        cddp_ddp_destroy(d);
    }
    cr_assert_eq(cddp_ddp_grad_scale(NULL), 1.0);
    fake_close(&comm, 1);
}

/* No two of the buckets are small. */
static const cddp_param large[4] = {
    {.size = sizeof(cddp_param), .name = "fc1.weight", .data = big_data, .count = 20000, .dtype = CDDP_FLOAT32},
    {.size = sizeof(cddp_param), .name = "fc1.bias", .data = b1, .count = 64, .dtype = CDDP_FLOAT32},
    {.size = sizeof(cddp_param), .name = "fc2.weight", .data = w2, .count = 192, .dtype = CDDP_FLOAT32},
    {.size = sizeof(cddp_param), .name = "fc2.bias", .data = b2, .count = 3, .dtype = CDDP_FLOAT32},
};

static void *stream(int n)
{
    return (void *)(intptr_t)n;
}

static int64_t counters[2];
static float means[2][64];

static void create_with_buffers(cddp_comm *comm, void *arg)
{
    cddp_ddp **d = arg;
    int r = comm->world.rank;
    const cddp_param buffers[2] = {
        {.size = sizeof(cddp_param), .name = "mean", .data = means[r], .count = 64, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "steps", .data = &counters[r], .count = 1, .dtype = CDDP_INT64}};
    cddp_ddp_options opt = {
        .size = sizeof opt, .flags = CDDP_DDP_NO_BROADCAST, .stream = stream(1), .buffers = buffers, .n_buffers = 2};

    comm->device = true;
    cr_assert_eq(cddp_ddp_create(&d[r], comm, model, 4, &opt), CDDP_OK);
}

Test(reducer, device_broadcasts_buffers_without_waiting)
{
    cddp_comm comms[2];
    cddp_ddp *d[2] = {NULL};

    fake_open(comms, 2);
    fake_run(comms, 2, create_with_buffers, d);
    for (int r = 0; r < 2; r++)
        cr_assert_eq(cddp_ddp_sync_buffers(d[r]), CDDP_OK);
    cr_assert_str_eq(comms[0].calls, "wait_stream 1; pack; broadcast 264; stream_wait 0 on 1; ");
    cr_assert_str_eq(comms[1].calls, "wait_stream 1; broadcast 264; unpack; stream_wait 0 on 1; ");
    cr_assert_eq(comms[0].n_joins, 0);
    for (int r = 0; r < 2; r++)
        cddp_ddp_destroy(d[r]);
    cr_assert_eq(comms[0].n_joins, 1, "before the stage goes, all is done");
    fake_close(comms, 2);
}

Test(reducer, device_waits_for_extra_streams_at_once)
{
    cddp_param params[6];
    static float data[6];
    cddp_comm comm;
    cddp_ddp *d;

    for (int i = 0; i < 6; i++)
        params[i] =
            (cddp_param){.size = sizeof(cddp_param), .name = "p", .data = &data[i], .count = 1, .dtype = CDDP_FLOAT32};
    fake_open(&comm, 1);
    comm.device = true;
    d = open_with(&comm, params, 6, NULL);
    comm.calls[0] = '\0';
    for (int i = 0; i < 6; i++)
        (void)cddp_ddp_grad_ready_on(d, (size_t)i, stream(10 + i));
    cr_assert_str_eq(comm.calls, "wait_stream 14; wait_stream 15; wait_stream 10; wait_stream 11; wait_stream 12; "
                                 "wait_stream 13; all_reduce 0; ");
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

/* Ranks agree on the order of buckets after the first step, where there are several. */
static void step_of_one_bucket(cddp_comm *comm, void *arg)
{
    static float data[2][4];
    const cddp_param p = {
        .size = sizeof p, .name = "w", .data = data[comm->world.rank], .count = 4, .dtype = CDDP_FLOAT32};
    cddp_ddp *d = open_with(comm, &p, 1, NULL);
    size_t n_ops = comm->n_ops, n_broadcasts = comm->n_broadcasts;

    (void)arg;
    cr_assert_eq(cddp_ddp_grad_ready(d, 0), CDDP_OK);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    cr_assert(comm->n_ops == n_ops + 1 && comm->n_broadcasts == n_broadcasts, "%zu operations", comm->n_ops - n_ops);
    cddp_ddp_destroy(d);
}

Test(reducer, one_bucket_has_no_order_to_agree_on)
{
    cddp_comm comms[2];

    fake_open(comms, 2);
    fake_run(comms, 2, step_of_one_bucket, NULL);
    fake_close(comms, 2);
}

/* It is another stream in each thread, and the thread of the last gradient starts the bucket. */
Test(reducer, rejects_per_thread_stream)
{
    cddp_ddp_options opt = small;
    cddp_comm comm;
    cddp_ddp *d = NULL;

    fake_open(&comm, 1);
    comm.device = true;
    opt.stream = stream(2);
    cr_assert_eq(cddp_ddp_create(&d, &comm, large, 4, &opt), CDDP_E_INVALID);
    cr_assert(strstr(cddp_last_error(), "cudaStreamPerThread") != NULL, "%s", cddp_last_error());
    d = open_with(&comm, large, 4, &small);
    cr_assert_eq(cddp_ddp_grad_ready_on(d, 3, stream(2)), CDDP_E_INVALID);
    cr_assert(strstr(cddp_last_error(), "cudaStreamPerThread") != NULL, "%s", cddp_last_error());
    for (size_t i = 4; i-- > 0;)
        cr_assert_eq(cddp_ddp_grad_ready_on(d, i, stream(1)), CDDP_OK, "the legacy one has a handle, too");
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, rejects_host_memory_on_device)
{
    cddp_param params[4];
    cddp_comm comm;
    cddp_ddp *d = NULL;
    float own[832];

    memcpy(params, model, sizeof model);
    params[0].grad = own;
    fake_open(&comm, 1);
    comm.device = true;
    for (int k = 0; k < 2; k++) {
        comm.on_host = k == 0 ? (const void *)own : w2;
        cr_assert_eq(cddp_ddp_create(&d, &comm, params, 4, NULL), CDDP_E_INVALID);
        cr_assert(strstr(cddp_last_error(), k == 0 ? "parameter 0 'fc1.weight' has its gradient in host memory"
                                                   : "parameter 2 'fc2.weight' has its data in host memory") != NULL,
                  "%s", cddp_last_error());
    }
    fake_close(&comm, 1);
}

Test(reducer, next_call_returns_device_error)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    comm.device = true;
    d = open_with(&comm, model, 4, NULL);
    for (size_t i = 4; i-- > 0;)
        (void)cddp_ddp_grad_ready(d, i);
    comm.fail_join = CDDP_E_PEER;
    cr_assert_eq(cddp_ddp_wait_param(d, 0), CDDP_E_PEER);
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_PEER);
    cr_assert_eq(cddp_ddp_grad_ready(d, 0), CDDP_E_PEER);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

Test(reducer, next_gradient_returns_device_error)
{
    cddp_comm comm;
    cddp_ddp *d;

    fake_open(&comm, 1);
    comm.device = true;
    d = open_with(&comm, large, 4, NULL);
    cr_assert_eq(cddp_ddp_grad_ready(d, 3), CDDP_OK);
    comm.fail_health = CDDP_E_PEER;
    cr_assert_eq(cddp_ddp_grad_ready(d, 2), CDDP_E_PEER);
    cr_assert_str_eq(cddp_last_error(), "scripted: broken");
    comm.fail_health = CDDP_OK;
    cr_assert_eq(cddp_ddp_wait(d), CDDP_E_PEER);
    cddp_ddp_destroy(d);
    fake_close(&comm, 1);
}

/* The gradients that become ready, in order; the number of operations begun before and in cddp_ddp_wait. */
static void step_begins(cddp_ddp *d, cddp_comm *comm, const char *which, size_t before, size_t in_wait)
{
    size_t at = comm->n_ops;

    for (; *which != '\0'; which++)
        cr_assert_eq(cddp_ddp_grad_ready(d, (size_t)(*which - '0')), CDDP_OK, "%s", cddp_last_error());
    cr_assert(comm->device || comm->n_ops - at == before); /* there small ones start together */
    cr_assert_eq(cddp_ddp_wait(d), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(comm->n_ops - at, before + in_wait);
}

Test(reducer, skips_unused_buckets)
{
    cddp_ddp_options opt = {.size = sizeof opt, .first_bucket_bytes = 1, .bucket_bytes = 1};
    cddp_comm comm;
    cddp_ddp *d;

    for (int device = 0; device < 2; device++) {
        fake_open(&comm, 1);
        comm.device = device != 0;
        opt.flags = CDDP_DDP_FIND_UNUSED | CDDP_DDP_SKIP_UNUSED;
        d = open_with(&comm, model, 4, &opt);
        step_begins(d, &comm, "310", 1, 4);  /* all wait for 2; and the map of used gradients */
        step_begins(d, &comm, "310", 3, 1);  /* no rank does */
        step_begins(d, &comm, "2310", 3, 2); /* it is launched out of turn, when all ranks know that it is used */
        step_begins(d, &comm, "2310", 4, 1);
        step_begins(d, &comm, "3", 1, 4);
        step_begins(d, &comm, "", 0, 2); /* only the bucket of 3 was launched in turn */
        step_begins(d, &comm, "", 0, 1);
        step_begins(d, &comm, "3210", 0, 5);
        cr_assert_eq(cddp_ddp_set_powersgd(d, NULL), CDDP_E_INVALID);
        cddp_ddp_destroy(d);
        opt.flags = CDDP_DDP_STATIC_GRAPH | CDDP_DDP_SKIP_UNUSED;
        d = open_with(&comm, model, 4, &opt);
        step_begins(d, &comm, "310", 0, 5);
        step_begins(d, &comm, "310", 3, 0);
        step_begins(d, &comm, "013", 3, 0);
        cr_assert_eq(cddp_ddp_grad_ready(d, 2), CDDP_E_STATE, "the graph has changed");
        cddp_ddp_destroy(d);
        opt.flags = CDDP_DDP_SKIP_UNUSED;
        cr_assert_eq(cddp_ddp_create(&d, &comm, model, 4, &opt), CDDP_E_INVALID);
        cr_assert(strstr(cddp_last_error(), "CDDP_DDP_SKIP_UNUSED needs") != NULL);
        fake_close(&comm, 1);
    }
}
