/* SPDX-License-Identifier: Apache-2.0 */
/* What cddp-bench --fit says, beside what models and optimizers hold; started by cddprun. */
#include "bench/tool/fit.h"
#include "by_hand.h"

#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>

#define UNITS 6
#define TOLERANCE 0.01 /* alignment */

static const size_t counts[UNITS] = {90000, 200003, 200003, 150001, 200003, 70};
static const struct {
    const char *name;
    cddp_optim_kind kind;
    double momentum;
} optims[] = {{"adamw", CDDP_OPTIM_ADAMW, 0},
              {"adam", CDDP_OPTIM_ADAM, 0},
              {"momentum", CDDP_OPTIM_SGD, 0.9},
              {"sgd", CDDP_OPTIM_SGD, 0}};
static const cddp_dtype dtypes[] = {CDDP_FLOAT32, CDDP_BFLOAT16, CDDP_FLOAT64};

static cddp_comm *comm;

static void compare(const char *what, uint64_t said, uint64_t held)
{
    double apart = (double)said / (double)held - 1;

    if (apart <= TOLERANCE && apart >= -TOLERANCE)
        return;
    (void)fprintf(stderr, "rank %d, %s: --fit says %llu bytes, and it holds %llu\n", cddp_rank(comm), what,
                  (unsigned long long)said, (unsigned long long)held);
    exit(1);
}

static cddp_optim_options rule_of(size_t optim)
{
    cddp_optim_options rule;

    cddp_optim_defaults(&rule, sizeof rule, optims[optim].kind);
    rule.momentum = optims[optim].momentum;
    return rule;
}

static void check(int stage, cddp_dtype dtype, size_t optim)
{
    const cddp_fsdp_options opt = {.size = sizeof opt, .stage = stage};
    const cddp_optim_options rule = rule_of(optim);
    struct bench_model m = {.units = UNITS};
    cddp_param params[UNITS];
    cddp_fsdp_unit units[UNITS];
    cddp_optim *o;
    cddp_fsdp *f;
    size_t state;
    char what[80];

    for (size_t u = 0; u < UNITS; u++) {
        params[u] = (cddp_param){.size = sizeof *params, .name = "w", .count = counts[u], .dtype = dtype};
        units[u] = (cddp_fsdp_unit){.size = sizeof *units, .name = "block", .params = &params[u], .n_params = 1};
        m.params += counts[u];
        m.largest = counts[u] > m.largest ? counts[u] : m.largest;
    }
    CHECK(bench_fit_state(optims[optim].name, cddp_dtype_size(dtype), &state));
    CHECK(cddp_fsdp_create(&f, comm, units, UNITS, &opt) == CDDP_OK);
    CHECK(cddp_optim_create_sharded(&o, f, &rule) == CDDP_OK);
    (void)snprintf(what, sizeof what, "stage %d, %zu bytes each, %s", stage, cddp_dtype_size(dtype),
                   optims[optim].name);
    compare(what, bench_fit_bytes(&m, stage, cddp_world_size(comm), cddp_dtype_size(dtype), state),
            cddp_fsdp_bytes(f) + cddp_optim_state_bytes(o));
    cddp_optim_destroy(o);
    cddp_fsdp_destroy(f);
}

/* Stage 1: parameters and gradients are whole, which needs no proof; the state is not. */
static void check_state(cddp_dtype dtype, size_t optim)
{
    const cddp_optim_options rule = rule_of(optim);
    const size_t size = cddp_dtype_size(dtype), count = counts[1];
    const struct bench_model m = {.params = count, .largest = count, .units = 1};
    cddp_param param = {.size = sizeof param, .name = "w", .count = count, .dtype = dtype};
    cddp_optim *o;
    cddp_ddp *ddp;
    size_t state;

    CHECK(cddp_alloc(comm, count * size, 0, &param.data) == CDDP_OK);
    CHECK(bench_fit_state(optims[optim].name, size, &state));
    CHECK(cddp_ddp_create(&ddp, comm, &param, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&o, ddp, &rule) == CDDP_OK);
    compare(optims[optim].name, bench_fit_bytes(&m, 1, cddp_world_size(comm), size, state),
            2 * size * count + cddp_optim_state_bytes(o));
    compare("DDP", bench_fit_bytes(&m, 0, cddp_world_size(comm), size, state), (2 * size + state) * count);
    cddp_optim_destroy(o);
    cddp_ddp_destroy(ddp);
    cddp_free(comm, param.data);
}

int main(void)
{
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (size_t o = 0; o < sizeof optims / sizeof optims[0]; o++) {
            check(2, dtypes[d], o);
            check(3, dtypes[d], o);
            check_state(dtypes[d], o);
        }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}
