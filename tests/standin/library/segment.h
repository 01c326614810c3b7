/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the ranks of one communicator share: an anonymous file, which the process that made the unique id
 * holds open until all ranks have mapped it, so that no file can be left over. Ranks move in steps: a rank publishes
 * its data, passes its step, and waits until all others have passed theirs. Every wait ends when *abort is set.
 */
#ifndef SI_SEGMENT_H
#define SI_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEGMENT_RANKS 256
#define SEGMENT_CHUNK 65536 /* bytes of a rank that go at once */
#define SEGMENT_LETTER 4096 /* bytes of a message that go at once */

/* Two independent sequences of steps: operations of streams; and calls like split. */
enum segment_line { SEGMENT_OPERATIONS, SEGMENT_CALLS, SEGMENT_LINES };

/* The data that ranks compare before data moves, and exchange in calls. */
struct segment_word {
    uint64_t sequence;
    int32_t kind, type, op, root;
    uint64_t count;
    int64_t offset;     /* in the symmetric window; -1: in none */
    uint32_t place, of; /* among the collectives of its launch, from 1 */
    uint64_t extra[2];
};

struct segment_id {
    uint64_t magic, nonce;
    int32_t pid, fd;
};

struct segment {
    struct segment_shared *shared; /* NULL: not mapped */
    size_t bytes;
    int rank, n_ranks;
    uint32_t step[SEGMENT_LINES]; /* passed by this rank */
    uint32_t n_chunks;            /* for the choice of the buffer: equal on all ranks */
    const uint32_t *abort;
    bool notices;  /* CDDP_STANDIN_NOTICE */
    uint32_t lost; /* atomic: a rank's process has ended, and this one has noticed */
};

/* The identity of a rank of a segment. */
struct segment_place {
    char host[64];
    uint32_t device;
    int32_t pid;
};

/* Creates a new id, with its file open in this process. Returns false if no file can be made. */
bool segment_id_create(struct segment_id *id);
/* Closes the file if this process made it; ranks cannot join with an id of this process any more. Idempotent. */
void segment_id_close(const struct segment_id *id);

enum segment_result { SEGMENT_OK, SEGMENT_ABORTED, SEGMENT_NO_FILE, SEGMENT_BAD_RANK, SEGMENT_SAME_DEVICE };

/* Maps it, takes the place of this rank and waits for all others. After a failure nothing is mapped. */
enum segment_result segment_join(struct segment *s, const struct segment_id *id, int rank, int n_ranks,
                                 const struct segment_place *place, const uint32_t *abort);
void segment_leave(struct segment *s);

/* Returns whether all ranks are on the same host. */
bool segment_on_one_host(const struct segment *s);

/* Announces that this rank needs nothing of the others any more. Idempotent; does nothing if nothing is mapped. */
void segment_stop(struct segment *s);
/* Waits until every other process of this host with a rank here has done so, or has ended. -1: for ever. */
void segment_await_stops(const struct segment *s, int timeout_ms);

/*
 * Returns whether the process of a rank has ended before it stopped, as a closed socket shows; only with
 * CDDP_STANDIN_NOTICE=1. Then waits outside streams end, too.
 */
bool segment_lost(struct segment *s);

/* Publishes data and waits until every rank has published its own for this step. Returns false if aborted. */
bool segment_say(struct segment *s, enum segment_line line, const struct segment_word *word);
/* Returns the data of rank r in the last step; valid until this rank publishes for the step after the next one. */
const struct segment_word *segment_heard(const struct segment *s, enum segment_line line, int r);

/* Rank r's buffer for the next chunk; then all ranks pass to the one after it. */
char *segment_chunk(const struct segment *s, int r);
/* Wait until every rank has filled its buffer; they may be read until the next but one call. False: aborted. */
bool segment_chunk_done(struct segment *s);
/* Returns the buffers of the last segment_chunk_done. */
char *segment_chunk_ready(const struct segment *s, int r);

/* The mailbox from one rank to another. */
struct segment_letter {
    uint32_t full;
    uint32_t bytes;
    struct segment_word word;
    char data[SEGMENT_LETTER];
};
struct segment_letter *segment_letter(const struct segment *s, int from, int to);
/* Wakes the others after a change. And: sleeps until another rank does so (seen: segment_changes before the check). */
void segment_ring(struct segment *s);
uint32_t segment_changes(const struct segment *s);
void segment_sleep(const struct segment *s, uint32_t seen);

#endif
