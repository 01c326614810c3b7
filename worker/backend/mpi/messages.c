/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives of a group: with all peers in parallel, and one after another with each of them. */
#include "worker/backend/mpi/state.h"

#include <string.h>

struct exchange {
    struct cdi_mpi_run run; /* of the group, with the message for errors */
    struct cdi_work shown;  /* the message for errors: of each peer in turn */
    int turn;
};

/* Starts the next message with peer p, if there is one. */
static cddp_status pair_begin(struct exchange *x, struct cdi_pair *p, const struct cdi_coll *op, struct cdi_error *err)
{
    p->op = op < p->end ? op : NULL;
    p->opens = p->op != NULL;
    return p->opens ? cdi_mpi_open_pair(&x->run, op, &p->q, &p->mine, &p->theirs, err) : CDDP_OK;
}

/* Continues the messages with one peer. */
static cddp_status pair_advance(struct exchange *x, struct cdi_pair *p, enum cdi_mpi_progress *got,
                                struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    while (p->op != NULL && st == CDDP_OK) {
        bool done = false;

        st = cdi_mpi_test(&p->q, &done, err);
        if (st != CDDP_OK || !done)
            return st;
        *got = CDI_MPI_MOVED;
        if (p->opens) {
            p->opens = false;
            st = cdi_mpi_move_pair(&x->run, p->op, &p->q, &p->mine, &p->theirs, err);
        } else {
            st = pair_begin(x, p, p->op + 1, err);
        }
    }
    return st;
}

static void pairs_show(struct exchange *x, const struct cdi_coll *op)
{
    x->shown.op = *op;
    x->run.peer = op->root;
}

static cddp_status pairs_advance(void *arg, enum cdi_mpi_progress *got, struct cdi_error *err)
{
    struct exchange *x = arg;
    const struct cdi_backend *b = x->run.b;
    int size = b->world.size, left = 0;

    x->turn = (x->turn + 1) % size;
    for (int i = 0; i < size; i++) {
        struct cdi_pair *p = &b->pairs[(x->turn + i) % size];
        cddp_status st = pair_advance(x, p, got, err);

        if (st != CDDP_OK)
            return st;
        if (p->op != NULL && left++ == 0)
            pairs_show(x, p->op);
    }
    if (left == 0)
        *got = CDI_MPI_DONE;
    return CDDP_OK;
}

cddp_status cdi_mpi_messages(struct cdi_mpi_run *run, const struct cdi_coll *ops, size_t n, struct cdi_error *err)
{
    struct exchange x = {.run = *run, .shown = {.n_group = n}};
    cddp_status st = CDDP_OK;

    x.run.work = &x.shown;
    x.run.op = &x.shown.op;
    for (size_t i = 0, end; i < n && st == CDDP_OK; i = end) {
        struct cdi_pair *p = &run->b->pairs[ops[i].root];

        for (end = i; end < n && ops[end].root == ops[i].root;)
            end++;
        p->end = ops + end;
        pairs_show(&x, &ops[i]);
        st = pair_begin(&x, p, ops + i, err);
    }
    return st == CDDP_OK ? cdi_mpi_poll(&x.run, pairs_advance, &x, err) : st;
}
