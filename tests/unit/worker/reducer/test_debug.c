/* SPDX-License-Identifier: Apache-2.0 */
/* What CDDP_DEBUG=1 prints about a training program, and what it does not. */
#include "common/log.h"
#include "ddp_ranks.h"
#include "hygiene.h"

#include <stdbool.h>

CDI_SUITE(debug);

static char printed[2048];

static void keep(enum cdi_log_level level, const char *id, const char *text, void *arg)
{
    size_t n = strlen(printed);

    (void)level;
    (void)arg;
    (void)snprintf(printed + n, sizeof printed - n, "%s: %s\n", id, text);
}

/* The program's mistakes. */
static struct {
    bool elsewhere;    /* it writes its gradients into other memory */
    bool same;         /* on all ranks */
    bool frozen;       /* it updates other memory than the registered */
    bool late;         /* it writes to `grad` after cddp_ddp_grad_ready() */
    bool without_mean; /* gradients are sums */
    const char *debug; /* CDDP_DEBUG */
} how;

static int train(int rank)
{
    struct ddp_rank r = {0};
    volatile float elsewhere;

    (void)setenv("CDDP_DEBUG", how.debug, 1);
    cdi_log_set_sink(keep, NULL);
    CHECK(ddp_open(&r, how.without_mean ? CDDP_DDP_SUM : 0, CDDP_DTYPE_NONE, how.late) == 0);
    for (int step = 0; step < 15; step++) {
        for (size_t i = DDP_PARAMS; i-- > 0;) {
            float value = (float)(i + 1) * 0.1f + (float)(how.same ? 0 : rank);

            if (how.elsewhere) {
                elsewhere = value;
                (void)elsewhere;
                CHECK(cddp_ddp_grad_ready(r.ddp, i) == CDDP_OK);
            } else {
                CHECK(ddp_give(&r, i, value) == 0);
            }
        }
        if (how.late && step == 2)
            r.own[3] += 1;
        CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
        if (!how.frozen)
            r.w[1][0] += 1;
    }
    return ddp_close(&r, CDDP_OK);
}

/* Every rank prints one line, with this id; NULL: none. */
static const char *expected_id, *expected_text;

static int train_and_look(int rank)
{
    CHECK(train(rank) == 0);
    if (expected_id == NULL) {
        CHECK(printed[0] == '\0');
        return 0;
    }
    if (strncmp(printed, expected_id, strlen(expected_id)) != 0 || strstr(printed, expected_text) == NULL ||
        strchr(printed, '\n') != printed + strlen(printed) - 1) {
        fprintf(stderr, "rank %d: printed '%s'\n", rank, printed);
        return 1;
    }
    return 0;
}

static void expect(const char *id, const char *text)
{
    expected_id = id;
    expected_text = text;
    if (how.debug == NULL)
        how.debug = "1";
    cr_assert_eq(ddp_world(train_and_look), 0);
}

Test(debug, silent_for_correct_program)
{
    expect(NULL, NULL);
    how.without_mean = true;
    expect(NULL, NULL);
}

Test(debug, warns_of_gradients_written_elsewhere)
{
    how.elsewhere = true;
    expect("DDP-ZERO", "cddp_ddp_grad() was not called for 3 of 3 parameters, such as 'first'");
}

Test(debug, warns_of_equal_gradients)
{
    how.same = true;
    expect("DDP-SAME", "the mean of all 4 ranks' gradients is this rank's own in the first step");
    how.without_mean = true;
    expect("DDP-SAME", "the mean of all 4 ranks' gradients is this rank's own in the first step");
}

Test(debug, warns_of_constant_parameters)
{
    how.frozen = true;
    expect("DDP-FROZEN", "no parameter has changed in 10 steps");
}

Test(debug, warns_of_late_writes)
{
    how.late = true;
    expect("DDP-LATE",
           "the gradient of 'second' was written between cddp_ddp_grad_ready() and cddp_ddp_wait() in step 2");
}

Test(debug, silent_without_variable)
{
    how.elsewhere = how.same = how.frozen = true;
    how.debug = "0";
    expect(NULL, NULL);
}

/* A variable that rank 1 alone cannot read: no rank has a reducer. */
static int refused(int rank, const char *name, const char *value)
{
    static float w[4];
    const cddp_param p = {.size = sizeof(cddp_param), .name = "w", .data = w, .count = 4, .dtype = CDDP_FLOAT32};
    cddp_comm *comm;
    cddp_ddp *ddp;
    char text[64];

    if (rank == 1)
        (void)setenv(name, value, 1);
    (void)snprintf(text, sizeof text, "%s='%s'", name, value);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), text) != NULL);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static int debug_refused(int rank)
{
    return refused(rank, "CDDP_DEBUG", "perhaps");
}

static int metrics_refused(int rank)
{
    return refused(rank, "CDDP_METRICS_FILE", "/tmp/%q");
}

Test(debug, rejects_other_values_on_every_rank)
{
    cr_assert_eq(ddp_world(debug_refused), 0);
    cr_assert_eq(ddp_world(metrics_refused), 0);
}
