/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the ranks of one communicator share: an anonymous file that the maker of the unique id holds open
 * until all ranks have mapped it, so that nothing of it can be left behind. Ranks move in steps: a rank publishes what
 * it has to say, passes its step, and waits until all others have passed theirs. Every wait ends when *abort is set.
 */
#ifndef SI_SEGMENT_H
#define SI_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEGMENT_RANKS 256
#define SEGMENT_CHUNK 65536 /* bytes of a rank that go at once */
#define SEGMENT_LETTER 4096 /* bytes of a message that go at once */

/* Two lines of steps that do not disturb each other: operations of streams; and calls like split. */
enum segment_line { SEGMENT_OPERATIONS, SEGMENT_CALLS, SEGMENT_LINES };

/* What is compared before data moves, and exchanged in calls. */
struct segment_word {
    uint64_t sequence;
    int32_t kind, type, op, root;
    uint64_t count;
    int64_t offset; /* in the symmetric window; -1: in none */
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
};

/* A rank of a segment says who it is. */
struct segment_place {
    char host[64];
    uint32_t device;
    int32_t pid;
};

/* A new id, with its file open in this process. False: no file can be made. */
bool segment_id_create(struct segment_id *id);
/* Close the file if this process made it; for an id of its own it is no longer possible to join then. Idempotent. */
void segment_id_close(const struct segment_id *id);

enum segment_result { SEGMENT_OK, SEGMENT_ABORTED, SEGMENT_NO_FILE, SEGMENT_BAD_RANK, SEGMENT_SAME_DEVICE };

/* Map it, take this rank's place and wait for all others. On failure nothing stays mapped. */
enum segment_result segment_join(struct segment *s, const struct segment_id *id, int rank, int n_ranks,
                                 const struct segment_place *place, const uint32_t *abort);
void segment_leave(struct segment *s);

/* Have all ranks said the same host? */
bool segment_on_one_host(const struct segment *s);

/* This rank needs nothing of the others any more. Idempotent; nothing to do where nothing is mapped. */
void segment_stop(struct segment *s);
/* Wait until that holds for every other process of this host that has a rank here, or it has ended. -1: for ever. */
void segment_await_stops(const struct segment *s, int timeout_ms);

/* Say a word and wait until every rank has said its own of this step. False: aborted. */
bool segment_say(struct segment *s, enum segment_line line, const struct segment_word *word);
/* What rank r said in the last step; valid until this rank says the next but one. */
const struct segment_word *segment_heard(const struct segment *s, enum segment_line line, int r);

/* Rank r's buffer for the next chunk; then all ranks pass to the one after it. */
char *segment_chunk(const struct segment *s, int r);
/* Wait until every rank has filled its buffer; they may be read until the next but one call. False: aborted. */
bool segment_chunk_done(struct segment *s);
/* The buffers that the last segment_chunk_done was about. */
char *segment_chunk_ready(const struct segment *s, int r);

/* A letter box from one rank to another. */
struct segment_letter {
    uint32_t full;
    uint32_t bytes;
    struct segment_word word;
    char data[SEGMENT_LETTER];
};
struct segment_letter *segment_letter(const struct segment *s, int from, int to);
/* Something has changed: wake the others; and sleep until somebody says so (seen: segment_bell before looking). */
void segment_ring(struct segment *s);
uint32_t segment_bell(const struct segment *s);
void segment_sleep(const struct segment *s, uint32_t seen);

#endif
