/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks of a job at a glance: ranks in equal places become one group, however many they are, and the figures of
 * their last steps become one summary. For texts and pages about a job. Pure.
 */
#ifndef CDI_PLACES_H
#define CDI_PLACES_H

#include "protocol/node_report.h"

#define CDI_PLACES_RANKS 96 /* bytes of a text such as "0-6, 8-999", NUL included */
#define CDI_PLACES_TEXT 512
#define CDI_PLACES_SPAN 32
#define CDI_PLACES_KINDS (CDI_PLACE_EXITED + 1)

/* A rank with the node that reported it; both must stay valid while groups refer to them. */
struct cdi_placed {
    const struct cdi_rank_report *r;
    const char *host;
    int32_t node_rank;
};

struct cdi_place_group {
    const struct cdi_placed *ranks; /* n of them, in the sorted array, by rank */
    size_t n, n_nodes;
    int64_t for_ms; /* the shortest time in this place, so that it is true for all */
    uint64_t min_step, max_step;
    bool mixed; /* ranks in several places, since there were more groups than wanted */
};

/*
 * Sorts the ranks, the least advanced first, and writes at most cap (at least 2) groups in this order. If there are
 * more places than that, ranks that differ only by their collective share a group, then the furthest ahead do. Returns
 * the number of groups.
 */
size_t cdi_places_group(struct cdi_placed *ranks, size_t n, struct cdi_place_group *out, size_t cap);
/* Writes the ranks of a group, such as "0-6, 8-999", or "0-6, 9, 14 and 20 more" if there is no room. */
void cdi_places_ranks(const struct cdi_place_group *g, char text[CDI_PLACES_RANKS]);
/* What the text of a collective has besides its name and number. */
enum { CDI_CALL_BUCKET = 1, CDI_CALL_NAMES = 2, CDI_CALL_SIZE = 4, CDI_CALL_STEP = 8 };
/*
 * Writes where a rank is, and for how many seconds if there are any, such as "in all_reduce #812 of 4.0 MiB float32
 * (bucket 3: fc1.weight, step 39), for 12 s", "after barrier #2, 3 s ago", "before the first collective". peer: the
 * other rank of its message; -1: none.
 */
void cdi_place_text(const struct cdi_rank_report *r, int64_t for_ms, int32_t peer, unsigned with,
                    char text[CDI_PLACES_TEXT]);
/* Writes where a group is, such as "in all_reduce #12 (bucket 3: fc1.weight)". */
void cdi_places_where(const struct cdi_place_group *g, char text[CDI_PLACES_TEXT]);
/* Writes what the processes of a group do, such as "stopped by a signal"; "": not known, or not the same. */
void cdi_places_doing(const struct cdi_place_group *g, char text[CDI_PLACES_TEXT]);
/* Is the rank in a collective, or queued for one? Otherwise others may wait for it. */
bool cdi_place_is_waiting(const struct cdi_rank_report *r);

struct cdi_places_sum {
    size_t n, by_place[CDI_PLACES_KINDS];
    uint64_t min_step, max_step; /* completed, of the ranks that use libcddp */
    size_t n_timed;              /* ranks with figures of steps */
    double steps_per_s;          /* by the mean of their steps, or of the time since the last one, if that is longer */
    int64_t step_age_ms;         /* since the last step of any of them */
    size_t n_fresh;              /* of them, without those that stand still; the following are means over these */
    double step_us, hidden_us, exposed_us, late_us; /* hidden and exposed communication; waiting for the last rank */
    double transfer_us;                             /* of the communication, moving data */
    int32_t slowest;                                /* the rank that the others most often waited for; -1: none */
    double slowest_share;                           /* of the steps, 0 to 1 */
    size_t n_gpus;                                  /* ranks whose GPU's load is known; the following are of these */
    double gpu_load, gpu_least_load;                /* mean and smallest, 0 to 1 */
    double gpu_memory;                              /* used of the fullest one, 0 to 1; negative: not known */
};

/*
 * Returns the steps per second of a rank: by the mean of its last steps, or by the time since the last one, if that is
 * longer; so the rate falls while nothing moves. Negative: it has no figures of steps.
 */
double cdi_places_rate(const struct cdi_rank_report *r);
/*
 * Has the rank completed no step for much longer than its steps take? Then their figures tell nothing about now.
 */
bool cdi_places_stands_still(const struct cdi_rank_report *r);

/* Sums up the ranks. If memory runs out, the slowest rank is missing. */
void cdi_places_sum(const struct cdi_placed *ranks, size_t n, struct cdi_places_sum *out);
/* Returns the percentage of the communication that no rank waited for; -1: there was none. */
int cdi_places_hidden(const struct cdi_places_sum *s);

/* Writes a time in the unit that fits: "850 us", "12.3 ms", "4.2 s", "3 min 5 s", "2 h 4 min", "3 d 4 h". */
const char *cdi_places_span(char text[CDI_PLACES_SPAN], double us);

#endif
