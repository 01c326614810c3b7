/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/owned.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct owned_step {
    uint64_t step;
    enum cdi_owned_kind kind;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A directory, by its identity: its path may be written in several ways. With `lock`. */
static struct owned {
    struct owned *next;
    dev_t dev;
    ino_t ino;
    struct owned_step *steps; /* in the order of their numbers */
    size_t n, cap;
} * all;
static pid_t owner;

static struct owned *find(const struct stat *dir)
{
    struct owned *o;

    if (owner != getpid()) { /* the parent's */
        while ((o = all) != NULL) {
            all = o->next;
            free(o->steps);
            free(o);
        }
        owner = getpid();
    }
    for (o = all; o != NULL; o = o->next)
        if (o->dev == dir->st_dev && o->ino == dir->st_ino)
            break;
    return o;
}

static struct owned *find_or_make(const struct stat *dir)
{
    struct owned *o = find(dir);

    if (o == NULL && (o = calloc(1, sizeof *o)) != NULL) {
        *o = (struct owned){.next = all, .dev = dir->st_dev, .ino = dir->st_ino};
        all = o;
    }
    return o;
}

/* Returns the place of the first step that is not below `step`. */
static size_t place_of(const struct owned *o, uint64_t step)
{
    size_t lo = 0, hi = o->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (o->steps[mid].step < step)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static cddp_status put(struct owned *o, uint64_t step, enum cdi_owned_kind kind)
{
    size_t at = place_of(o, step);
    bool is_there = at < o->n && o->steps[at].step == step;

    if (is_there && kind == CDI_OWNED_NOT)
        memmove(&o->steps[at], &o->steps[at + 1], (--o->n - at) * sizeof *o->steps);
    else if (is_there)
        o->steps[at].kind = kind;
    if (is_there || kind == CDI_OWNED_NOT)
        return CDDP_OK;
    if (o->n == o->cap) {
        size_t cap = o->cap == 0 ? 16 : o->cap * 2;
        struct owned_step *more = reallocarray(o->steps, cap, sizeof *more);

        if (more == NULL)
            return CDDP_E_NOMEM;
        o->steps = more;
        o->cap = cap;
    }
    memmove(&o->steps[at + 1], &o->steps[at], (o->n++ - at) * sizeof *o->steps);
    o->steps[at] = (struct owned_step){.step = step, .kind = kind};
    return CDDP_OK;
}

bool cdi_owned_has(const struct stat *dir)
{
    bool has;

    (void)pthread_mutex_lock(&lock);
    has = find(dir) != NULL;
    (void)pthread_mutex_unlock(&lock);
    return has;
}

enum cdi_owned_kind cdi_owned_find(const struct stat *dir, uint64_t step)
{
    enum cdi_owned_kind kind = CDI_OWNED_NOT;
    const struct owned *o;

    (void)pthread_mutex_lock(&lock);
    o = find(dir);
    if (o != NULL) {
        size_t at = place_of(o, step);

        if (at < o->n && o->steps[at].step == step)
            kind = o->steps[at].kind;
    }
    (void)pthread_mutex_unlock(&lock);
    return kind;
}

cddp_status cdi_owned_begin(const struct stat *dir)
{
    struct owned *o;

    (void)pthread_mutex_lock(&lock);
    o = find_or_make(dir);
    if (o != NULL)
        o->n = 0;
    (void)pthread_mutex_unlock(&lock);
    return o != NULL ? CDDP_OK : CDDP_E_NOMEM;
}

cddp_status cdi_owned_put(const struct stat *dir, uint64_t step, enum cdi_owned_kind kind)
{
    cddp_status st;
    struct owned *o;

    (void)pthread_mutex_lock(&lock);
    o = find_or_make(dir);
    st = o != NULL ? put(o, step, kind) : CDDP_E_NOMEM;
    (void)pthread_mutex_unlock(&lock);
    return st;
}
