/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a model whose parameters are divided, or whole, from the newest checkpoint on; started by cddprun. Gradients
 * are the same on every rank, and their means exact, so that every world computes the same bits.
 *
 *     sharded_checkpoint DIR STAGE STEPS [OUT [HOW [SCALE]]]
 *
 * STAGE: 2, 3, or 0: whole parameters. STEPS: up to which step it trains; rank 0 then writes the parameters to OUT. HOW
 * has a letter for each of: b, saves in the background; s, saves sharded also what is whole; e, saves each step, and
 * not only the last; o, from step 0 on; t, prints how long saves take; r, checks what is refused; n, leaves without a
 * wait; p, goes on a step from what it has saved, and goes back to these parameters, without their optimizer. SCALE:
 * multiplies the parameters' sizes.
 */
#include "by_hand.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define UNITS 5
#define PARAMS 2

/* The second parameter of each unit is of 16 bits. */
static const size_t counts[UNITS][PARAMS] = {{1003, 17}, {1, 3}, {40001, 33}, {7, 5}, {9000, 2500}};
#define LARGEST 40001

static cddp_comm *comm;
static cddp_fsdp *fsdp;
static cddp_ddp *ddp;
static cddp_optim *optim;
static cddp_param params[UNITS][PARAMS];
static cddp_fsdp_unit units[UNITS];
static char names[UNITS][PARAMS][24], unit_names[UNITS][16];
static uint64_t step, mine;
static void *room[2]; /* on the host: the model's memory is where the backend has it */

static size_t bytes_of(size_t u, size_t i)
{
    return params[u][i].count * cddp_dtype_size(params[u][i].dtype);
}

static uint32_t hash(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

static void put(void *at, cddp_dtype dtype, size_t k, float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if (dtype == CDDP_FLOAT32)
        ((uint32_t *)at)[k] = bits;
    else
        ((uint16_t *)at)[k] = (uint16_t)(bits >> 16);
}

static uint32_t bits_of(const void *at, cddp_dtype dtype, size_t k)
{
    return dtype == CDDP_FLOAT32 ? ((const uint32_t *)at)[k] : ((const uint16_t *)at)[k];
}

/* Copies a parameter, or its gradient, to the host or from there. */
static void *to_host(size_t u, size_t i, const void *from)
{
    CHECK(cddp_copy(comm, room[0], from, bytes_of(u, i)) == CDDP_OK);
    return room[0];
}

static void from_host(size_t u, size_t i, void *to)
{
    CHECK(cddp_copy(comm, to, room[1], bytes_of(u, i)) == CDDP_OK);
}

/* Eighths, of which five ranks have an exact sum and mean. A wrong bit of a parameter changes its next gradient. */
static void backward(size_t u, size_t i, const void *w, void *g)
{
    const void *old = to_host(u, i, w);

    for (size_t k = 0; k < params[u][i].count; k++)
        put(room[1], params[u][i].dtype, k,
            (float)((int)(hash(step * 104729 + u * 31 + i + k * 1000003) % 8) - 5 +
                    (int)(hash(bits_of(old, params[u][i].dtype, k)) % 4)) /
                8.0F);
    from_host(u, i, g);
}

static cddp_status fill(void *arg, size_t u, void *const *data)
{
    (void)arg;
    for (size_t i = 0; i < PARAMS; i++) {
        for (size_t k = 0; k < params[u][i].count; k++)
            put(room[1], params[u][i].dtype, k, (float)(hash(u * 77 + i * 13 + k) % 1000) / 256.0F);
        from_host(u, i, data[i]);
    }
    return CDDP_OK;
}

static void make_model(int stage, size_t scale)
{
    const cddp_fsdp_options opt = {.size = sizeof opt, .stage = stage, .fill = fill};
    cddp_optim_options rule;

    for (size_t k = 0; k < 2; k++)
        CHECK((room[k] = malloc(LARGEST * sizeof(float) * scale)) != NULL);
    for (size_t u = 0; u < UNITS; u++) {
        for (size_t i = 0; i < PARAMS; i++) {
            (void)snprintf(names[u][i], sizeof names[u][i], "block.%zu.%zu", u, i);
            params[u][i] = (cddp_param){.size = sizeof(cddp_param),
                                        .name = names[u][i],
                                        .count = counts[u][i] * scale,
                                        .dtype = i == 1 ? CDDP_BFLOAT16 : CDDP_FLOAT32};
            CHECK(stage != 0 || cddp_alloc(comm, bytes_of(u, i), 0, &params[u][i].data) == CDDP_OK);
        }
        (void)snprintf(unit_names[u], sizeof unit_names[u], "block.%zu", u);
        units[u] = (cddp_fsdp_unit){.size = sizeof(cddp_fsdp_unit),
                                    .name = unit_names[u],
                                    .params = params[u],
                                    .n_params = PARAMS,
                                    .flags = u == 1 ? CDDP_FSDP_KEEP : 0};
        if (stage == 0)
            CHECK(fill(NULL, u, (void *const[]){params[u][0].data, params[u][1].data}) == CDDP_OK);
    }
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_ADAMW);
    rule.lr = 0.05;
    if (stage == 0) {
        CHECK(cddp_ddp_create(&ddp, comm, params[0], (size_t)UNITS * PARAMS, NULL) == CDDP_OK);
        CHECK(cddp_optim_create(&optim, ddp, &rule) == CDDP_OK);
    } else {
        CHECK(cddp_fsdp_create(&fsdp, comm, units, UNITS, &opt) == CDDP_OK);
        CHECK(cddp_optim_create_sharded(&optim, fsdp, &rule) == CDDP_OK);
    }
}

