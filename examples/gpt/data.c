/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST ((size_t)1 << 32) /* bytes of a text */

static bool beside_program(char path[PATH_MAX])
{
    static const char name[] = "data/kjv.txt";
    const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - sizeof name - 1);
    char *slash;

    if (n <= 0)
        return false;
    path[n] = '\0';
    slash = strrchr(path, '/');
    if (slash == NULL)
        return false;
    memcpy(slash + 1, name, sizeof name);
    return true;
}

/* All bytes of a file. */
static bool read_all(struct data *d, FILE *f)
{
    size_t cap = (size_t)1 << 20, got;

    d->text = malloc(cap);
    while (d->text != NULL && (got = fread(d->text + d->n, 1, cap - d->n, f)) > 0) {
        uint8_t *more = NULL;

        d->n += got;
        if (d->n < cap)
            continue;
        errno = EFBIG;
        if (cap < MOST)
            more = realloc(d->text, cap *= 2);
        if (more == NULL)
            return false;
        d->text = more;
    }
    return d->text != NULL && !ferror(f);
}

static bool read_text(struct data *d, const char *path, char *why, size_t cap)
{
    FILE *f = fopen(path, "re");
    const bool ok = f != NULL && read_all(d, f);

    if (!ok)
        (void)snprintf(why, cap, "%s: %s", path, strerror(errno));
    if (f != NULL)
        (void)fclose(f);
    return ok;
}

static uint64_t digest(const uint8_t *at, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < n; i++)
        h = (h ^ at[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* The windows of both parts. The windows of an epoch begin up to a context later, so that each has other bounds. */
static size_t cut(struct data *d, size_t context)
{
    d->context = context;
    d->n_train = d->n - d->n / 10;
    d->held_out = d->n - d->n_train < 1 ? 0 : (d->n - d->n_train - 1) / context;
    return d->n_train < 1 + context ? 0 : (d->n_train - 1 - context) / context;
}

static size_t shift(const struct data *d)
{
    return (size_t)d->epoch * 61 % d->context;
}

bool data_open(struct data *d, cddp_comm *comm, const char *path, size_t context, size_t batch, int64_t seed, char *why,
               size_t cap)
{
    char found[PATH_MAX];
    cddp_sampler_options so = {
        .size = sizeof so, .world_size = cddp_world_size(comm), .rank = cddp_rank(comm), .drop_last = 1, .seed = seed};

    *d = (struct data){0};
    if (path == NULL && !beside_program(found)) {
        (void)snprintf(why, cap, "cannot find the text beside the program; use --text FILE");
        return false;
    }
    path = path == NULL ? found : path;
    if (!read_text(d, path, why, cap))
        return false;
    d->digest = digest(d->text, d->n);
    so.n = (int64_t)cut(d, context);
    d->epoch_steps = (size_t)so.n / batch;
    d->share = batch / (size_t)so.world_size;
    if (d->epoch_steps == 0 || d->held_out == 0) {
        (void)snprintf(why, cap, "%s: %zu bytes are too few for steps of %zu sequences of %zu bytes", path, d->n, batch,
                       context);
        return false;
    }
    if (cddp_sampler_create(&d->sampler, &so) == CDDP_OK)
        return true;
    (void)snprintf(why, cap, "%s", cddp_last_error());
    return false;
}

void data_release(struct data *d)
{
    cddp_sampler_destroy(d->sampler);
    free(d->text);
    *d = (struct data){0};
}

static void copy(const struct data *d, size_t at, uint8_t *tokens, uint8_t *targets)
{
    memcpy(tokens, d->text + at, d->context);
    memcpy(targets, d->text + at + 1, d->context);
}

cddp_status data_take(struct data *d, int64_t step, size_t first, size_t n, uint8_t *tokens, uint8_t *targets)
{
    const int64_t epoch = step / (int64_t)d->epoch_steps;
    const size_t in_epoch = (size_t)step % d->epoch_steps;
    const int64_t *windows;

    if (epoch != d->epoch) {
        const cddp_status status = cddp_sampler_set_epoch(d->sampler, epoch);

        if (status != CDDP_OK)
            return status;
        d->epoch = epoch;
    }
    windows = cddp_sampler_indices(d->sampler) + in_epoch * d->share + first;
    for (size_t i = 0; i < n; i++)
        copy(d, shift(d) + (size_t)windows[i] * d->context, tokens + i * d->context, targets + i * d->context);
    return CDDP_OK;
}

void data_held_out(const struct data *d, size_t window, uint8_t *tokens, uint8_t *targets)
{
    copy(d, d->n_train + window * d->context, tokens, targets);
}
