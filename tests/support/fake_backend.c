/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_backend.h"

#include "worker/checkpoint/item.h"
#include "worker/reducer/powersgd.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_world {
    int n;
    pthread_barrier_t barrier;
    const void *in[64]; /* each rank's input of the running collective */
    size_t bytes[64];
};

/* ----------------------------------------------------------------------------------------------- the backend ---- */

static cddp_comm *of(struct cdi_backend *b)
{
    return (cddp_comm *)b; /* the fake's only state is the communicator's */
}

static cddp_status fake_region_create(struct cdi_backend *b, size_t bytes, struct cdi_region **out,
                                      struct cdi_error *err)
{
    struct cdi_region *r;

    if (of(b)->fail_region != CDDP_OK)
        return cdi_fail(err, of(b)->fail_region, "scripted: no region");
    r = malloc(sizeof *r);
    r->bytes = bytes;
    r->base = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(r->base, 0, bytes);
    of(b)->n_regions++;
    *out = r;
    return CDDP_OK;
}

static void fake_region_destroy(struct cdi_backend *b, struct cdi_region *r)
{
    if (r == NULL)
        return;
    of(b)->n_regions--;
    free(r->base);
    free(r);
}

static void apply(cddp_comm *c, const struct cdi_coll *op)
{
    if (op->kind == CDI_ALL_REDUCE && op->in != op->out)
        memcpy(op->out, op->in, op->count * cddp_dtype_size(op->dtype));
    if (c->factor != 0 && op->dtype == CDDP_FLOAT32)
        for (size_t i = 0; i < op->count; i++)
            ((float *)op->out)[i] *= (float)c->factor;
}

static void complete(cddp_comm *c, size_t ticket)
{
    while (c->completed < ticket)
        apply(c, &c->ops[c->completed++]);
    (void)pthread_cond_broadcast(&c->changed);
}

void fake_complete(cddp_comm *c, size_t ticket)
{
    (void)pthread_mutex_lock(&c->lock);
    complete(c, ticket);
    (void)pthread_mutex_unlock(&c->lock);
}

/* Records, for a device, a call. */
static void note(cddp_comm *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(cddp_comm *c, const char *fmt, ...)
{
    size_t at = strlen(c->calls);
    va_list args;

    if (!c->device)
        return;
    va_start(args, fmt);
    (void)vsnprintf(c->calls + at, sizeof c->calls - at, fmt, args);
    va_end(args);
}

static cddp_status fake_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket,
                                struct cdi_error *err)
{
    cddp_comm *c = of(b);

    if (c->fail_enqueue != CDDP_OK)
        return cdi_fail(err, c->fail_enqueue, "scripted: cannot enqueue");
    (void)pthread_mutex_lock(&c->lock);
    cr_assert_lt(c->n_ops, FAKE_OPS);
    c->ops[c->n_ops++] = *op;
    *ticket = c->n_ops;
    if (op->kind == CDI_BROADCAST)
        note(c, "broadcast %zu; ", op->count);
    else
        note(c, "%s %d; ", cdi_flight_op_name(CDI_FLIGHT_ALL_REDUCE), op->bucket);
    if (!c->manual)
        complete(c, c->n_ops);
    (void)pthread_mutex_unlock(&c->lock);
    return CDDP_OK;
}

static cddp_status fake_join(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    cddp_comm *c = of(b);
    cddp_status status;

    (void)pthread_mutex_lock(&c->lock);
    c->n_joins++;
    while (c->completed < ticket && c->abort_text[0] == '\0' && c->fail_join == CDDP_OK)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    status = c->fail_join != CDDP_OK ? cdi_fail(err, c->fail_join, "scripted: join failed")
             : c->completed < ticket ? cdi_fail(err, CDDP_E_ABORTED, "%.900s", c->abort_text)
                                     : CDDP_OK;
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}