static void free_model(void)
{
    cddp_optim_destroy(optim);
    cddp_fsdp_destroy(fsdp);
    cddp_ddp_destroy(ddp);
    for (size_t u = 0; u < UNITS; u++)
        for (size_t i = 0; i < PARAMS; i++)
            cddp_free(comm, params[u][i].data);
    free(room[0]);
    free(room[1]);
}

static void hold(size_t u)
{
    CHECK(cddp_fsdp_gather(fsdp, u) == CDDP_OK && cddp_fsdp_wait_unit(fsdp, u) == CDDP_OK);
}

static void train_step(void)
{
    const cddp_optim_step_args args = {.size = sizeof args, .max_norm = 1.5};

    for (size_t u = UNITS; u-- > 0;) {
        if (fsdp != NULL)
            hold(u);
        for (size_t i = PARAMS; i-- > 0;) {
            if (fsdp != NULL) {
                backward(u, i, cddp_fsdp_param(fsdp, u, i), cddp_fsdp_grad(fsdp, u, i));
            } else {
                backward(u, i, params[u][i].data, cddp_ddp_grad(ddp, u * PARAMS + i));
                CHECK(cddp_ddp_grad_ready(ddp, u * PARAMS + i) == CDDP_OK);
            }
        }
        if (fsdp != NULL)
            CHECK(cddp_fsdp_release(fsdp, u) == CDDP_OK && cddp_fsdp_grads_ready(fsdp, u) == CDDP_OK);
    }
    CHECK(cddp_optim_step(optim, &args) == CDDP_OK);
    step++;
    mine = step * 1000 + (uint64_t)cddp_rank(comm);
}

static cddp_checkpoint_item item(cddp_item_kind kind, const char *name, void *data, size_t bytes)
{
    return (cddp_checkpoint_item){
        .size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes, .kind = kind};
}

static size_t list(cddp_checkpoint_item *items)
{
    size_t n = 0;

    items[n++] = item(CDDP_ITEM_OPTIM, "adam", optim, 0);
    items[n++] = item(CDDP_ITEM_MEMORY, "step", &step, sizeof step);
    items[n] = item(CDDP_ITEM_MEMORY, "mine", &mine, sizeof mine);
    items[n++].flags = CDDP_ITEM_PER_RANK;
    if (fsdp != NULL)
        items[n++] = item(CDDP_ITEM_FSDP, "", fsdp, 0);
    for (size_t k = 0; k < (size_t)UNITS * PARAMS && fsdp == NULL; k++)
        items[n++] = item(CDDP_ITEM_MEMORY, names[k / PARAMS][k % PARAMS], params[k / PARAMS][k % PARAMS].data,
                          bytes_of(k / PARAMS, k % PARAMS));
    return n;
}

static void load(const char *dir)
{
    cddp_checkpoint_item items[3 + UNITS * PARAMS];
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_status st;

    /* Units that were gathered before have old parameters afterwards. */
    for (size_t u = 0; u < UNITS && fsdp != NULL; u++) {
        hold(u);
        CHECK(cddp_fsdp_release(fsdp, u) == CDDP_OK);
    }
    st = cddp_checkpoint_load(comm, dir, items, list(items), &info);
    if (st == CDDP_E_NOT_FOUND)
        return;
    if (st != CDDP_OK) {
        (void)fprintf(stderr, "rank %d: load: %s\n", cddp_rank(comm), cddp_last_error());
        exit(3);
    }
    CHECK(info.step == step);
    CHECK(mine == 0 || mine == step * 1000 + (uint64_t)cddp_rank(comm));
    if (cddp_rank(comm) == 0)
        (void)printf("loaded step %d; damaged: %s\n", (int)step, info.damaged), (void)fflush(stdout);
}

