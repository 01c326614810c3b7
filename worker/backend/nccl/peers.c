/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/peers.h"

#include "worker/backend/nccl/graph_capture.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/who.h"

/* Of numbers: of collectives, and of their replays. */
#define SERIES "at"
#define SERIES_OF_REPLAYS "replay"

static struct cdi_peer_error peers_channel(const struct cdi_backend *b)
{
    return (struct cdi_peer_error){.keys = &b->world.keys,
                                   .prefix = b->prefix,
                                   .rank = b->world.rank,
                                   .size = b->world.size,
                                   .ranks = b->world.ranks};
}

/* The first rank to fail publishes the reason, for ranks that NCCL leaves waiting. */
void cdi_peers_notify(struct cdi_backend *b)
{
    const struct cdi_peer_error w = peers_channel(b);
    struct cdi_error why;

    if (!atomic_load(&b->failed) || atomic_exchange(&b->notifying, true))
        return;
    (void)pthread_mutex_lock(&b->error_lock);
    while (!b->complete)
        (void)pthread_cond_wait(&b->changed, &b->error_lock);
    why = b->error;
    (void)pthread_mutex_unlock(&b->error_lock);
    if (!atomic_load(&b->from_peer))
        cdi_peer_error_tell(&w, &why);
    (void)pthread_mutex_lock(&b->error_lock);
    b->notified = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
}

/* Also notices the end of the store, which means the loss of its node. */
void cdi_peers_listen(struct cdi_backend *b)
{
    const struct cdi_peer_error w = peers_channel(b);
    struct cdi_error err;
    cddp_status st;

    (void)atomic_fetch_add(&b->n_in_store, 1);
    st = cdi_peer_error_heard(&w, &err);
    (void)atomic_fetch_sub(&b->n_in_store, 1);
    if (st == CDDP_OK)
        return;
    atomic_store(&b->from_peer, true);
    (void)cdi_gpu_fail(b, &err);
}

static uint64_t peers_replays(struct cdi_backend *b)
{
    uint64_t n;

    (void)pthread_mutex_lock(&b->ring_lock);
    n = b->captured.begun;
    (void)pthread_mutex_unlock(&b->ring_lock);
    return n;
}

uint64_t cdi_peers_place(struct cdi_backend *b)
{
    return atomic_load(&b->reached) + peers_replays(b);
}

void cdi_peers_tell_place(struct cdi_backend *b)
{
    const struct cdi_peer_error w = peers_channel(b);

    cdi_peer_error_tell_place(&w, SERIES, &b->place, atomic_load(&b->reached));
    cdi_peer_error_tell_place(&w, SERIES_OF_REPLAYS, &b->replays, peers_replays(b));
}

/*
 * Finds the ranks that are late. For messages these are the peers, since NCCL does not report which one. For a
 * collective they are the ranks that, according to the store, have not come to it; that takes several exchanges with
 * the store, each of which may take long.
 */
static void peers_find_late(struct cdi_backend *b, struct cdi_error *err)
{
    const struct cdi_peer_error w = peers_channel(b);
    struct cdi_rank_list late = b->timed_out_peers; /* this and timed_out_op do not change any more */
    const char *op = b->timed_out_op.op;
    uint64_t number = b->timed_out_op.number;
    double seconds = (double)b->world.timeout_ms / 1000;
    bool known = true, replay = number >= CDI_REPLAYS;

    if (number != 0) {
        cdi_peers_tell_place(b);
        known =
            cdi_peer_error_late(&w, replay ? SERIES_OF_REPLAYS : SERIES, replay ? number - CDI_REPLAYS : number, &late);
    }
    if (cdi_host->flight_check(b->world.flight, err) != CDDP_OK) /* this is the cause */
        return;
    if (late.n > 1 && number == 0)
        (void)cdi_fail(err, CDDP_E_TIMEOUT, "%s: one of %s did not arrive within %.4g s", op,
                       cdi_who_list(b->world.ranks, &late).text, seconds);
    else if (late.n > 0)
        (void)cdi_fail_by(err, cdi_rank_of_job(&b->world, late.first), CDDP_E_TIMEOUT,
                          "%s: %s did not arrive within %.4g s", op, cdi_who_list(b->world.ranks, &late).text, seconds);
    else
        (void)cdi_fail(err, CDDP_E_TIMEOUT, "%s: not completed within %.4g s%s", op, seconds,
                       known ? ", though every rank has called it: ranks may have called different collectives, or the "
                               "network is stuck"
                             : "");
}

void cdi_peers_name_late(struct cdi_backend *b)
{
    struct cdi_error err;
    bool timed_out;

    (void)pthread_mutex_lock(&b->error_lock);
    timed_out = b->timed_out;
    (void)pthread_mutex_unlock(&b->error_lock);
    if (!timed_out)
        return;
    peers_find_late(b, &err);
    (void)pthread_mutex_lock(&b->error_lock);
    if (!b->complete)
        b->error = err;
    b->late_ranks_known = true;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->error_lock);
}
