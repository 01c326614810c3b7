/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python workers that have no flight page, such as PyTorch's: whether they stand still, by the processor time that they
 * use, and which of them the others wait for, by their Python stacks. Pure.
 */
#ifndef WATCH_NODE_TORCH_WATCH_H
#define WATCH_NODE_TORCH_WATCH_H

#include "common/buf.h"
#include "launcher/process/python_stack.h"

#define TORCH_FRAMES 8 /* that are shown of a rank, innermost first */
#define TORCH_NOTE 200 /* bytes, NUL included */

/* The processor time of one worker. Zero-initialize. */
struct torch_pulse {
    int64_t since_ms; /* it has used next to none since then; 0: not looked at yet */
    int64_t base_ms;  /* the beginning of the time over which it is measured now, */
    uint64_t cpu_ms;  /* and what it had used then */
    int64_t told_ms;  /* when a standstill was reported in which it was quiet; 0: never */
};

/*
 * Notes the processor time that a worker has used so far. It is quiet while it uses less than 1 % of a core (or less
 * than 30 ms in all, which any program may use now and then). One that runs, or would if a processor were free, is not.
 */
void torch_pulse_note(struct torch_pulse *p, uint64_t cpu_ms, bool runs, int64_t now_ms);
/* Measures from here on: what it has used since the last look was not its own work. */
void torch_pulse_skip(struct torch_pulse *p, uint64_t cpu_ms, int64_t now_ms);
/* Returns for how long it has been quiet. */
int64_t torch_pulse_quiet_ms(const struct torch_pulse *p, int64_t now_ms);

enum torch_standstill {
    TORCH_RUNS,
    TORCH_IDLE,  /* no worker has used its processor */
    TORCH_BURNS, /* a few have, and the others, which are more, have not */
};

/*
 * Decides about the n workers of a node, all of which run. A few are one of up to 15 workers, and an eighth of more.
 */
enum torch_standstill torch_decide(const struct torch_pulse *v, size_t n, int64_t warning_ms, int64_t now_ms);

/* Notes that a standstill is reported. */
void torch_note_told(struct torch_pulse *v, size_t n, int64_t warning_ms, int64_t now_ms);
/*
 * Returns whether that standstill is over: half of the workers that were quiet then, or more, have used their
 * processors since. One that cleans up or logs now and then does not count as progress of the job.
 */
bool torch_has_moved(const struct torch_pulse *v, size_t n);
/* Notes the end of that standstill: the time of those that were quiet, and still seem to be, begins anew. */
void torch_note_again(struct torch_pulse *v, size_t n, int64_t now_ms);

/* One rank, as far as it is known. */
struct torch_rank {
    int32_t rank;
    int pid;
    int64_t started_wall_ms;
    char state;        /* the kernel's letter: R, S, D, T ... */
    bool quiet;        /* it has not used its processor */
    bool cut;          /* there are more frames */
    uint32_t n_frames; /* of its main thread; 0: not known */
    struct python_frame frames[TORCH_FRAMES];
    char why[TORCH_NOTE];  /* if n_frames is 0: why it is not known; "": it runs no Python code */
    char key[TORCH_NOTE];  /* of the store, for which it waits; "": none */
    int64_t key_ms;        /* for how long */
    char dump[TORCH_NOTE]; /* of PyTorch's flight recorder: the file's path without the rank at its end; "": none */
    bool suspect;          /* set by torch_watch_text() */
};

/*
 * Appends the lines of a standstill to out, such as:
 *
 *   no worker of this node has used its processor for 30 s, and none has ended:
 *     rank 2 (pid 77 on box, asleep): in planted (train.py:12), called from main (train.py:40)
 *     ranks 0, 1, 3: in all_reduce (torch/distributed/distributed_c10d.py:2810), called from main (train.py:44)
 *
 * Ranks at one place share a line. First come the suspects: those that do not wait in PyTorch's communication, or for a
 * key of the store, while others do; otherwise those that stand elsewhere than the majority. A line about the dumps of
 * PyTorch's flight recorder follows. Sorts v by rank. No newline at the end. CDDP_E_LIMIT, CDDP_E_NOMEM.
 */
cddp_status torch_watch_text(struct torch_rank *v, size_t n, enum torch_standstill kind, int64_t quiet_ms,
                             const char *host, struct cdi_buf *out);
/* Writes the line about the end of a standstill of the n workers of a node, which lasted for this long. */
void torch_again_text(size_t n, int64_t after_ms, char buf[TORCH_NOTE]);

#endif
