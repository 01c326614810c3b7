/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of the mix, by mode (mix.h). */
#include "mix.h"
#include "mix_value.h"

#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_MS 60000 /* for modes without late ranks */
#define LANES 3
#define EDGES 12 /* each takes as long as the timeout */

static void pause_us(size_t us)
{
    const struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};

    (void)nanosleep(&ts, NULL);
}

static bool has(const struct mix_lane *l, char kind)
{
    return strchr(l->mix->kinds, kind) != NULL;
}

static struct mix_lane lane_of(const struct mix_lane *l, cddp_comm *comm, uint64_t number)
{
    return (struct mix_lane){.mix = l->mix,
                             .comm = comm,
                             .seed = mix_hash(l->seed, l->nr, 900 + number),
                             .rank = cddp_rank(comm),
                             .size = cddp_world_size(comm)};
}

/* ----------------------------------------------------------------------------------------- communicators at once ----
 */

struct worker {
    struct mix_lane lane;
    pthread_t thread;
    bool ok;
};

/* Without parts and reducers. */
static bool simple_operation(struct mix_lane *l)
{
    size_t kind = mix_dice(l, 1, 16);

    if (kind < 6 && has(l, 'p'))
        return kind < 2 ? mix_group(l) : mix_messages(l);
    if (kind < 9)
        return mix_begun(l, has(l, 't'));
    return !has(l, 'c') || mix_collective(l);
}

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t end = 10 + mix_dice(&w->lane, 2, 30);

    w->ok = true;
    for (; w->lane.nr < end && w->ok; w->lane.nr++)
        w->ok = simple_operation(&w->lane);
    return NULL;
}

/* Parts with all ranks, one for each thread. */
static bool threads(struct mix_lane *l)
{
    struct worker w[LANES];
    int n = 1 + (int)mix_dice(l, 3, LANES);
    cddp_comm *comm;
    bool ok = true;

    for (int t = 0; t < n; t++) {
        if (cddp_comm_split(&comm, l->comm, 0, (int)mix_own_dice(l, 4, 3), NULL) != CDDP_OK)
            return mix_failed(l, "cddp_comm_split: %s", cddp_last_error());
        w[t] = (struct worker){.lane = lane_of(l, comm, (uint64_t)t)};
    }
    for (int t = 0; t < n; t++)
        if (pthread_create(&w[t].thread, NULL, work, &w[t]) != 0)
            return mix_failed(l, "no thread");
    for (int t = 0; t < n; t++)
        (void)pthread_join(w[t].thread, NULL);
    for (int t = 0; t < n; t++) {
        ok = ok && w[t].ok;
        if (ok && cddp_finalize(w[t].lane.comm) != CDDP_OK)
            ok = mix_failed(l, "cddp_finalize of a part: %s", cddp_last_error());
    }
    return ok;
}

static bool split(struct mix_lane *l)
{
    int color = (int)mix_own_dice(l, 5, 3) - 1;
    cddp_comm *comm = NULL;
    struct worker w;

    if (cddp_comm_split(&comm, l->comm, color, (int)mix_own_dice(l, 6, 3), NULL) != CDDP_OK)
        return mix_failed(l, "cddp_comm_split: %s", cddp_last_error());
    if ((comm == NULL) != (color < 0))
        return mix_failed(l, "cddp_comm_split gave a part to color %d", color);
    if (comm == NULL)
        return true;
    w.lane = lane_of(l, comm, (uint64_t)color);
    (void)work(&w);
    if (w.ok && cddp_finalize(comm) != CDDP_OK)
        return mix_failed(l, "cddp_finalize of a part: %s", cddp_last_error());
    return w.ok;
}

static bool operation(struct mix_lane *l)
{
    size_t kind = mix_dice(l, 7, 100);

    if (mix_own_dice(l, 8, 30) == 0)
        pause_us(mix_own_dice(l, 9, 3000));
    if (kind < 2 && has(l, 't'))
        return threads(l);
    if (kind < 4 && has(l, 's'))
        return split(l);
    if (kind < 6 && has(l, 'r'))
        return mix_reducer(l);
    return simple_operation(l);
}

/* ----------------------------------------------------------------------------------------------------- the modes ----
 */

static int leave(struct mix_lane *l, bool ok)
{
    if (!ok)
        _exit(1); /* other ranks would wait for operations that this rank did not finish */
    if (cddp_finalize(l->comm) == CDDP_OK)
        return 0;
    (void)mix_failed(l, "cddp_finalize: %s", cddp_last_error());
    return 1;
}

static int everything(struct mix_lane *l)
{
    bool ok = true;

    while (l->nr < l->mix->n_ops && ok) {
        ok = operation(l);
        l->nr++;
    }
    return leave(l, ok);
}

/* "rank 2", "ranks 0, 2": does the text name one? */
static bool names_a_rank(const char *text)
{
    for (const char *at = text; (at = strstr(at, "rank")) != NULL; at++) {
        const char *number = at + 4 + (at[4] == 's');

        if (*number == ' ' && isdigit((unsigned char)number[1]))
            return true;
    }
    return false;
}

/* Does the text contain "rank 2", and not only "rank 21"? */
static bool names_rank(const char *text, int rank)
{
    char name[16];
    int n = snprintf(name, sizeof name, "rank %d", rank);

    for (const char *at = text; (at = strstr(at, name)) != NULL; at++)
        if (!isdigit((unsigned char)at[n]))
            return true;
    return false;
}

/*
 * Ranks arrive at the same barrier, or message, at about the end of the timeout. A rank that times out names another
 * one; a rank that found all others continues.
 */
