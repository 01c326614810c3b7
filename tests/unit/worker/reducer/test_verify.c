/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_backend.h"
#include "hygiene.h"
#include "worker/reducer/state/verify.h"

#include <string.h>

CDI_SUITE(verify);

#define MAX_RANKS 4

/* Input and result of each rank of a test. */
struct scene {
    struct cdi_verify_input in[MAX_RANKS];
    struct cdi_error local[MAX_RANKS]; /* status CDDP_OK: none */
    cddp_status status[MAX_RANKS];
    struct cdi_error err[MAX_RANKS];
};

static const cddp_param model[] = {
    {.size = sizeof(cddp_param),
     .name = "fc1.weight",
     .count = 832,
     .dtype = CDDP_FLOAT32,
     .shape = (size_t[]){64, 13},
     .n_dims = 2},
    {.size = sizeof(cddp_param), .name = "fc1.bias", .count = 64, .dtype = CDDP_FLOAT32},
    {.size = sizeof(cddp_param),
     .name = "fc2.weight",
     .count = 192,
     .dtype = CDDP_FLOAT32,
     .shape = (size_t[]){3, 64},
     .n_dims = 2},
    {.size = sizeof(cddp_param), .name = "fc2.bias", .count = 3, .dtype = CDDP_FLOAT32},
};

static void one_rank(cddp_comm *comm, void *arg)
{
    struct scene *s = arg;
    int r = comm->world.rank;

    s->status[r] = cdi_verify(comm, &s->in[r], s->local[r].status != CDDP_OK ? &s->local[r] : NULL, &s->err[r]);
}

static void play(struct scene *s, int n)
{
    cddp_comm comms[MAX_RANKS];

    fake_open(comms, n);
    fake_run(comms, n, one_rank, s);
    fake_close(comms, n);
}

static void expect_everywhere(struct scene *s, int n, cddp_status status, const char *text)
{
    play(s, n);
    for (int r = 0; r < n; r++) {
        cr_assert_eq(s->status[r], status, "rank %d got %d (%s)", r, s->status[r], s->err[r].msg);
        if (status != CDDP_OK)
            cr_assert_str_eq(s->err[r].msg, text);
    }
}

static struct scene same(int n)
{
    struct scene s = {0};

    for (int r = 0; r < n; r++)
        s.in[r] =
            (struct cdi_verify_input){.params = model, .n_params = 4, .bucket_bytes = 100, .first_bucket_bytes = 10};
    return s;
}

/* Gives rank `rank` one parameter that differs from the others'. `copy` is its memory. */
static void change(struct scene *s, int rank, cddp_param copy[4], size_t i, cddp_param p)
{
    memcpy(copy, model, sizeof model);
    copy[i] = p;
    s->in[rank].params = copy;
}

Test(verify, equal_models_agree)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        struct scene s = same(n);

        expect_everywhere(&s, n, CDDP_OK, NULL);
    }
}

#define PARAM(text, n, type, ...)                                                                   \
    {                                                                                               \
        .size = sizeof(cddp_param), .name = (text), .count = (n), .dtype = CDDP_##type, __VA_ARGS__ \
    }

Test(verify, names_what_differs_in_a_parameter)
{
    const struct {
        int rank; /* the last one */
        size_t i;
        cddp_param p;
        const char *says;
    } cases[] = {
        {1, 2, PARAM("fc2.weight", 195, FLOAT32, .shape = (size_t[]){3, 65}, .n_dims = 2),
         "parameter 2 'fc2.weight' is float32 [3, 64] on rank 0 but float32 [3, 65] on rank 1"},
        {2, 2, PARAM("fc2.weight", 192, FLOAT32, .shape = (size_t[]){64, 3}, .n_dims = 2),
         "parameter 2 'fc2.weight' is float32 [3, 64] on rank 0 but float32 [64, 3] on rank 2"},
        {3, 3, PARAM("fc2.bias", 3, BFLOAT16, .shape = NULL),
         "parameter 3 'fc2.bias' is float32 [3] on rank 0 but bfloat16 [3] on rank 3"},
        {1, 1, PARAM("fc1.beta", 64, FLOAT32, .shape = NULL),
         "parameter 1 is 'fc1.bias' float32 [64] on rank 0 but 'fc1.beta' float32 [64] on rank 1"},
        {1, 3, PARAM("fc2.bias", 3, FLOAT32, .shape = (size_t[]){3}, .n_dims = 1), NULL}, /* its count is its shape */
    };

    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct scene s = same(cases[k].rank + 1);
        cddp_param copy[4];

        change(&s, cases[k].rank, copy, cases[k].i, cases[k].p);
        expect_everywhere(&s, cases[k].rank + 1, cases[k].says != NULL ? CDDP_E_MISMATCH : CDDP_OK, cases[k].says);
    }
}

/* The shapes are equal, but one rank has a copy where the other one has the same memory. */
Test(verify, names_other_ties)
{
    static const size_t tied[] = {0, 1, 2, 0}, others[] = {0, 1, 2, 1};
    struct scene s = same(3);

    s.in[0].tied = s.in[1].tied = s.in[2].tied = tied;
    expect_everywhere(&s, 3, CDDP_OK, NULL);
    s.in[2].tied = others;
    expect_everywhere(&s, 3, CDDP_E_MISMATCH,
                      "parameter 3 'fc2.bias' is float32 [3] tied to parameter 0 on rank 0 but float32 [3] tied to "
                      "parameter 1 on rank 2");
    s.in[2].tied = NULL;
    expect_everywhere(&s, 3, CDDP_E_MISMATCH,
                      "parameter 3 'fc2.bias' is float32 [3] tied to parameter 0 on rank 0 but float32 [3] on rank 2");
}

