/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All workers of this agent in one round: starts and signals them together, and passes their output to the logs. The
 * loop's thread; decides nothing.
 */
#ifndef WORKER_GROUP_H
#define WORKER_GROUP_H

#include "launcher/agent/events.h"
#include "launcher/agent/facts.h"
#include "launcher/agent/report.h"
#include "launcher/output/logs.h"
#include "launcher/process/spawn.h"
#include "launcher/process/stdin_copy.h"
#include "protocol/flight_stop.h"
#include "protocol/node_report.h"

struct worker_group;

struct worker_group_options {
    const struct spawn_context *spawn;
    const struct plan *plan;
    struct logs *logs;             /* begun for this round */
    struct stdin_copy *stdin_copy; /* NULL: one worker at most reads stdin */
    struct event_log *events;      /* NULL: none */
    struct cdi_msg_assign assign;  /* with master_addr and master_port */
    /* A worker has exited; kind EXIT with code 0: success. From the loop, or from worker_group_report_unstarted(). */
    void (*exited)(void *arg, const struct cdi_failure *end);
    /*
     * This worker caused another's end, whose exited() follows: it had exited with status 0 and was still needed, or it
     * has failed, as it has noted, and its own exited() follows, too.
     */
    void (*cause)(void *arg, const struct cdi_failure *end);
    /* Some output was read or has ended. */
    void (*output_moved)(void *arg);
    void *arg;
};

/*
 * Starts every worker. If one cannot be started, worker_group_report_unstarted() reports it and those after it by
 * exited(); call it after this. *out is written on success only. CDDP_E_NOMEM.
 */
cddp_status worker_group_start(struct worker_group **out, const struct worker_group_options *opt,
                               struct cdi_error *err);
void worker_group_report_unstarted(struct worker_group *c);
/* Passes the new size of cddprun's window on to the workers whose stdout is a pseudo-terminal. */
void worker_group_resize(struct worker_group *c);
/* Sends a signal to every worker's process group. */
void worker_group_signal(struct worker_group *c, int signal);
/* Sends SIGCONT to the workers that are stopped. */
void worker_group_continue(struct worker_group *c);
/*
 * Sends a signal that ends the workers. Unlike after worker_group_signal, cddp_stop_requested() becomes true, and
 * stopped workers are continued, so that they receive it.
 */
void worker_group_end(struct worker_group *c, int signal);
/* Reads the progress once more: of workers that did not obey an order to stop, it is what they do now. */
void worker_group_look_again(struct worker_group *c);
/*
 * Requests the workers to stop in order: cddp_stop_requested() becomes true, and cddp_should_stop() finds it. Those
 * that do not call the latter get the signal. Stopped ones are continued.
 */
void worker_group_ask(struct worker_group *c, int signal);
/* Reads the stop record of this rank's worker. Returns false without such a worker, or before it has a page. */
bool worker_group_read_stop(const struct worker_group *c, int rank, struct cdi_stop_view *view);
/* Lists the running workers: "rank 1 (pid 77)", "rank 1 (pid 77), rank 3 (pid 79) and 2 more"; "": none. */
void worker_group_list_alive(const struct worker_group *c, char *text, size_t cap);
void worker_group_publish_failure(struct worker_group *c, int rank, const char *headline);
void worker_group_publish_end(struct worker_group *c);
/* See cdi_flight_tell_alone_until(). */
void worker_group_publish_alone(struct worker_group *c, int64_t until_ms);
/*
 * Notes that this failure of another node has ended the round, before the workers here are ended for it. If a worker
 * here is rather the cause (it had exited with status 0 and was still needed, or has noted an error that another one
 * names), it is reported by cause().
 */
void worker_group_note_failure(struct worker_group *c, const struct cdi_failure *first);
/* When worker_group_on_child() is to be called again; CDI_NEVER_MS: with the next SIGCHLD. */
int64_t worker_group_deadline_ms(const struct worker_group *c);
/* Resumes reading from workers that had to wait for room in the logs. */
void worker_group_read_on(struct worker_group *c);
bool worker_group_has_output(const struct worker_group *c);
/* Returns whether a worker's output waits for room in the logs. */
bool worker_group_waits_for_room(const struct worker_group *c);
/* Handles SIGCHLD: reaps all dead children, orphans included, and reports workers by exited(). */
void worker_group_on_child(struct worker_group *c);
/* A worker has crashed, and waits for its stack to be read (crash.h). */
void worker_group_on_crash(struct worker_group *c);
/* Returns the progress (progress.h) when the first rank failed, or all were to end; "": not known. */
const char *worker_group_progress(const struct worker_group *c);
/*
 * Fills in the ranks of a report, from their flight pages: cdi_node_report_release() frees it. The rest of *r stays.
 * CDDP_E_NOMEM.
 */
cddp_status worker_group_ranks(const struct worker_group *c, struct cdi_node_report *r, struct cdi_error *err);
/* Calls take(arg, page) for each worker, ended ones included. */
void worker_group_pages(const struct worker_group *c, void (*take)(void *arg, const struct worker_page *page),
                        void *arg);
/* Fills in the facts known here about r->first's worker and the others. The strings are the group's. */
void worker_group_describe(struct worker_group *c, struct report *r);
/* Closes everything and frees c, later, from the loop. No event follows. NULL-safe. */
void worker_group_destroy(struct worker_group *c);
/*
 * Lists the workers that do not use libcddp; 0: there are none, or more than cap, or a worker has ended, or all are
 * stopped.
 */
size_t worker_group_foreign(const struct worker_group *c, struct foreign_worker *out, size_t cap);

#endif