static int edge(struct mix_lane *l, int64_t timeout_ms)
{
    cddp_status status = CDDP_OK;

    for (; l->nr < EDGES && status == CDDP_OK; l->nr++) {
        int late = (int)mix_dice(l, 70, (size_t)l->size), other = (late + 1) % l->size;
        bool message = l->size > 1 && mix_dice(l, 71, 3) == 0;
        char x = 0;

        status = cddp_barrier(l->comm);
        if (status == CDDP_OK && l->rank == late)
            pause_us((size_t)timeout_ms * 1000 - 300 + mix_dice(l, 72, 500));
        if (status == CDDP_OK && !message)
            status = cddp_barrier(l->comm);
        else if (status == CDDP_OK && l->rank == late)
            status = cddp_send(l->comm, &x, 1, CDDP_INT8, other);
        else if (status == CDDP_OK && l->rank == other)
            status = cddp_recv(l->comm, &x, 1, CDDP_INT8, late);
    }
    if (status != CDDP_OK && !names_a_rank(cddp_last_error())) {
        (void)mix_failed(l, "%s names no rank: %s", cddp_status_name(status), cddp_last_error());
        return 1;
    }
    if (status != CDDP_OK && status != CDDP_E_TIMEOUT && status != CDDP_E_PEER && status != CDDP_E_ABORTED) {
        (void)mix_failed(l, "somebody is late: %s: %s", cddp_status_name(status), cddp_last_error());
        return 1;
    }
    (void)cddp_finalize(l->comm);
    return 0;
}

/* Two ranks that both send first get an error, after some time without errors. */
static int crossed(struct mix_lane *l)
{
    int a = (int)mix_dice(l, 73, (size_t)l->size), b = (a + 1) % l->size;
    uint64_t end = mix_dice(l, 74, 60);
    cddp_status status = CDDP_OK;
    bool ok = true;
    char x[64] = {0};

    for (; l->nr < end && ok; l->nr++)
        ok = mix_messages(l);
    if (!ok)
        return leave(l, false);
    status = cddp_barrier(l->comm); /* a rank that returns late may already see later errors of others */
    if (status == CDDP_OK && (l->rank == a || l->rank == b))
        status = cddp_send(l->comm, x, sizeof x, CDDP_INT8, l->rank == a ? b : a);
    else if (status == CDDP_OK)
        status = cddp_barrier(l->comm);
    if (status != CDDP_E_MISMATCH || !names_rank(cddp_last_error(), a) || !names_rank(cddp_last_error(), b)) {
        (void)mix_failed(l, "ranks %d and %d both sent first: %s: %s", a, b, cddp_status_name(status),
                         cddp_last_error());
        return 1;
    }
    (void)cddp_finalize(l->comm);
    return 0;
}

static cddp_status end_all(struct mix_lane *l, size_t how)
{
    if (how == 0)
        (void)kill(getpid(), SIGKILL);
    if (how == 1)
        _exit(MIX_LEFT);
    cddp_abort(l->comm, "enough");
    return cddp_barrier(l->comm);
}

/* One rank fails while all others exchange data. Results are right until then, and afterwards errors name it. */
static int ends(struct mix_lane *l)
{
    int who = (int)mix_dice(l, 75, (size_t)l->size);
    uint64_t when = mix_dice(l, 76, 80);
    size_t how = mix_dice(l, 77, 3);
    cddp_status status = CDDP_OK;
    float x[64], y[64];

    for (uint64_t i = 0; status == CDDP_OK; i++) {
        if (l->rank == who && i == when) {
            status = end_all(l, how);
            break;
        }
        for (size_t k = 0; k < 64; k++)
            x[k] = (float)(i + k + (size_t)l->rank);
        status = cddp_all_reduce(l->comm, x, y, 64, CDDP_FLOAT32, CDDP_SUM);
        for (size_t k = 0; k < 64 && status == CDDP_OK; k++)
            if (y[k] != (float)((i + k) * (size_t)l->size + (size_t)(l->size * (l->size - 1) / 2))) {
                (void)mix_failed(l, "sum %llu is wrong", (unsigned long long)i);
                return 1;
            }
    }
    if ((status != CDDP_E_ABORTED && status != CDDP_E_PEER) ||
        (l->rank != who && !names_rank(cddp_last_error(), who))) {
        (void)mix_failed(l, "rank %d ended it (%zu): %s: %s", who, how, cddp_status_name(status), cddp_last_error());
        return 1;
    }
    (void)cddp_finalize(l->comm);
    return 0;
}

int mix_be_rank(const struct mix *m)
{
    const struct mix_lane seed = {.mix = m, .seed = mix_hash(m->seed, 1, 1)};
    int64_t timeout_ms = m->mode == MIX_EDGE ? 10 + (int64_t)mix_dice(&seed, 78, 60) : TIMEOUT_MS;
    const cddp_init_options opt = {
        .size = sizeof opt, .backend = "cpu", .join_timeout_ms = TIMEOUT_MS, .timeout_ms = (int)timeout_ms};
    struct mix_lane lane = seed;

    if (cddp_init(&lane.comm, &opt) != CDDP_OK) {
        fprintf(stderr, "mix: rank %d: cddp_init: %s\n", m->rank, cddp_last_error());
        return 1;
    }
    lane.rank = cddp_rank(lane.comm);
    lane.size = cddp_world_size(lane.comm);
    switch (m->mode) {
    case MIX_EDGE:
        return edge(&lane, timeout_ms);
    case MIX_CROSSED:
        return crossed(&lane);
    case MIX_ENDS:
        return ends(&lane);
    case MIX_ALL:
        break;
    }
    return everything(&lane);
}