/* Of a sharded model, of which a checkpoint was saved. */
static void check_refusals(const char *dir)
{
    cddp_checkpoint_item items[4 + UNITS * PARAMS];
    size_t n = list(items);
    uint64_t other = 0;

    hold(2);
    CHECK(cddp_checkpoint_load(comm, dir, items, n, NULL) == CDDP_E_STATE);
    CHECK(strstr(cddp_last_error(), "item '': unit 2 'block.2' is held") != NULL);
    CHECK(cddp_fsdp_release(fsdp, 2) == CDDP_OK);
    items[n] = item(CDDP_ITEM_MEMORY, "block.2.0", &other, sizeof other);
    CHECK(cddp_checkpoint_save(comm, dir, step, items, n + 1, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "two items are named 'block.2.0'") != NULL);
    items[n - 1].name = "model";
    CHECK(cddp_checkpoint_load(comm, dir, items, n, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "holds no item 'model.block.0.0'") != NULL);
    items[n - 1].name = NULL;
    CHECK(cddp_checkpoint_save(comm, dir, step, items, n, NULL) == CDDP_E_INVALID);
    items[n - 1].name = "";
    /* In the middle of a step. */
    hold(UNITS - 1);
    for (size_t i = 0; i < PARAMS; i++)
        backward(UNITS - 1, i, cddp_fsdp_param(fsdp, UNITS - 1, i), cddp_fsdp_grad(fsdp, UNITS - 1, i));
    CHECK(cddp_fsdp_release(fsdp, UNITS - 1) == CDDP_OK && cddp_fsdp_grads_ready(fsdp, UNITS - 1) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, dir, step, items + n - 1, 1, NULL) == CDDP_E_STATE);
    CHECK(strstr(cddp_last_error(), "the sharded model is in the middle of step") != NULL);
}

/* Of a sharded model: the optimizer goes on from the loaded parameters, and not from its float32 copies of others. */
static void go_back(const char *dir)
{
    const cddp_checkpoint_item model = item(CDDP_ITEM_FSDP, "", fsdp, 0);

    train_step();
    CHECK(cddp_checkpoint_load(comm, dir, &model, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_set_lr(optim, 0) == CDDP_OK);
    train_step();
}

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void save(const char *dir, const char *how)
{
    const cddp_checkpoint_options opt = {.size = sizeof opt,
                                         .background = strchr(how, 'b') != NULL,
                                         .flags = strchr(how, 's') != NULL ? CDDP_CHECKPOINT_SHARDED : 0};
    cddp_checkpoint_item items[3 + UNITS * PARAMS];
    double began = now(), returned;
    cddp_status st = cddp_checkpoint_save(comm, dir, step, items, list(items), &opt);

    returned = now();
    if (st == CDDP_OK && strchr(how, 't') != NULL)
        st = cddp_checkpoint_wait(comm);
    if (st != CDDP_OK) {
        (void)fprintf(stderr, "rank %d: save: %s\n", cddp_rank(comm), cddp_last_error());
        exit(4);
    }
    if (cddp_rank(comm) == 0 && strchr(how, 't') != NULL)
        (void)printf("saved in %.3f s, after %.3f s of the call\n", now() - began, returned - began);
}

static void write_all(const char *path)
{
    FILE *out = cddp_rank(comm) == 0 ? fopen(path, "w") : NULL;

    for (size_t u = 0; u < UNITS; u++) {
        if (fsdp != NULL)
            hold(u);
        for (size_t i = 0; i < PARAMS && out != NULL; i++)
            CHECK(fwrite(to_host(u, i, fsdp != NULL ? cddp_fsdp_param(fsdp, u, i) : params[u][i].data), 1,
                         bytes_of(u, i), out) == bytes_of(u, i));
        if (fsdp != NULL)
            CHECK(cddp_fsdp_release(fsdp, u) == CDDP_OK);
    }
    CHECK(out == NULL || fclose(out) == 0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 5 ? argv[5] : "";
    uint64_t steps;

    CHECK(argc >= 4);
    steps = strtoull(argv[3], NULL, 10);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    make_model(atoi(argv[2]), argc > 6 ? strtoul(argv[6], NULL, 10) : 1);
    load(argv[1]);
    if (strchr(how, 'o') != NULL)
        save(argv[1], how);
    while (step < steps) {
        train_step();
        if (strchr(how, 'e') != NULL || step == steps)
            save(argv[1], how);
    }
    CHECK(strchr(how, 'n') != NULL || cddp_checkpoint_wait(comm) == CDDP_OK);
    if (strchr(how, 'p') != NULL)
        go_back(argv[1]);
    if (argc > 4)
        write_all(argv[4]);
    if (strchr(how, 'r') != NULL)
        check_refusals(argv[1]);
    free_model();
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}
