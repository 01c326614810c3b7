/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vector clocks: the order of operations. Pure; the caller holds the lock. An actor is a stream, or the host (slot 0).
 * A clock contains, for each actor, the last operation up to which everything is known to be done.
 */
#ifndef SI_CLOCK_H
#define SI_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SI_ACTORS 256
#define SI_HOST 0

struct si_clock {
    uint64_t t[SI_ACTORS];
};

/* to = the later of both, for each actor. */
void si_clock_join(struct si_clock *to, const struct si_clock *from);

/* One use of memory, [begin, end) within its allocation. */
struct si_access {
    size_t begin, end;
    bool write;
    unsigned actor;
    uint64_t time;      /* of the actor's clock */
    const char *name;   /* of the operation; lives for ever */
    uint64_t operation; /* its number in the process */
};

/* The uses of one allocation that later work might be unordered with. */
struct si_history {
    struct si_access *use;
    size_t n, cap;
};

/*
 * Adds a use by an operation that runs when `now` is reached. Returns true, and the earlier use in *with, if one of the
 * two writes, both touch the same bytes, and the earlier one is not ordered before. If out of memory the record is lost
 * (false).
 */
bool si_history_add(struct si_history *h, const struct si_access *a, const struct si_clock *now,
                    struct si_access *with);
void si_history_release(struct si_history *h);

#endif
