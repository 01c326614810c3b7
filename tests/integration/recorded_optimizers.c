/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's recorded steps of SGD, Adam and AdamW (tests/data/optim.json), with groups and a schedule, and in mixed
 * precision. Started by cddprun; every rank has the recorded gradients. Memory is where the backend has it, so the same
 * program runs on a GPU, or its stand-in, which counts the optimizer's kernels.
 */
#include "numbers.h"
#include "rank_check.h"

#include <dlfcn.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PARTS 3
#define MOST 16 /* elements of a part */
#define DO(call) CHECK((call) == CDDP_OK, "an error")

static cddp_comm *comm;
static int rank;

/* Returns how often the stand-in has launched the optimizer's kernel; *known: there is one. */
static uint64_t updates(bool *known)
{
    const char *path = getenv("CDDP_NCCL_LIBRARY");
    void *standin = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    uint64_t (*launched)(const char *kernel) = NULL, n = 0;

    if (standin != NULL)
        *(void **)&launched = dlsym(standin, "standin_launched");
    *known = launched != NULL;
    if (launched != NULL)
        n = launched("cdi_update");
    if (standin != NULL)
        (void)dlclose(standin);
    return n;
}

static double number(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

static double option(const json_t *options, const char *name)
{
    const json_t *value = json_object_get(options, name);

    return json_is_true(value) ? 1 : json_number_value(value); /* 0 where there is none */
}

static cddp_optim_options options_of(const json_t *one)
{
    const json_t *o = json_object_get(one, "options"), *betas = json_object_get(o, "betas");
    const char *kind = json_string_value(json_object_get(one, "kind"));

    cddp_optim_options opt;

    cddp_optim_defaults(&opt, sizeof opt,
                        strcmp(kind, "SGD") == 0    ? CDDP_OPTIM_SGD
                        : strcmp(kind, "Adam") == 0 ? CDDP_OPTIM_ADAM
                                                    : CDDP_OPTIM_ADAMW);
    opt.flags = option(o, "nesterov") != 0 ? CDDP_OPTIM_NESTEROV : 0;
    opt.lr = option(o, "lr");
    opt.momentum = option(o, "momentum");
    opt.dampening = option(o, "dampening");
    if (json_object_get(o, "weight_decay") != NULL)
        opt.weight_decay = option(o, "weight_decay");
    if (betas != NULL)
        opt.beta1 = number(betas, 0), opt.beta2 = number(betas, 1);
    if (json_object_get(o, "eps") != NULL)
        opt.eps = option(o, "eps");
    return opt;
}

static size_t which[PARTS];
static cddp_optim_group groups[PARTS];

static void groups_of(const json_t *all, cddp_optim_options *o)
{
    const json_t *list = json_object_get(all, "groups"), *group, *factor;
    size_t g;

    json_array_foreach(list, g, group)
    {
        CHECK(json_array_size(json_object_get(group, "params")) == 1, "a group of several parameters");
        which[g] = (size_t)number(json_object_get(group, "params"), 0);
        factor = json_object_get(group, "lr_factor");
        groups[g] = (cddp_optim_group){.size = sizeof(cddp_optim_group),
                                       .params = &which[g],
                                       .n_params = 1,
                                       .lr_factor = factor == NULL ? 1 : json_number_value(factor),
                                       .weight_decay = json_number_value(json_object_get(group, "weight_decay"))};
    }
    o->groups = groups;
    o->n_groups = json_array_size(list);
}

/* Copies elements [from, from + count) of a list to the device, or compares them with it. */
static void put(const json_t *list, size_t from, const cddp_param *p, void *to)
{
    double host[MOST];

    for (size_t k = 0; k < p->count; k++)
        number_put(p->dtype, host, k, number(list, from + k));
    DO(cddp_copy(comm, to, host, p->count * cddp_dtype_size(p->dtype)));
}

static double difference(const json_t *list, size_t from, const cddp_param *p)
{
    double host[MOST], worst = 0;

    DO(cddp_copy(comm, host, p->data, p->count * cddp_dtype_size(p->dtype)));
    for (size_t k = 0; k < p->count; k++)
        worst = fmax(worst, fabs(number_get(p->dtype, host, k) - number(list, from + k)));
    return worst;
}

/* Mixed precision: step number `step` with a scale, clipped, and left out if it overflows. */
static void scaled_step(cddp_optim *optim, const json_t *one, size_t step)
{
    const double scale = number(json_object_get(one, "scales"), step);
    const cddp_optim_step_args args = {.size = sizeof args,
                                       .flags = CDDP_OPTIM_SKIP_NONFINITE,
                                       .grad_scale = 1 / scale,
                                       .max_norm = json_number_value(json_object_get(one, "max_norm"))};
    const bool left_out = step == (size_t)json_integer_value(json_object_get(one, "overflows"));
    const bool tells = strcmp(cddp_backend_name(comm), "cpu") == 0; /* the host of a GPU does not know */

    CHECK(cddp_optim_step(optim, &args) == (left_out && tells ? CDDP_E_NONFINITE : CDDP_OK), "step %zu", step);
}

/* The gradient that the scale has multiplied; element 3 of all overflows in one step. */
static void scale_gradient(const json_t *one, size_t step, size_t from, const cddp_param *p, void *g)
{
    bool overflows = step == (size_t)json_integer_value(json_object_get(one, "overflows"));
    double host[MOST], scale = number(json_object_get(one, "scales"), step);

    DO(cddp_copy(comm, host, g, p->count * cddp_dtype_size(p->dtype)));
    for (size_t k = 0; k < p->count; k++)
        number_put(p->dtype, host, k, overflows && from + k == 3 ? INFINITY : number_get(p->dtype, host, k) * scale);
    DO(cddp_copy(comm, g, host, p->count * cddp_dtype_size(p->dtype)));
}

/* with_groups: and a learning rate that changes. A case that has scales is one of mixed precision. */
static void meet(const json_t *all, const json_t *one, cddp_dtype dtype, bool with_groups)
{
    static const char *const names[PARTS] = {"a", "b", "c"};
    const json_t *sizes = json_object_get(all, "sizes"), *after = json_object_get(one, "after");
    const bool is_scaled = json_object_get(one, "scales") != NULL;
    cddp_optim_options opt = options_of(one);
    uint64_t skipped = 9;
    size_t from[PARTS + 1] = {0};
    cddp_param p[PARTS];
    cddp_optim *optim;
    double worst = 0;
    cddp_ddp *ddp;

    for (size_t i = 0; i < PARTS; i++) {
        p[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = names[i], .count = (size_t)number(sizes, i), .dtype = dtype};
        from[i + 1] = from[i] + p[i].count;
        DO(cddp_alloc(comm, p[i].count * cddp_dtype_size(dtype), 0, &p[i].data));
        put(json_object_get(all, "start"), from[i], &p[i], p[i].data);
    }
    if (with_groups)
        groups_of(all, &opt);
    DO(cddp_ddp_create(&ddp, comm, p, PARTS, NULL));
    DO(cddp_optim_create(&optim, ddp, &opt));
    memset(groups, 255, sizeof groups);
    memset(which, 255, sizeof which); /* the copy counts */
    CHECK(json_array_size(after) == 6, "the record is not whole");
    for (size_t step = 0; step < json_array_size(after); step++) {
        if (with_groups)
            DO(cddp_optim_set_lr(optim, opt.lr * number(json_object_get(all, "schedule"), step)));
        for (size_t i = PARTS; i-- > 0;) {
            put(json_array_get(json_object_get(all, "gradients"), step), from[i], &p[i], cddp_ddp_grad(ddp, i));
            if (is_scaled)
                scale_gradient(one, step, from[i], &p[i], cddp_ddp_grad(ddp, i));
            DO(cddp_ddp_grad_ready(ddp, i));
        }
        if (is_scaled)
            scaled_step(optim, one, step);
        else
            DO(cddp_optim_step(optim, NULL));
        for (size_t i = 0; i < PARTS; i++)
            worst = fmax(worst, difference(json_array_get(after, step), from[i], &p[i]));
    }
    DO(cddp_optim_skipped(optim, &skipped));
    CHECK(skipped == is_scaled, "%d steps were left out", (int)skipped);
    CHECK(worst <= (dtype == CDDP_FLOAT64 ? 1e-12 : 1e-6), "%s in float%d: off by %g",
          json_string_value(json_object_get(one, "kind")), dtype == CDDP_FLOAT64 ? 64 : 32, worst);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
    for (size_t i = 0; i < PARTS; i++)
        cddp_free(comm, p[i].data);
}

static size_t meet_all(const json_t *all, const char *name, bool with_groups)
{
    const json_t *cases = json_object_get(all, name), *one;
    uint64_t before;
    bool counts;
    size_t c;

    json_array_foreach(cases, c, one)
    {
        meet(all, one, CDDP_FLOAT64, with_groups);
        before = updates(&counts);
        meet(all, one, CDDP_FLOAT32, with_groups);
        CHECK(!counts || updates(&counts) >= before + 6, "a step was not made by the kernel");
    }
    return json_array_size(cases);
}

int main(void)
{
    json_t *all = json_load_file(CDI_TEST_DATA "/optim.json", 0, NULL);

    DO(cddp_init(&comm, NULL));
    rank = cddp_rank(comm);
    CHECK(meet_all(all, "cases", false) == 9 && meet_all(all, "group_cases", true) == 3 &&
              meet_all(all, "scaled_cases", false) == 3,
          "the record is not whole");
    json_decref(all);
    DO(cddp_finalize(comm));
    return 0;
}
