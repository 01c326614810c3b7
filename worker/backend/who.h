/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in messages. A part numbers its ranks anew, and only the program knows how: a message that names a rank of a
 * part adds its rank of the job. Pure.
 */
#ifndef CDI_BACKEND_WHO_H
#define CDI_BACKEND_WHO_H

#include "common/rank_list.h"

#include <stdbool.h>
#include <stdio.h>

/* A text by value: as an argument of a call, cdi_who(ranks, rank).text lives until the call returns. */
struct cdi_who {
    char text[256];
};

struct cdi_who_all {
    char text[512];
};

/*
 * Returns "rank 1", or "rank 1 (rank 3 of the job)" where the two differ; with a note, "rank 1 (pid 77)" or "rank 1
 * (rank 3 of the job, pid 77)". note: NULL: none; cut after 200 bytes.
 */
static inline struct cdi_who cdi_who_is(int rank, int of_job, const char *note)
{
    struct cdi_who who;

    if (of_job == rank)
        (void)snprintf(who.text, sizeof who.text, "rank %d%s%.200s%s", rank, note != NULL ? " (" : "",
                       note != NULL ? note : "", note != NULL ? ")" : "");
    else
        (void)snprintf(who.text, sizeof who.text, "rank %d (rank %d of the job%s%.200s)", rank, of_job,
                       note != NULL ? ", " : "", note != NULL ? note : "");
    return who;
}

/* Does the same for a rank of a communicator. ranks: as in struct cdi_world. */
static inline struct cdi_who cdi_who_note(const int *ranks, int rank, const char *note)
{
    return cdi_who_is(rank, ranks != NULL && rank >= 0 ? ranks[rank] : rank, note);
}

static inline struct cdi_who cdi_who(const int *ranks, int rank)
{
    return cdi_who_note(ranks, rank, NULL);
}

/* Returns what follows the names of these ranks: " (ranks 2, 3 of the job)"; "" where they are the same. */
static inline struct cdi_who cdi_who_of_job(const int *ranks, const struct cdi_rank_list *l)
{
    struct cdi_rank_list of_job = {0};
    struct cdi_who who = {""};
    bool same = true;

    for (int i = 0; i < l->n && ranks != NULL; i++) {
        int shown = i < CDI_RANK_LIST_SHOWN ? ranks[l->shown[i]] : -1;

        same = same && (i >= CDI_RANK_LIST_SHOWN || shown == l->shown[i]);
        cdi_rank_list_add(&of_job, shown);
    }
    if (!same)
        (void)snprintf(who.text, sizeof who.text, " (rank%s %s of the job)", l->n == 1 ? "" : "s", of_job.text);
    return who;
}

/* Returns "rank 1" or "ranks 0, 1", in a part followed by what cdi_who_of_job() returns. */
static inline struct cdi_who_all cdi_who_list(const int *ranks, const struct cdi_rank_list *l)
{
    struct cdi_who_all who;

    (void)snprintf(who.text, sizeof who.text, "rank%s %s%s", l->n == 1 ? "" : "s", l->text,
                   cdi_who_of_job(ranks, l).text);
    return who;
}

#endif
