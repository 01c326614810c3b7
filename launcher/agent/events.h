/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --status_fd: what happens on this node, as JSON lines for programs. Every line has time_ms (Unix) and event:
 *
 *   round    round, restart_count, node_rank, n_nodes, rank_base, n_procs, world_size, master_addr, master_port
 *   started  rank, local_rank, pid
 *   ended    rank, local_rank, pid, status (or 128 + signal), signal and core_dumped where one ended it
 *   failure  rank, local_rank, node_rank, host, pid, status, text: the first failure of the round, on whatever node;
 *            another one follows where an earlier one becomes known late
 *   restart  restart_count, text
 *   signal   signal, name: cddprun was told to end
 *   end      status: what cddprun exits with
 *
 * More members and events may come. Lines are written by the console's thread. Every function takes NULL and does
 * nothing.
 */
#ifndef STATUS_H
#define STATUS_H

#include "launcher/output/writer.h"
#include "protocol/message.h"

struct status;

/* Is fd, which the user has named, open for writing? Else CDDP_E_INVALID. Before cddprun opens any of its own. */
cddp_status status_check(int fd, struct cdi_error *err);
/* fd was checked; source is the console's. CDDP_E_NOMEM. */
cddp_status status_start(struct status **out, struct writer *console, uint32_t source, int fd, struct cdi_error *err);
/* Before the console is closed. */
void status_free(struct status *s);

void status_round(struct status *s, const struct cdi_msg_assign *assign, uint32_t n_procs);
void status_started(struct status *s, int32_t rank, uint32_t local_rank, int pid);
void status_ended(struct status *s, const struct cdi_failure *end);
void status_failure(struct status *s, const struct cdi_failure *first);
void status_restart(struct status *s, uint32_t restart_count, const char *text);
void status_signal(struct status *s, int signal);
void status_end(struct status *s, int exit_status);

#endif
