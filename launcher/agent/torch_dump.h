/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what PyTorch's flight recorder has written (torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2 of its
 * format): a pickle of protocol 2. Nothing in it is executed: only opcodes of numbers, texts, lists, tuples and dicts
 * are known, and any other one ends the reading. Pure.
 */
#ifndef TORCH_DUMP_H
#define TORCH_DUMP_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TORCH_DUMP_MAX (64u << 20) /* bytes of a dump that is read */

/* One collective or message of a rank. */
struct torch_entry {
    int64_t record; /* its number in the recorder */
    int64_t seq;    /* in its group: of the collective, or of the message */
    bool p2p;       /* a message */
    bool done;      /* completed, or no longer watched */
    char name[48];  /* "gloo:all_reduce", "nccl:all_gather" */
    char state[16]; /* "scheduled", "started", "completed" */
    char sizes[48]; /* of its inputs: "[[4, 5]]", cut; "" if not known */
    char group[32]; /* "default_pg" */
};

struct torch_dump {
    bool has_open, has_last;
    struct torch_entry open; /* the oldest that is not done */
    struct torch_entry last; /* the newest that is done */
    size_t n;                /* entries in all */
};

/*
 * Reads a dump. CDDP_E_PROTOCOL: it is not one, is cut, or uses an opcode that is not known; CDDP_E_LIMIT: it nests or
 * repeats too much; CDDP_E_NOMEM.
 */
cddp_status torch_dump_read(const uint8_t *bytes, size_t n, struct torch_dump *out, struct cdi_error *err);

/* Writes "in gloo:all_reduce #4 of default_pg ([[8]], scheduled)" or "after ..."; "" if there is no entry. */
void torch_dump_text(const struct torch_dump *d, char *text, size_t cap);

#endif
