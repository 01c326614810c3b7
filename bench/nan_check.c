/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of CDDP_NAN_CHECK and CDDP_CHECK_REPLICAS: four reducers of the same model take steps by turns, in one
 * process, one of them without any check. A step writes all gradients, as a backward pass does at least, and reduces
 * them. Prints one line of JSON per model and round, with the seconds of a step in each mode.
 *
 *     cddprun --nproc_per_node=2 nan_check [ROUNDS]
 */
#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_MODES 4
#define N_PARAMS 16
#define ROUND_S 0.05 /* of one mode in one round */

static const struct mode {
    const char *name, *nan_check, *replicas;
} modes[N_MODES] = {{"off", "off", "0"}, {"warn", "warn", "0"}, {"error", "error", "0"}, {"replicas_10", "off", "10"}};
static const size_t models[] = {1 << 10, 1 << 18, 25 << 18}; /* float32 elements: 4 KiB, 1 MiB, 25 MiB */

static float *weights;
static cddp_comm *comm;
static cddp_ddp *ddp[N_MODES];

#define DO(call)                                                                         \
    do {                                                                                 \
        if ((call) != CDDP_OK)                                                           \
            exit((fprintf(stderr, "%s: %s\n", #call, cddp_last_error()), EXIT_FAILURE)); \
    } while (0)

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void open_mode(size_t m, size_t count)
{
    cddp_param p[N_PARAMS];

    for (size_t i = 0; i < N_PARAMS; i++)
        p[i] = (cddp_param){.size = sizeof p[i],
                            .name = "p",
                            .data = weights + i * (count / N_PARAMS),
                            .count = count / N_PARAMS,
                            .dtype = CDDP_FLOAT32};
    (void)setenv("CDDP_NAN_CHECK", modes[m].nan_check, 1);
    (void)setenv("CDDP_CHECK_REPLICAS", modes[m].replicas, 1);
    DO(cddp_ddp_create(&ddp[m], comm, p, N_PARAMS, NULL));
}

static double steps(size_t m, size_t count, int n)
{
    double begin;

    DO(cddp_barrier(comm));
    begin = now();
    for (int s = 0; s < n; s++) {
        for (size_t i = N_PARAMS; i-- > 0;) {
            float *g = cddp_ddp_grad(ddp[m], i);

            for (size_t k = 0; k < count / N_PARAMS; k++)
                g[k] = (float)(k % 64) + (float)s;
            DO(cddp_ddp_grad_ready(ddp[m], i));
        }
        DO(cddp_ddp_wait(ddp[m]));
    }
    return (now() - begin) / n;
}

/* All ranks take the same number of steps: that of the slowest one. */
static int steps_of(double seconds)
{
    double slowest = seconds;

    DO(cddp_all_reduce(comm, &slowest, &slowest, 1, CDDP_FLOAT64, CDDP_MAX));
    return slowest < ROUND_S / 20 ? (int)(ROUND_S / slowest) / 10 * 10 : 20;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 15;

    DO(cddp_init(&comm, NULL));
    weights = calloc(models[2], sizeof *weights);
    if (weights == NULL)
        return fprintf(stderr, "no memory\n"), EXIT_FAILURE;
    for (size_t k = 0; k < sizeof models / sizeof models[0]; k++) {
        int n;

        for (size_t m = 0; m < N_MODES; m++)
            open_mode(m, models[k]);
        for (size_t m = 0; m < N_MODES; m++)
            (void)steps(m, models[k], 10);
        n = steps_of(steps(0, models[k], 10));
        for (int r = 0; r < rounds; r++) {
            double took[N_MODES];

            for (size_t t = 0; t < N_MODES; t++) { /* another one begins each round */
                size_t m = (t + (size_t)r) % N_MODES;

                took[m] = steps(m, models[k], n);
            }
            if (cddp_rank(comm) != 0)
                continue;
            printf("{\"bytes\": %zu, \"steps\": %d", models[k] * sizeof(float), n);
            for (size_t m = 0; m < N_MODES; m++)
                printf(", \"%s\": %.9f", modes[m].name, took[m]);
            printf("}\n");
            (void)fflush(stdout);
        }
        for (size_t m = 0; m < N_MODES; m++)
            cddp_ddp_destroy(ddp[m]);
    }
    free(weights);
    DO(cddp_finalize(comm));
    return EXIT_SUCCESS;
}
