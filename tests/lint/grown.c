/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that was built with the header of another version: see grown.py. It uses members that every version has,
 * and every function that a struct goes into, and expects what cddp.h promises under "Structs".
 */
#include <cddp/cddp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cddp_comm *comm;
static int n_checks;

#define CHECK(what)                                                                \
    do {                                                                           \
        n_checks++;                                                                \
        if (!(what)) {                                                             \
            (void)printf("line %d: %s: %s\n", __LINE__, #what, cddp_last_error()); \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

#ifdef NEWER
/* With a newer member set to `value`, both the first and the last byte of which the library could overlook. */
#define REFUSED(call, object, member, value)                                                                  \
    do {                                                                                                      \
        char text_[64];                                                                                       \
                                                                                                              \
        (object).member = (value);                                                                            \
        (void)snprintf(text_, sizeof text_, "at offset %zu,",                                                 \
                       offsetof(__typeof__(object), member) + ((value) == 1 ? 0 : 7));                        \
        CHECK((call) == CDDP_E_UNSUPPORTED);                                                                  \
        CHECK(strstr(cddp_last_error(), text_) != NULL && strstr(cddp_last_error(), "newer header") != NULL); \
        (object).member = 0;                                                                                  \
    } while (0)
#define UNKNOWN(call, object)                                   \
    do {                                                        \
        REFUSED(call, object, planted, 1);                      \
        REFUSED(call, object, planted, UINT64_C(1) << 56);      \
        REFUSED(call, object, planted_last, UINT64_C(1) << 56); \
    } while (0)
#else
#define UNKNOWN(call, object) ((void)0)
#endif

static void device(void)
{
    struct {
        cddp_device_info info;
        uint64_t behind;
    } d = {.info = {.size = sizeof d.info}, .behind = 7};

    CHECK(cddp_get_device_info(comm, &d.info) == CDDP_OK);
    CHECK(d.info.size == sizeof d.info && d.info.device == -1 && strcmp(d.info.name, "cpu") == 0 && d.behind == 7);
    d.info.size = 0;
    CHECK(cddp_get_device_info(comm, &d.info) == CDDP_E_INVALID);
}

static void work(void)
{
    double in = 3, out = 0;
    cddp_coll_args w = {
        .size = sizeof w, .coll = CDDP_COLL_ALL_REDUCE, .dtype = CDDP_FLOAT64, .op = CDDP_SUM, .in = &in, .out = &out};
    uint64_t ticket;

    w.count = 1;
    UNKNOWN(cddp_coll_start(comm, &w, 1, &ticket), w);
    CHECK(cddp_coll_start(comm, &w, 1, &ticket) == CDDP_OK && cddp_coll_wait(comm, ticket) == CDDP_OK && out == in);
}

static cddp_status begin(void *arg, cddp_comm *c, const cddp_bucket *bucket, uint64_t *ticket)
{
    (void)c;
    (void)ticket;
    (void)arg;
    return bucket->dtype == CDDP_FLOAT32 && bucket->size > 0 ? CDDP_OK : CDDP_E_STATE;
}

static void step(cddp_ddp *ddp, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        *(float *)cddp_ddp_grad(ddp, i) = (float)i;
        CHECK(cddp_ddp_grad_ready(ddp, i) == CDDP_OK);
    }
}

static void reducer(void)
{
    static float data[3][4], statistics[2];
    static const size_t first[] = {0}, last[] = {2};
    cddp_param params[3] = {0}, buffers[2] = {0};
    cddp_ddp_options opt = {.size = sizeof opt, .bucket_bytes = 64, .buffers = buffers, .n_buffers = 2};
    cddp_hook hook = {.size = sizeof hook, .begin = begin};
    cddp_powersgd_options powersgd = {.size = sizeof powersgd, .matrix_rank = 1};
    cddp_optim_group groups[2] = {{.size = sizeof groups[0], .params = first, .n_params = 1, .lr_factor = 2},
                                  {.size = sizeof groups[0], .params = last, .n_params = 1, .lr_factor = 4}};
    cddp_optim_options rule = {.size = sizeof rule, .kind = CDDP_OPTIM_SGD, .lr = 1, .groups = groups, .n_groups = 2};
    cddp_optim_step_args args = {.size = sizeof args, .grad_scale = 0.5};
    cddp_optim *optim;
    cddp_ddp *ddp;

    for (size_t i = 0; i < 3; i++) {
        params[i].size = sizeof params[i];
        params[i].name = "p";
        params[i].data = data[i];
        params[i].count = 4;
        params[i].dtype = CDDP_FLOAT32;
    }
    for (size_t i = 0; i < 2; i++) {
        buffers[i] = params[0];
        buffers[i].data = &statistics[i];
        buffers[i].count = 1;
    }
    UNKNOWN(cddp_ddp_create(&ddp, comm, params, 3, &opt), opt);
    UNKNOWN(cddp_ddp_create(&ddp, comm, params, 3, &opt), params[0]);
    UNKNOWN(cddp_ddp_create(&ddp, comm, params, 3, &opt), params[2]);
    UNKNOWN(cddp_ddp_create(&ddp, comm, params, 3, &opt), buffers[1]);
    params[1].size = 0;
    CHECK(cddp_ddp_create(&ddp, comm, params, 3, &opt) == CDDP_E_INVALID);
    params[1].size = sizeof params[1];
    CHECK(cddp_ddp_create(&ddp, comm, params, 3, &opt) == CDDP_OK);
    CHECK(cddp_ddp_bucket_cap(ddp) == 64 && cddp_ddp_sync_buffers(ddp) == CDDP_OK);
    step(ddp, 3);
    CHECK(cddp_ddp_wait(ddp) == CDDP_OK && *(float *)cddp_ddp_grad(ddp, 2) == 2);

    UNKNOWN(cddp_ddp_set_powersgd(ddp, &powersgd), powersgd);
    CHECK(cddp_ddp_set_powersgd(ddp, &powersgd) == CDDP_OK);
    UNKNOWN(cddp_ddp_set_hook(ddp, &hook), hook);
    CHECK(cddp_ddp_set_hook(ddp, &hook) == CDDP_OK);
    step(ddp, 3);
    CHECK(cddp_ddp_wait(ddp) == CDDP_OK && cddp_ddp_set_hook(ddp, NULL) == CDDP_OK);

    UNKNOWN(cddp_optim_create(&optim, ddp, &rule), rule);
    UNKNOWN(cddp_optim_create(&optim, ddp, &rule), groups[1]);
    CHECK(cddp_optim_create(&optim, ddp, &rule) == CDDP_OK);
    step(ddp, 3);
    UNKNOWN(cddp_optim_step(optim, &args), args);
    CHECK(cddp_optim_step(optim, &args) == CDDP_OK && data[1][0] == -0.5f && data[2][0] == -4);
    cddp_optim_destroy(optim);
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    CHECK(rule.size == sizeof rule && rule.lr == 1e-3 && cddp_optim_create(&optim, ddp, &rule) == CDDP_OK);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
}

static void sampler(void)
{
    cddp_sampler_options opt = {.size = sizeof opt, .n = 10, .world_size = 1};
    cddp_sampler *s;

    UNKNOWN(cddp_sampler_create(&s, &opt), opt);
    CHECK(cddp_sampler_create(&s, &opt) == CDDP_OK && cddp_sampler_count(s) == 10);
    cddp_sampler_destroy(s);
}

static void checkpoint(const char *dir)
{
    double x = 1, y = 2;
    cddp_checkpoint_item items[2] = {{.size = sizeof items[0], .name = "x", .data = &x, .bytes = sizeof x},
                                     {.size = sizeof items[0], .name = "y", .data = &y, .bytes = sizeof y}};
    cddp_checkpoint_options opt = {.size = sizeof opt};
    struct {
        cddp_checkpoint_info info;
        uint64_t behind;
    } d = {.info = {.size = sizeof d.info}, .behind = 7};

    UNKNOWN(cddp_checkpoint_save(comm, dir, 5, items, 2, &opt), opt);
    UNKNOWN(cddp_checkpoint_save(comm, dir, 5, items, 2, &opt), items[1]);
    CHECK(cddp_checkpoint_save(comm, dir, 5, items, 2, &opt) == CDDP_OK);
    x = y = 0;
    UNKNOWN(cddp_checkpoint_load(comm, dir, items, 2, NULL), items[0]);
    CHECK(cddp_checkpoint_load(comm, dir, items, 2, &d.info) == CDDP_OK && x == 1 && y == 2);
    CHECK(d.info.size == sizeof d.info && d.info.step == 5 && d.info.n_damaged == 0 && d.behind == 7);
    d.info.size = 8; /* that of a pointer */
    CHECK(cddp_checkpoint_load(comm, dir, items, 2, &d.info) == CDDP_E_INVALID);
}

int main(int argc, char **argv)
{
    cddp_init_options opt = {.size = sizeof opt, .backend = "cpu"};
    cddp_store_options where = {.size = sizeof where, .host = "127.0.0.1"};
    cddp_store *store;

    CHECK(argc == 2);
    UNKNOWN(cddp_init(&comm, &opt), opt);
    opt.size = sizeof(void *);
    CHECK(cddp_init(&comm, &opt) == CDDP_E_INVALID);
    opt.size = sizeof opt;
    CHECK(cddp_init(&comm, &opt) == CDDP_OK);
    device();
    work();
    reducer();
    sampler();
    checkpoint(argv[1]);
    UNKNOWN(cddp_store_open(&store, &where), where);
    CHECK(cddp_store_open(&store, &where) == CDDP_E_INVALID && strstr(cddp_last_error(), "MASTER_PORT") != NULL);
    CHECK(sizeof(cddp_dtype) == 4 && sizeof(cddp_status) == 4 && cddp_finalize(comm) == CDDP_OK);
    (void)printf("%d checks\n", n_checks);
    return 0;
}
