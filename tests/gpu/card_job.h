/* SPDX-License-Identifier: Apache-2.0 */
/* For programs of libcddp that cddprun starts on a card: the communicator, and a model of four layers. */
#ifndef CARD_JOB_H
#define CARD_JOB_H

#include "card.h"

#include <cddp/cddp.h>
#include <stdlib.h>

#define WRONG 3 /* exit status */

static inline void must(cddp_status status)
{
    if (status != CDDP_OK)
        card_die("libcddp: %s", cddp_last_error());
}

static inline void *memory(cddp_comm *comm, size_t bytes)
{
    void *p;

    must(cddp_alloc(comm, bytes, 0, &p));
    return p;
}

static inline void card_join(cddp_comm **comm, struct card *card)
{
    const cddp_init_options init = {.size = sizeof init, .backend = "nccl"};
    cddp_device_info info = {.size = sizeof info};

    must(cddp_init(comm, &init));
    must(cddp_get_device_info(*comm, &info));
    card_open(card, info.device);
}

/* Enqueues a copy by a kernel. */
static inline void card_copy(struct card *card, void *to, void *from, size_t count)
{
    struct cdi_slice slice = {from, count * sizeof(float)};
    struct cdi_launch l;
    size_t bytes;

    (void)cdi_launch_pack(&l, CDI_KERNEL_PACK, card->n_sm, to, &slice, 1, &bytes);
    card_launch(card, card->stream, &l);
}

static inline CUgraphExec card_end_capture(struct card *card)
{
    CUgraphExec exec;
    CUgraph graph;

    CARD(card, cuStreamEndCapture, card->stream, &graph);
    CARD(card, cuGraphInstantiateWithFlags, &exec, graph, 0);
    CARD(card, cuGraphDestroy, graph);
    return exec;
}

#define LAYERS 4
#define LAYERS_ALL 93999 /* elements */
#define LAYERS_BUCKET ((size_t)64 << 10)

static const size_t layer_counts[LAYERS] = {3000, 999, 70000, 20000};

/* A reducer of them, whose parameters it allocates: their values do not matter. */
static inline cddp_ddp *card_layers(cddp_comm *comm, const struct card *card, void *data[LAYERS])
{
    static const char *const names[LAYERS] = {"a", "b", "c", "d"};
    const cddp_ddp_options opt = {
        .size = sizeof opt, .bucket_bytes = LAYERS_BUCKET, .first_bucket_bytes = LAYERS_BUCKET, .stream = card->stream};
    cddp_param params[LAYERS];
    cddp_ddp *ddp;

    for (size_t i = 0; i < LAYERS; i++) {
        data[i] = memory(comm, layer_counts[i] * sizeof(float));
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = data[i],
                                 .count = layer_counts[i],
                                 .dtype = CDDP_FLOAT32};
    }
    must(cddp_ddp_create(&ddp, comm, params, LAYERS, &opt));
    return ddp;
}

#endif
