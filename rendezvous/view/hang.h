/* SPDX-License-Identifier: Apache-2.0 */
/* A standstill of a job, as views.h explains it: which ranks the others wait for, and the message about it. Pure. */
#ifndef RDZV_HANG_H
#define RDZV_HANG_H

#include "common/buf.h"
#include "rendezvous/view/view.h"

#include <stdlib.h>

#define HANG_STACKS_MAX 8     /* ranks whose stacks are worth their lines */
#define HANG_ROWS 23          /* lines of a message: one screen, with room for a prompt */
#define HANG_SLACK_MS 100     /* clocks of nodes are read at different times */
#define HANG_TEXT (64 * 1024) /* bytes that a message may have */

enum hang_kind {
    HANG_NONE,      /* no rank has waited for long */
    HANG_BEHIND,    /* the late ranks are in no collective */
    HANG_HALTED,    /* the late ranks are in a collective and cannot run: stopped, frozen, ... */
    HANG_ELSEWHERE, /* the late ranks are in another collective than most, or before it */
    HANG_SILENT,    /* the late ranks are those of nodes that do not answer */
    HANG_SPLIT,     /* ranks wait in different collectives, and none of them is the odd one; no late ranks */
    HANG_ALL,       /* all wait in one collective; no late ranks */
    HANG_CYCLE, /* the late ranks wait for messages of each other: each in a send or a recv, until a circle closes */
};

struct hang_rank {
    const struct cdi_rank_report *report;
    const struct cdi_node_report *node;
    int64_t for_ms; /* until now */
    bool waits, late;
    uint8_t group; /* scratch, as the next one */
    size_t walk;
};

struct hang {
    enum hang_kind kind;
    int64_t waited_ms;                     /* the longest wait in a collective, */
    const struct cdi_rank_report *longest; /* which is that of this rank; NULL: none */
    uint32_t world_size;
    size_t n_late, n_silent; /* n_silent: ranks without a report */
    uint64_t mark;           /* differs if the kind, a late rank or its place differs */
    struct hang_rank *ranks; /* in the order of ranks */
    size_t n;
};

static inline void hang_release(struct hang *h)
{
    free(h->ranks);
    *h = (struct hang){.kind = HANG_NONE};
}

/* Writes the first HANG_STACKS_MAX late ranks that are on nodes which answer. Returns their number. */
static inline size_t hang_late(const struct hang *h, int32_t ranks[HANG_STACKS_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < h->n && n < HANG_STACKS_MAX; i++)
        if (h->ranks[i].late)
            ranks[n++] = h->ranks[i].report->rank;
    return n;
}

struct hang_ops {
    /*
     * Judges the newest reports of a round's nodes, in the order of node ranks; they must outlive *out. A wait below
     * warning_ms is not long. CDDP_E_NOMEM. hang_release() frees it.
     */
    cddp_status (*judge)(const struct view_node *nodes, size_t n, uint32_t world_size, int64_t now_ms,
                         int64_t warning_ms, struct hang *out);
    /* Returns the first late rank; NULL: there is none, or its node does not answer. */
    const struct hang_rank *(*first)(const struct hang *h);
    /*
     * Appends the message, HANG_ROWS lines at most: "no progress for 30 s: rank 5 (pid 77 on node1) is behind: ...",
     * then, indented, where the other ranks are, and the stacks that the reports have. Ends without a newline.
     * CDDP_E_NOMEM.
     */
    cddp_status (*text)(const struct hang *h, struct cdi_buf *out);
    /* Appends only the stacks of late ranks, at most `rows` lines, each after a newline. CDDP_E_NOMEM. */
    cddp_status (*stacks)(const struct hang *h, int rows, struct cdi_buf *out);
};

#endif