Test(verify, names_missing_parameter_with_counts)
{
    struct scene s = same(2);

    s.in[1].n_params = 3;
    expect_everywhere(&s, 2, CDDP_E_MISMATCH,
                      "rank 1 has 3 parameters but rank 0 has 4: parameter 3 'fc2.bias' float32 [3] is only on rank 0");
    s = same(2);
    s.in[0].n_params = 2;
    expect_everywhere(
        &s, 2, CDDP_E_MISMATCH,
        "rank 0 has 2 parameters but rank 1 has 4: parameter 2 'fc2.weight' float32 [3, 64] is only on rank 1");
}

Test(verify, names_first_different_rank)
{
    struct scene s = same(4);
    cddp_param a[4], b[4];

    change(&s, 3, a, 0, (cddp_param){.size = sizeof(cddp_param), .name = "x", .count = 1, .dtype = CDDP_FLOAT32});
    change(&s, 2, b, 3,
           (cddp_param){.size = sizeof(cddp_param), .name = "fc2.bias", .count = 4, .dtype = CDDP_FLOAT32});
    expect_everywhere(&s, 4, CDDP_E_MISMATCH,
                      "parameter 3 'fc2.bias' is float32 [3] on rank 0 but float32 [4] on rank 2");
}

Test(verify, names_different_options)
{
    struct scene s = same(2);

    s.in[1].bucket_bytes = 50;
    expect_everywhere(&s, 2, CDDP_E_MISMATCH,
                      "cddp_ddp_options.bucket_bytes is 100 on rank 0 but 50 on rank 1: it must be the same on every "
                      "rank");
}

Test(verify, compares_buffers)
{
    static const cddp_param buffers[] = {
        {.size = sizeof(cddp_param), .name = "bn.mean", .count = 4, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "bn.steps", .count = 1, .dtype = CDDP_INT64}};
    static const cddp_param other = {.size = sizeof(cddp_param), .name = "bn.mean", .count = 5, .dtype = CDDP_FLOAT32};
    struct scene s = same(2);

    s.in[0].buffers = s.in[1].buffers = buffers;
    s.in[0].n_buffers = s.in[1].n_buffers = 2;
    expect_everywhere(&s, 2, CDDP_OK, NULL);
    s.in[1].buffers = &other;
    s.in[1].n_buffers = 1;
    expect_everywhere(&s, 2, CDDP_E_MISMATCH, "buffer 0 'bn.mean' is float32 [4] on rank 0 but float32 [5] on rank 1");
    s.in[1].buffers = buffers;
    expect_everywhere(&s, 2, CDDP_E_MISMATCH,
                      "rank 1 has 1 buffers but rank 0 has 2: buffer 1 'bn.steps' int64 [1] is only on rank 0");
    s.in[1].n_params = 3;
    expect_everywhere(&s, 2, CDDP_E_MISMATCH,
                      "'fc2.bias' float32 [3] is a parameter on rank 0, where rank 1 has the buffer 'bn.mean' float32 "
                      "[4]");
}

Test(verify, failure_on_one_rank_reaches_all)
{
    struct scene s = same(3);

    (void)cdi_fail(&s.local[1], CDDP_E_INVALID, "parameter 2 has no name");
    play(&s, 3);
    for (int r = 0; r < 3; r++) {
        cr_assert_eq(s.status[r], CDDP_E_INVALID);
        cr_assert_str_eq(s.err[r].msg, r == 1 ? "parameter 2 has no name"
                                              : "rank 1 could not create its reducer: parameter 2 has no name");
    }
}

Test(verify, truncated_list_is_not_overread)
{
    struct cdi_buf whole, part;

    cdi_buf_init(&whole, 0);
    cdi_buf_init(&part, 0);
    cr_assert_eq(cdi_verify_encode(&whole, model, NULL, 4, false), CDDP_OK);
    for (size_t len = 0; len < whole.len; len++) {
        struct cdi_error err;

        cdi_buf_release(&part);
        cr_assert_eq(cdi_buf_append(&part, cdi_buf_data(&whole), len), CDDP_OK);
        cr_assert_eq(cdi_verify_compare(&whole, "rank 0", &part, "rank 1", &err), CDDP_E_MISMATCH);
        cr_assert(strncmp(err.msg, "rank 1 has ", 11) == 0, "%s", err.msg);
    }
    cdi_buf_release(&whole);
    cdi_buf_release(&part);
}

Test(verify, long_names_fit_in_message)
{
    char name[5000];
    size_t dims[100];
    struct scene s = same(2);
    cddp_param copy[4];

    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (size_t i = 0; i < 100; i++)
        dims[i] = SIZE_MAX;
    change(
        &s, 1, copy, 0,
        (cddp_param){
            .size = sizeof(cddp_param), .name = name, .count = 1, .dtype = CDDP_FLOAT32, .shape = dims, .n_dims = 100});
    play(&s, 2);
    cr_assert_eq(s.status[0], CDDP_E_MISMATCH);
    cr_assert_str_eq(s.err[0].msg, s.err[1].msg);
    cr_assert(strstr(s.err[0].msg, "18446744073709551615, ...] on rank 1") != NULL, "%s", s.err[0].msg);
}
