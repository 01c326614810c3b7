/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The norm of gradients on a GPU, and clipping by it, against plain sums on the host, as a program that cddprun starts.
 * In one step the compute stream is blocked until the host has called everything: a host that waits for the GPU there
 * hangs.
 */
#include "device_job.h"

#include "worker/backend/host_elementwise.h"

#define WARM 3 /* steps until nothing is done for the first time */

static void land(struct job *j)
{
    backward(j);
    DO(cddp_ddp_wait(j->ddp));
}

static double plain_norm(const struct job *j, bool largest)
{
    double sum = 0;

    for (size_t i = 0; i < N_PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++) {
            double g = mean(j, i, k);

            sum = largest ? fmax(sum, fabs(g)) : sum + g * g;
        }
    return largest ? sum : sqrt(sum);
}

/* Checks that each gradient is the mean times factor. */
static void check_gradients(const struct job *j, double factor)
{
    static double host[MOST];

    for (size_t i = 0; i < N_PARAMS; i++) {
        DO(cddp_copy(j->comm, host, cddp_ddp_grad(j->ddp, i), bytes_of(i)));
        for (size_t k = 0; k < counts[i]; k++) {
            double got = number_get(types[i], host, k), want = mean(j, i, k) * factor;

            MUST(isnan(factor) ? isnan(got) : close_to(got, want, tolerance_of(i)),
                 "gradient %zu, element %zu is %.17g, not %.17g\n", i, k, got, want);
        }
    }
}

/* No call of a step waits, not even one in a thread of NCCL. */
static void check_waits_for_nobody(struct job *j)
{
    uint64_t waits;

    for (int step = 0; step < WARM; step++) {
        land(j);
        DO(cddp_ddp_clip_grad_norm(j->ddp, 0.5, 2, 0, NULL));
    }
    close_gate(j);
    waits = standin_waits();
    land(j);
    DO(cddp_ddp_clip_grad_norm(j->ddp, 0.5, 2, 0, NULL));
    DO(cddp_ddp_clip_grad_norm(j->ddp, 0.25, INFINITY, 0, NULL));
    MUST(standin_waits() == waits, "the host waited %d times\n", (int)(standin_waits() - waits));
    atomic_store(&gate_is_open, true);
    check_gradients(j, 0.5 / (plain_norm(j, false) + 1e-6)); /* which is less than the second one allows */
}

/* The bits are those of the CPU's backend, however many ranks and GPUs there are. */
static void check_bits(const struct job *j, double norm)
{
    static double host[N_PARAMS][MOST], room[CDI_NORM_ROOM];
    struct cdi_span span[N_PARAMS];
    double want;

    for (size_t i = 0; i < N_PARAMS; i++) {
        DO(cddp_copy(j->comm, host[i], cddp_ddp_grad(j->ddp, i), bytes_of(i)));
        span[i] = (struct cdi_span){host[i], counts[i], types[i]};
    }
    MUST(cdi_element_norm(NULL, span, N_PARAMS, false, room, NULL) == CDDP_OK, "no norm on the host\n");
    want = sqrt(room[0]);
    MUST(memcmp(&norm, &want, sizeof norm) == 0, "the norm is %a, and on the host %a\n", norm, want);
}

static void check_norms(struct job *j, double tolerance)
{
    double norm = -1, again = -2;

    for (int largest = 0; largest < 2; largest++) {
        const double type = largest ? INFINITY : 2, want = plain_norm(j, largest != 0);

        land(j);
        DO(cddp_ddp_grad_norm(j->ddp, type, &norm));
        MUST(close_to(norm, want, tolerance), "a norm of type %g is %.17g, not %.17g\n", type, norm, want);
        if (!largest)
            check_bits(j, norm);
        DO(cddp_ddp_clip_grad_norm(j->ddp, want / 4, type, 1, &again));
        MUST(memcmp(&norm, &again, sizeof norm) == 0, "measured again, %.17g is %.17g\n", norm, again);
        check_gradients(j, want / 4 / (want + 1e-6));
        DO(cddp_ddp_clip_grad_norm(j->ddp, want, type, 1, NULL));
        check_gradients(j, want / 4 / (want + 1e-6));
    }
}

static void check_bad_numbers(struct job *j)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    double norm = 0;

    for (size_t b = 0; b < 3; b++)
        for (size_t i = 0; i < N_PARAMS; i++) {
            make(j, i, bad[b]);
            land(j);
            DO(cddp_ddp_grad_norm(j->ddp, b == 1 ? 2 : INFINITY, &norm));
            MUST(b == 0 ? isnan(norm) : isinf(norm) && norm > 0, "with %g in gradient %zu the norm is %g\n", bad[b], i,
                 norm);
            MUST(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 1, NULL) == CDDP_E_NONFINITE, "%g was not refused\n", bad[b]);
        }
    make(j, 2, NAN);
    land(j);
    DO(cddp_ddp_clip_grad_norm(j->ddp, 1, 2, 0, NULL));
    check_gradients(j, NAN);
    make(j, N_PARAMS, 0);
}

int main(void)
{
    static struct job j;

    open_job(&j);
    open_ddp(&j, 0);
    check_waits_for_nobody(&j);
    check_norms(&j, 1e-14);
    check_bad_numbers(&j);
    cddp_ddp_destroy(j.ddp);
    open_ddp(&j, CDDP_DDP_JOIN);
    check_norms(&j, 1e-14);
    cddp_ddp_destroy(j.ddp);
    close_job(&j);
    return 0;
}
