/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Background saves under ThreadSanitizer: several threads, each with a separate communicator and directory, save
 * memory, a sampler, an optimizer and a reducer. They continue to use all of it, wait, load, fail, and leave during a
 * save.
 */
#include <cddp/cddp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 4
#define ROUNDS 40
#define COUNT 3000
#define PARAM 100

struct trainer {
    cddp_comm *comm;
    pthread_t thread;
    char dir[100], nowhere[120];
    float w[COUNT];
    uint64_t own;
    char name[16];
    cddp_sampler *sampler;
    cddp_ddp *ddp;
    cddp_optim *optim;
    float p[PARAM], momentum; /* the expected value of each element of p */
};

static _Atomic int failures;

#define CHECK(cond)                                                                            \
    do {                                                                                       \
        if (!(cond)) {                                                                         \
            fprintf(stderr, "%s:%d: %s [%s]\n", __FILE__, __LINE__, #cond, cddp_last_error()); \
            atomic_fetch_add(&failures, 1);                                                    \
        }                                                                                      \
    } while (0)

static void open_objects(struct trainer *t)
{
    const cddp_param p = {.size = sizeof p, .name = "p", .data = t->p, .count = PARAM, .dtype = CDDP_FLOAT32};
    const cddp_sampler_options data = {.size = sizeof data, .n = 100, .world_size = 1};
    cddp_optim_options sgd;

    cddp_optim_defaults(&sgd, sizeof sgd, CDDP_OPTIM_SGD);
    sgd.lr = 1;
    sgd.momentum = 0.5;
    t->momentum = 0;
    CHECK(cddp_sampler_create(&t->sampler, &data) == CDDP_OK);
    CHECK(cddp_ddp_create(&t->ddp, t->comm, &p, 1, NULL) == CDDP_OK);
    CHECK(cddp_optim_create(&t->optim, t->ddp, &sgd) == CDDP_OK);
}

static void close_objects(struct trainer *t)
{
    cddp_optim_destroy(t->optim);
    cddp_ddp_destroy(t->ddp);
    cddp_sampler_destroy(t->sampler);
}

/* The optimizer's momentum, which was t->momentum, becomes `value`: half of it stays. */
static void step_to(struct trainer *t, float value)
{
    float *g = cddp_ddp_grad(t->ddp, 0);

    for (size_t i = 0; i < PARAM; i++)
        g[i] = value - t->momentum / 2;
    CHECK(cddp_ddp_grad_ready(t->ddp, 0) == CDDP_OK && cddp_optim_step(t->optim, NULL) == CDDP_OK);
    t->momentum = value;
}

/* A step: all of it becomes `value`. */
static void train(struct trainer *t, uint64_t value)
{
    step_to(t, (float)value);
    CHECK(cddp_sampler_set_epoch(t->sampler, (int64_t)value) == CDDP_OK);
    for (size_t i = 0; i < COUNT; i++)
        t->w[i] = (float)value;
    t->own = value * 3;
}

static cddp_status save(struct trainer *t, const char *dir, uint64_t step)
{
    const cddp_checkpoint_options opt = {.size = sizeof opt, .keep = 3, .background = 1};
    cddp_status st;

    (void)snprintf(t->name, sizeof t->name, "w");
    st = cddp_checkpoint_save(
        t->comm, dir, step,
        (const cddp_checkpoint_item[]){
            {.size = sizeof(cddp_checkpoint_item), .name = t->name, .data = t->w, .bytes = sizeof t->w},
            {.size = sizeof(cddp_checkpoint_item),
             .name = "own",
             .data = &t->own,
             .bytes = sizeof t->own,
             .flags = CDDP_ITEM_PER_RANK},
            {.size = sizeof(cddp_checkpoint_item), .name = "s", .data = t->sampler, .kind = CDDP_ITEM_SAMPLER},
            {.size = sizeof(cddp_checkpoint_item), .name = "sgd", .data = t->optim, .kind = CDDP_ITEM_OPTIM},
            {.size = sizeof(cddp_checkpoint_item), .name = "ddp", .data = t->ddp, .kind = CDDP_ITEM_DDP},
        },
        5, &opt);
    (void)snprintf(t->name, sizeof t->name, "gone");
    return st;
}

static void load(struct trainer *t, uint64_t step)
{
    cddp_checkpoint_item items[] = {
        {.size = sizeof(cddp_checkpoint_item),
         .name = "own",
         .data = &t->own,
         .bytes = sizeof t->own,
         .flags = CDDP_ITEM_PER_RANK},
        {.size = sizeof(cddp_checkpoint_item), .name = "w", .data = t->w, .bytes = sizeof t->w},
        {.size = sizeof(cddp_checkpoint_item), .name = "sgd", .data = t->optim, .kind = CDDP_ITEM_OPTIM},
        {.size = sizeof(cddp_checkpoint_item), .name = "ddp", .data = t->ddp, .kind = CDDP_ITEM_DDP},
        {.size = sizeof(cddp_checkpoint_item), .name = "s", .data = t->sampler, .kind = CDDP_ITEM_SAMPLER},
    };
    cddp_sampler_state place;
    float before;
    cddp_checkpoint_info info = {.size = sizeof info};

    train(t, 0);
    CHECK(cddp_checkpoint_load(t->comm, t->dir, items, 5, &info) == CDDP_OK && info.step == step &&
          info.n_damaged == 0);
    CHECK(t->own == step * 3);
    cddp_sampler_get_state(t->sampler, &place);
    CHECK(place.words[1] == step); /* its epoch */
    t->momentum = (float)step;
    before = t->p[PARAM - 1];
    step_to(t, 1);
    CHECK(t->p[PARAM - 1] == before - 1);
    for (size_t i = 0; i < COUNT; i++)
        if (t->w[i] != (float)step) {
            CHECK(!"an element is of another step");
            return;
        }
}

static void *run(void *arg)
{
    struct trainer *t = arg;

    for (uint64_t round = 1; round <= ROUNDS; round++) {
        train(t, round);
        CHECK(save(t, t->dir, round) == CDDP_OK);
        train(t, 1000 + round); /* while it is written */
        if (round % 5 == 0)
            load(t, round);
        if (round % 7 == 0)
            CHECK(cddp_checkpoint_wait(t->comm) == CDDP_OK);
        if (round % 9 == 0) {
            CHECK(save(t, t->nowhere, round) == CDDP_OK);
            CHECK((round % 2 == 0 ? cddp_checkpoint_wait(t->comm) : save(t, t->dir, round)) == CDDP_E_SYSTEM);
        }
    }
    train(t, ROUNDS + 1);
    CHECK(save(t, t->dir, ROUNDS + 1) == CDDP_OK);
    return NULL;
}

static void remove_dir(const char *dir)
{
    char command[200];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    CHECK(system(command) == 0);
}

int main(void)
{
    static struct trainer trainers[THREADS];
    char base[] = "/tmp/cddp-test-XXXXXX";
    cddp_comm *comm;

    if (mkdtemp(base) == NULL || cddp_init(&comm, NULL) != CDDP_OK) {
        fprintf(stderr, "no directory, or %s\n", cddp_last_error());
        return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        struct trainer *t = &trainers[i];

        (void)snprintf(t->dir, sizeof t->dir, "%s/%d", base, i);
        (void)snprintf(t->nowhere, sizeof t->nowhere, "%s/not/there", t->dir);
        CHECK(cddp_comm_split(&t->comm, comm, 0, 0, NULL) == CDDP_OK);
        open_objects(t);
    }
    for (int i = 0; i < THREADS && failures == 0; i++)
        CHECK(pthread_create(&trainers[i].thread, NULL, run, &trainers[i]) == 0);
    for (int i = 0; i < THREADS; i++) {
        struct trainer *t = &trainers[i];

        CHECK(pthread_join(t->thread, NULL) == 0);
        close_objects(t);                         /* which the last save does not need */
        CHECK(cddp_finalize(t->comm) == CDDP_OK); /* which waits for it */
        CHECK(cddp_comm_split(&t->comm, comm, 0, 0, NULL) == CDDP_OK);
        open_objects(t);
        load(t, ROUNDS + 1);
        close_objects(t);
        CHECK(cddp_finalize(t->comm) == CDDP_OK);
    }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    remove_dir(base);
    return failures != 0;
}
