/* SPDX-License-Identifier: Apache-2.0 */
/* What one node knows about itself and about its links, and its text in the store. */
#ifndef PREFLIGHT_FACTS_H
#define PREFLIGHT_FACTS_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFLIGHT_LINKS_MAX 32
#define PREFLIGHT_DISKS_MAX 2 /* the working directory's and that of temporary files */

/* How this node reached another one. */
struct preflight_link {
    uint32_t to; /* node rank */
    bool reached;
    double mib_s;  /* 0: not measured */
    char why[160]; /* why it was not reached; "": it was */
};

struct preflight_disk {
    char path[96];
    uint64_t total, free; /* bytes; free for a user who is not root */
    uint64_t free_files;  /* inodes; UINT64_MAX: the file system has no limit */
};

struct preflight_facts {
    bool known; /* the node has reported */
    char host[65];
    uint32_t workers, cpus, gpus;
    uint32_t gpus_bad;             /* those with memory errors that were not corrected */
    uint32_t gpus_slow;            /* those that the driver slows down because of heat or power supply */
    uint64_t memory, memory_free;  /* bytes */
    uint64_t files;                /* the limit on open files */
    uint64_t shm, shm_free;        /* bytes of /dev/shm; shm 0: there is none */
    bool clock_known;              /* node 0 answered */
    int64_t clock_us, clock_error; /* this clock minus node 0's, and how wrong that may be */
    struct preflight_disk disk[PREFLIGHT_DISKS_MAX];
    size_t n_disks, n_links;
    struct preflight_link link[PREFLIGHT_LINKS_MAX];
};

/*
 * Reads everything about this node but its clock and links. host is its name in messages. Blocks as statvfs(2) does.
 * Never fails: 0 is unknown.
 */
void preflight_facts_read(struct preflight_facts *f, const char *host, uint32_t workers);

/* Returns the link to a node, a new one if need be; NULL: there is no room for another one. */
struct preflight_link *preflight_link_to(struct preflight_facts *f, uint32_t node);

/* Returns the facts as JSON, for free(); NULL: out of memory. Pure. */
char *preflight_facts_text(const struct preflight_facts *f);
/* Reads such a text of n bytes, which may be any bytes. CDDP_E_PROTOCOL: it is not one. Pure. */
cddp_status preflight_facts_parse(struct preflight_facts *out, const char *text, size_t n, struct cdi_error *err);

#endif
