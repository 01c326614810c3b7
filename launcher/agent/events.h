/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --status_fd: the events of this node, as JSON lines for programs. Every line has time_ms (Unix) and event:
 *
 *   round    round, restart_count, node_rank, n_nodes, rank_base, n_procs, world_size, master_addr, master_port
 *   started  rank, local_rank, pid
 *   ended    rank, local_rank, pid, status (or 128 + signal), signal and core_dumped if a signal ended it
 *   failure  rank, local_rank, node_rank, host, pid, status, text: the first failure of the round, on any node;
 *            another one follows if an earlier failure becomes known later
 *   restart  restart_count, text
 *   signal   signal, name: the signal that ends the job
 *   end      status: cddprun's exit status
 *
 * More members and events may be added. The console's thread writes the lines. Every function does nothing for NULL.
 */
#ifndef EVENTS_H
#define EVENTS_H

#include "launcher/output/writer.h"
#include "protocol/message.h"

struct event_log;

/* Checks that the user's fd is open for writing: CDDP_E_INVALID. Call it before cddprun opens descriptors. */
cddp_status event_log_check(int fd, struct cdi_error *err);
/* Starts an event log; fd was checked, or is -1, and source is the console's. CDDP_E_NOMEM. */
cddp_status event_log_start(struct event_log **out, struct writer *console, uint32_t source, int fd,
                            struct cdi_error *err);
/* Frees the log; call it before the console is closed. */
void event_log_free(struct event_log *s);

/*
 * Also passes each event on: its kind as above, its rank (-1: none), and a line about it. fd -1 at the start: it is
 * only passed on.
 */
void event_log_listen(struct event_log *s, void (*fn)(void *arg, const char *event, int32_t rank, const char *text),
                      void *arg);

void event_log_round(struct event_log *s, const struct cdi_msg_assign *assign, uint32_t n_procs);
void event_log_started(struct event_log *s, int32_t rank, uint32_t local_rank, int pid);
void event_log_ended(struct event_log *s, const struct cdi_failure *end);
void event_log_failure(struct event_log *s, const struct cdi_failure *first);
void event_log_restart(struct event_log *s, uint32_t restart_count, const char *text);
void event_log_signal(struct event_log *s, int signal);
void event_log_end(struct event_log *s, int exit_status);

#endif
