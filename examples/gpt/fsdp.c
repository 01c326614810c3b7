/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A divided model. The passes call enter and leave around each unit, and ready for each gradient; that is all they know
 * of it. What this file makes of it is the step of cddp_fsdp: gather, wait, compute, release, gradients ready.
 */
#include "fsdp.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------------------------- calls of the passes ---- */

/* Where the engine finds parameter i and its gradient from now on. */
static void place(struct engine *e, size_t i, const void *w, void *g)
{
    e->w[i] = (void *)(uintptr_t)w; /* only read */
    e->g[i] = g;
    if (e->is_gpu)
        return;
    e->model->params[i].w = e->w[i];
    e->model->params[i].g = g;
}

/* The layers that follow are gathered meanwhile: libcddp knows their order from the last step. */
static bool enter(void *arg, size_t u, bool back)
{
    struct fsdp *s = arg;
    const size_t begin = gpt_unit_begin(s->engine->model, u), end = gpt_unit_begin(s->engine->model, u + 1);

    if (cddp_fsdp_gather(s->f, u) != CDDP_OK || cddp_fsdp_wait_unit(s->f, u) != CDDP_OK)
        return false;
    for (size_t i = begin; i < end; i++) {
        void *g = back ? cddp_fsdp_grad(s->f, u, i - begin) : NULL;

        if (back && g == NULL)
            return false;
        place(s->engine, i, cddp_fsdp_param(s->f, u, i - begin), g);
    }
    return true;
}

static void leave(void *arg, size_t u)
{
    (void)cddp_fsdp_release(((struct fsdp *)arg)->f, u);
}

/* A unit's gradients are complete with that of its first parameter. */
static void ready(void *arg, size_t i)
{
    struct fsdp *s = arg;
    size_t u = EMBEDDING;

    while (gpt_unit_begin(s->engine->model, u + 1) <= i)
        u++;
    if (gpt_unit_begin(s->engine->model, u) == i)
        (void)cddp_fsdp_grads_ready(s->f, u); /* its error is that of the end of the step */
}

struct gpt_ready fsdp_ready(struct fsdp *s)
{
    return (struct gpt_ready){ready, s};
}

/* --------------------------------------------------------------------------------------------------- creation ---- */

static real *room_for_one(const struct gpt *m)
{
    size_t most = 1;

    for (size_t i = 0; i < m->n_params; i++)
        most = m->params[i].count > most ? m->params[i].count : most;
    return malloc(most * sizeof(real));
}

/* The first weights of unit u. Those of rank 0 count. */
static cddp_status fill(void *arg, size_t u, void *const *data)
{
    struct fsdp *s = arg;
    struct engine *e = s->engine;
    const size_t begin = gpt_unit_begin(e->model, u), end = gpt_unit_begin(e->model, u + 1);
    cddp_status status = CDDP_OK;
    real *room;

    if (cddp_rank(s->job) != 0)
        return CDDP_OK;
    room = room_for_one(e->model);
    if (room == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = begin; i < end && status == CDDP_OK; i++) {
        gpt_init_param(e->model, i, (uint64_t)e->opt->seed, room);
        status = e->ops->put(e, data[i - begin], room, e->model->params[i].count);
    }
    free(room);
    return status;
}

/*
 * The first and the last unit are small, and a tied embedding is also the output layer: they stay gathered for a whole
 * step. Of the others two are whole at a time: the one that is computed, and the next one; and so are the gradients of
 * the one that is computed, and of the one before, which are being divided. Where passes add them up, all are.
 */
static cddp_status create(struct fsdp *s, cddp_param *params, cddp_fsdp_unit *units, char (*names)[16], size_t passes)
{
    struct engine *e = s->engine;
    const struct gpt *m = e->model;
    const size_t last = gpt_last_unit(m);
    const cddp_fsdp_options options = {.size = sizeof options,
                                       .stage = (int)e->opt->fsdp,
                                       .max_live_units = 2,
                                       .max_live_gradients = passes > 1 ? last + 1 : 2,
                                       .replicas = s->replicas,
                                       .fill = fill,
                                       .arg = s,
                                       .stream = e->stream};

    for (size_t i = 0; i < m->n_params; i++)
        params[i] = (cddp_param){.size = sizeof *params,
                                 .name = m->params[i].name,
                                 .count = m->params[i].count,
                                 .dtype = e->dtype,
                                 .shape = m->params[i].shape,
                                 .n_dims = m->params[i].n_dims};
    for (size_t u = 0; u <= last; u++) {
        (void)snprintf(names[u], sizeof names[u],
                       u == EMBEDDING ? "embedding"
                       : u == last    ? "end"
                                      : "h.%zu",
                       u - FIRST_BLOCK);
        units[u] = (cddp_fsdp_unit){.size = sizeof *units,
                                    .name = names[u],
                                    .params = params + gpt_unit_begin(m, u),
                                    .n_params = gpt_unit_begin(m, u + 1) - gpt_unit_begin(m, u),
                                    .flags = u == EMBEDDING || u == last ? CDDP_FSDP_KEEP : 0};
    }
    return cddp_fsdp_create(&s->f, s->group != NULL ? s->group : s->job, units, last + 1, &options);
}

/* Between nodes only a share of the gradients travels. */
static cddp_status split(struct fsdp *s)
{
    const int rank = cddp_rank(s->job);
    const cddp_status status = cddp_comm_split(&s->group, s->job, cddp_node_rank(s->job), rank, NULL);

    return status == CDDP_OK ? cddp_comm_split(&s->replicas, s->job, cddp_local_rank(s->job), rank, NULL) : status;
}

cddp_status fsdp_create(struct fsdp *s, cddp_comm *comm, struct engine *e, size_t passes)
{
    const size_t n_units = gpt_last_unit(e->model) + 1;
    cddp_param *params = calloc(e->model->n_params, sizeof *params);
    cddp_fsdp_unit *units = calloc(n_units, sizeof *units);
    char(*names)[16] = calloc(n_units, sizeof *names);
    cddp_status status;

    *s = (struct fsdp){.engine = e, .job = comm};
    status = params == NULL || units == NULL || names == NULL ? engine_fail(e, "out of memory") : CDDP_OK;
    if (status == CDDP_OK && e->opt->hsdp)
        status = split(s);
    if (status == CDDP_OK)
        status = create(s, params, units, names, passes);
    free(params);
    free(units);
    free(names);
    if (status == CDDP_OK)
        e->model->units = (struct gpt_units){enter, leave, s};
    return status;
}

void fsdp_release(struct fsdp *s)
{
    cddp_fsdp_destroy(s->f);
    (void)cddp_finalize(s->replicas);
    (void)cddp_finalize(s->group);
    *s = (struct fsdp){0};
}

cddp_status fsdp_write(struct fsdp *s, FILE *to, bool *good)
{
    struct engine *e = s->engine;
    real *room = to == NULL ? NULL : room_for_one(e->model);
    cddp_status status = CDDP_OK;

    *good = true;
    if (to != NULL && room == NULL)
        return engine_fail(e, "out of memory");
    for (size_t u = 0; u <= gpt_last_unit(e->model) && status == CDDP_OK; u++) {
        if (!enter(s, u, false))
            status = CDDP_E_STATE;
        for (size_t i = gpt_unit_begin(e->model, u);
             i < gpt_unit_begin(e->model, u + 1) && status == CDDP_OK && to != NULL; i++) {
            const size_t n = e->model->params[i].count;

            status = e->ops->get(e, room, e->w[i], n);
            *good = *good && fwrite(room, sizeof *room, n, to) == n;
        }
        leave(s, u);
    }
    free(room);
    return status;
}
