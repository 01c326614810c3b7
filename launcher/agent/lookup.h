/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host's addresses, asked for again while the loop runs: the name server may need its time, and may not answer at
 * all, so a thread of its own asks. Nothing waits for that thread: its answer is fetched when there is one, and the
 * process may end before.
 */
#ifndef LOOKUP_H
#define LOOKUP_H

#include "launcher/agent/rdzv_client.h"

struct lookup;

/* Ask for the addresses of host, for lookup_fetch(). NULL: no memory, or no thread. */
struct lookup *lookup_start(const char *host, uint16_t port);
/*
 * Has the answer come? Then *l is freed and set to NULL; true: addrs (RDZV_CLIENT_ADDRS_MAX of them) and *n were
 * written, false: there is no answer yet, or the name is not known. NULL-safe.
 */
bool lookup_fetch(struct lookup **l, struct sockaddr_storage *addrs, unsigned *n);
/* Nobody wants the answer any more. NULL-safe. Never blocks. */
void lookup_drop(struct lookup *l);

#endif
