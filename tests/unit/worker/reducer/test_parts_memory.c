/* SPDX-License-Identifier: Apache-2.0 */
/* One rank runs out of memory: each allocation of cddp_comm_split fails once. */
#include "hygiene.h"
#include "within.h"
#include "world.h"

#include <sys/mman.h>
#include <unistd.h>

#define MOST 32

CDI_SUITE(parts_memory);

void *__real_calloc(size_t n, size_t size); /* NOLINT(bugprone-reserved-identifier): the linker's name */
void *__wrap_calloc(size_t n, size_t size); /* NOLINT(bugprone-reserved-identifier) */

static _Atomic int until_failure; /* calls, including the failing one; 0: none fails */

void *__wrap_calloc(size_t n, size_t size) /* NOLINT(bugprone-reserved-identifier) */
{
    if (until_failure > 0 && --until_failure == 0)
        return NULL;
    return __real_calloc(n, size);
}

static int nth; /* call that fails on rank 0 */

static int splits(int rank)
{
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *part = NULL;
    cddp_status st;
    int files, left;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    files = hygiene_count_fds();
    until_failure = rank == 0 ? nth : 0;
    st = cddp_comm_split(&part, comm, 0, 0, NULL);
    left = until_failure;
    until_failure = 0;
    if (rank == 0) {
        CHECK(st == (left > 0 ? CDDP_OK : CDDP_E_NOMEM) && (part != NULL) == (left > 0));
        CHECK((left > 0 || hygiene_count_fds() == files) && (left == 0 || nth > 1));
    } else if (st == CDDP_OK && cddp_barrier(part) != CDDP_OK) { /* rank 0 has none, and reports it */
        cddp_last_error_info(&info);
        CHECK(info.status == CDDP_E_PEER && info.rank == 0 && strstr(info.message, "has left") != NULL);
    }
    if (rank == 0 && left > 0)
        CHECK(cddp_barrier(part) == CDDP_OK);
    if (part != NULL)
        (void)cddp_finalize(part);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts_memory, out_of_memory_leaks_nothing_and_ends_waits)
{
    int bad = 0;

    for (nth = 1; nth <= MOST && bad == 0; nth++)
        bad = run_world(2, splits);
    cr_assert_eq(bad, 0, "allocation %d", nth - 1);
}

/* ------------------------------------------------------------------------------------ what all ranks make together */

struct scene {
    cddp_comm *comm;
    cddp_ddp *ddp;
    cddp_optim *optim;
    cddp_fsdp *fsdp;
    uint32_t flags; /* of the reducer */
    float data[2][8], grad[2][8];
};

static cddp_status make_reducer(struct scene *s)
{
    const cddp_param params[] = {
        {.size = sizeof *params,
         .name = "a",
         .data = s->data[0],
         .grad = s->grad[0],
         .count = 8,
         .dtype = CDDP_FLOAT32},
        {.size = sizeof *params,
         .name = "b",
         .data = s->data[1],
         .grad = s->grad[1],
         .count = 8,
         .dtype = CDDP_FLOAT32},
    };

    const cddp_ddp_options opt = {.size = sizeof opt, .flags = s->flags};

    return cddp_ddp_create(&s->ddp, s->comm, params, 2, &opt);
}

static cddp_status end_data(struct scene *s)
{
    return cddp_ddp_join(s->ddp);
}

static cddp_status make_optimizer(struct scene *s)
{
    const cddp_optim_options opt = {.size = sizeof opt, .kind = CDDP_OPTIM_SGD, .lr = 1};

    return cddp_optim_create(&s->optim, s->ddp, &opt);
}

static cddp_status freeze(struct scene *s)
{
    return cddp_ddp_set_frozen(s->ddp, (size_t[]){1}, 1, 1);
}

static cddp_status use_powersgd(struct scene *s)
{
    const cddp_powersgd_options opt = {.size = sizeof opt};

    return cddp_ddp_set_powersgd(s->ddp, &opt);
}

static cddp_status make_sharded(struct scene *s)
{
    const cddp_param params[] = {{.size = sizeof *params, .name = "a", .count = 8, .dtype = CDDP_FLOAT32}};
    const cddp_fsdp_unit units[] = {{.size = sizeof *units, .name = "u", .params = params, .n_params = 1},
                                    {.size = sizeof *units, .name = "v", .params = params, .n_params = 1}};

    return cddp_fsdp_create(&s->fsdp, s->comm, units, 2, NULL);
}

static const struct {
    const char *what;
    cddp_status (*make)(struct scene *s);
    bool needs_reducer;
    uint32_t flags; /* which it has */
} makers[] = {
    {"a reducer", make_reducer, false, 0},
    {"an optimizer", make_optimizer, true, 0},
    {"frozen parameters", freeze, true, 0},
    {"PowerSGD", use_powersgd, true, 0},
    {"the end of the data", end_data, true, CDDP_DDP_JOIN},
    {"a sharded model", make_sharded, false, 0},
};

static size_t maker;
/* Shared by the ranks: allocation `nth` is more than there are; rank 1 has returned. */
static struct shared {
    _Atomic int done, returned;
} * shared;

static int makes(int rank)
{
    struct scene s = {.flags = makers[maker].flags};
    cddp_status st;
    int left;

    CHECK(cddp_init(&s.comm, NULL) == CDDP_OK);
    CHECK(!makers[maker].needs_reducer || make_reducer(&s) == CDDP_OK);
    until_failure = rank == 0 ? nth : 0;
    st = makers[maker].make(&s);
    left = until_failure;
    until_failure = 0;
    if (rank == 0) {
        CHECK(st == (left > 0 ? CDDP_OK : CDDP_E_NOMEM));
        shared->done = left > 0;
        for (int ms = 0; shared->returned == 0;
             ms++, (void)usleep(1000)) /* it stays: leaving would end rank 1's wait */
            CHECK(ms < cdi_within_ms(3000));
    } else if (st != CDDP_OK) {
        CHECK(strstr(cddp_last_error(), "rank 0") != NULL);
    }
    if (rank == 1)
        shared->returned = 1;
    cddp_optim_destroy(s.optim);
    cddp_fsdp_destroy(s.fsdp);
    cddp_ddp_destroy(s.ddp);
    (void)cddp_finalize(s.comm);
    return 0;
}

Test(parts_memory, a_rank_without_memory_keeps_no_peer_waiting)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(shared != MAP_FAILED);
    for (maker = 0; maker < sizeof makers / sizeof makers[0]; maker++) {
        shared->done = 0;
        for (nth = 1; shared->done == 0; nth++) {
            shared->returned = 0;
            cr_assert_eq(run_world(2, makes), 0, "%s, allocation %d", makers[maker].what, nth);
            cr_assert_lt(nth, 200);
        }
    }
    (void)munmap(shared, sizeof *shared);
}