static void fake_abort(struct cdi_backend *b, const struct cdi_error *why)
{
    cddp_comm *c = of(b);

    cr_assert_eq(why->status, CDDP_E_ABORTED);
    (void)pthread_mutex_lock(&c->lock);
    (void)snprintf(c->abort_text, sizeof c->abort_text, "%s", why->msg);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

static cddp_status fake_pack(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                             struct cdi_error *err)
{
    char *at = to;

    (void)err;
    note(of(b), "pack; ");
    for (size_t i = 0; i < n; at += from[i++].bytes)
        if (from[i].data != NULL)
            memcpy(at, from[i].data, from[i].bytes);
    return CDDP_OK;
}

static cddp_status fake_unpack(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                               struct cdi_error *err)
{
    const char *at = from;

    (void)err;
    note(of(b), "unpack; ");
    for (size_t i = 0; i < n; at += to[i++].bytes)
        if (to[i].data != NULL)
            memcpy(to[i].data, at, to[i].bytes);
    return CDDP_OK;
}

static cddp_status fake_clear(struct cdi_backend *b, void *p, size_t bytes, struct cdi_error *err)
{
    (void)b, (void)err;
    memset(p, 0, bytes);
    return CDDP_OK;
}

static cddp_status fake_wait_stream(struct cdi_backend *b, void *stream, bool timed, struct cdi_error *err)
{
    (void)err;
    (void)timed;
    note(of(b), "wait_stream %d; ", (int)(intptr_t)stream);
    return CDDP_OK;
}

static cddp_status fake_stream_wait(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err)
{
    if (of(b)->fail_join != CDDP_OK)
        return cdi_fail(err, of(b)->fail_join, "scripted: join failed");
    note(of(b), "stream_wait %d on %d; ", (int)ticket, (int)(intptr_t)stream);
    return CDDP_OK;
}

static cddp_status fake_health(struct cdi_backend *b, struct cdi_error *err)
{
    return of(b)->fail_health == CDDP_OK ? CDDP_OK : cdi_fail(err, of(b)->fail_health, "scripted: broken");
}

static cddp_status fake_alloc(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err)
{
    (void)err;
    *out = malloc(bytes);
    of(b)->n_allocated++;
    return CDDP_OK;
}

static void fake_release(struct cdi_backend *b, void *p)
{
    of(b)->n_allocated--;
    free(p);
}

static cddp_status fake_copy(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err)
{
    (void)err;
    note(of(b), "copy; ");
    memcpy(to, from, bytes);
    return CDDP_OK;
}

static bool fake_is_device(struct cdi_backend *b, const void *p)
{
    return of(b)->device && p != of(b)->on_host;
}

static const struct cdi_backend_ops fake_ops = {
    .name = "fake",
    .region_create = fake_region_create,
    .region_destroy = fake_region_destroy,
    .health = fake_health,
    .enqueue = fake_enqueue,
    .join = fake_join,
    .is_device = fake_is_device,
    .alloc = fake_alloc,
    .release = fake_release,
    .copy = fake_copy,
    .abort = fake_abort,
    .pack = fake_pack,
    .unpack = fake_unpack,
};

static const struct cdi_backend_ops fake_device_ops = {
    .name = "fake device",
    .on_device = true,
    .region_create = fake_region_create,
    .region_destroy = fake_region_destroy,
    .enqueue = fake_enqueue,
    .join = fake_join,
    .wait_stream = fake_wait_stream,
    .stream_wait = fake_stream_wait,
    .health = fake_health,
    .is_device = fake_is_device,
    .alloc = fake_alloc,
    .release = fake_release,
    .copy = fake_copy,
    .abort = fake_abort,
    .pack = fake_pack,
    .unpack = fake_unpack,
    .clear = fake_clear,
};

/* ---------------------------------------------------------------------------------------------- communicator ---- */

const struct cdi_world *cdi_comm_world(const cddp_comm *comm)
{
    return &comm->world;
}

int cddp_local_rank(const cddp_comm *comm)
{
    return comm->world.local_rank;
}

void cdi_comm_set_step(cddp_comm *comm, const void *reducer, uint64_t step)
{
    (void)reducer;
    comm->step = step + 1;
}

uint32_t cdi_comm_number_model(cddp_comm *comm)
{
    (void)comm;
    return 1;
}

void cdi_comm_end_steps(cddp_comm *comm, const void *reducer)
{
    (void)comm;
    (void)reducer;
}

/* No program asks cddp_should_stop here. */
cddp_status cdi_stop_ride(cddp_comm *comm, const void *reducer, uint64_t *ticket, struct cdi_error *err)
{
    (void)comm;
    (void)reducer;
    (void)ticket;
    (void)err;
    return CDDP_OK;
}

uint64_t cdi_comm_step(const cddp_comm *comm)
{
    return comm->step;
}

/* No test forks. */
cddp_status cdi_comm_own(const char *function, const cddp_comm *comm, struct cdi_error *err)
{
    (void)function;
    (void)comm;
    (void)err;
    return CDDP_OK;
}

bool cdi_comm_is_others(const char *function, const cddp_comm *comm)
{
    (void)function;
    (void)comm;
    return false;
}

void cdi_comm_hold(cddp_comm *comm)
{
    (void)comm;
}

void cdi_comm_let_go(cddp_comm *comm)
{
    (void)comm;
}

bool cdi_comm_is_over(const cddp_comm *comm)
{
    (void)comm;
    return false;
}

void cdi_comm_bury(cddp_comm *comm, struct cdi_grave *grave)
{
    grave->next = comm->graves;
    comm->graves = grave;
}

struct cdi_memory *cdi_comm_memory(cddp_comm *comm)
{
    return &comm->memory;
}

const struct cdi_backend_ops *cdi_comm_ops(const cddp_comm *comm)
{
    return comm->device ? &fake_device_ops : &fake_ops;
}

struct cdi_backend *cdi_comm_backend(const cddp_comm *comm)
{
    return (struct cdi_backend *)comm;
}

/* Every rank publishes its input, reads what it needs, and waits until all have read. */
static void meet(cddp_comm *c, const void *in, size_t bytes)
{
    c->shared->in[c->world.rank] = in;
    c->shared->bytes[c->world.rank] = bytes;
    (void)pthread_barrier_wait(&c->shared->barrier);
    cr_assert_eq(c->shared->bytes[0], bytes, "ranks called different collectives");
}

cddp_status cdi_comm_all_gather(cddp_comm *c, const void *in, void *out, size_t count, cddp_dtype dtype,
                                struct cdi_error *err)
{
    size_t bytes = count * cddp_dtype_size(dtype);

    if (c->fail_gather != CDDP_OK)
        return cdi_fail(err, c->fail_gather, "scripted: the collective failed");
    meet(c, in, bytes);
    for (int r = 0; r < c->world.size; r++)
        memcpy((char *)out + bytes * (size_t)r, c->shared->in[r], bytes);
    (void)pthread_barrier_wait(&c->shared->barrier);
    return CDDP_OK;
}

cddp_status cdi_comm_broadcast(cddp_comm *c, void *buf, size_t count, cddp_dtype dtype, int root, struct cdi_error *err)
{
    size_t bytes = count * cddp_dtype_size(dtype);

    if (c->fail_gather != CDDP_OK)
        return cdi_fail(err, c->fail_gather, "scripted: the collective failed");
    c->n_broadcasts++;
    meet(c, buf, bytes);
    if (c->world.rank != root)
        memcpy(buf, c->shared->in[root], bytes);
    (void)pthread_barrier_wait(&c->shared->barrier);
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- a world ---- */

void fake_open(cddp_comm *comms, int n)
{
    struct fake_world *w = calloc(1, sizeof *w);

    cr_assert(n >= 1 && n <= 64);
    w->n = n;
    (void)pthread_barrier_init(&w->barrier, NULL, (unsigned)n);
    memset(comms, 0, (size_t)n * sizeof *comms);
    for (int r = 0; r < n; r++) {
        comms[r].shared = w;
        comms[r].world = (struct cdi_world){.rank = r, .size = n, .local_rank = r, .local_size = n, .n_nodes = 1};
        (void)pthread_mutex_init(&comms[r].lock, NULL);
        (void)pthread_cond_init(&comms[r].changed, NULL);
        cr_assert_eq(cdi_flight_attach(&comms[r].world.flight, NULL, NULL), CDDP_OK);
    }
}

void fake_close(cddp_comm *comms, int n)
{
    for (int r = 0; r < n; r++) {
        while (comms[r].graves != NULL) {
            struct cdi_grave *grave = comms[r].graves;

            comms[r].graves = grave->next;
            grave->free_it(grave->it);
        }
        cr_assert_eq(comms[r].n_regions, 0, "rank %d kept a region", r);
        cr_assert_eq(comms[r].n_allocated, 0, "rank %d kept memory", r);
        cdi_flight_release(comms[r].world.flight);
        (void)pthread_cond_destroy(&comms[r].changed);
        (void)pthread_mutex_destroy(&comms[r].lock);
    }
    (void)pthread_barrier_destroy(&comms[0].shared->barrier);
    free(comms[0].shared);
}

struct task {
    pthread_t thread;
    cddp_comm *comm;
    void (*fn)(cddp_comm *comm, void *arg);
    void *arg;
};

static void *run_task(void *arg)
{
    struct task *t = arg;

    t->fn(t->comm, t->arg);
    return NULL;
}

void fake_run(cddp_comm *comms, int n, void (*fn)(cddp_comm *comm, void *arg), void *arg)
{
    struct task tasks[64];

    for (int r = 0; r < n; r++) {
        tasks[r] = (struct task){.comm = &comms[r], .fn = fn, .arg = arg};
        cr_assert_eq(pthread_create(&tasks[r].thread, NULL, run_task, &tasks[r]), 0);
    }
    for (int r = 0; r < n; r++)
        (void)pthread_join(tasks[r].thread, NULL);
}

/* These tests do not use checkpoints. */
const struct cdi_item_ops cdi_powersgd_item_ops = {0};
