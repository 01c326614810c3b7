/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All workers of this agent in one round: started together, signalled together, their output on its way to the logs.
 * The loop's thread; decides nothing.
 */
#ifndef WORKER_GROUP_H
#define WORKER_GROUP_H

#include "launcher/agent/events.h"
#include "launcher/agent/report.h"
#include "launcher/output/logs.h"
#include "launcher/process/spawn.h"

struct worker_group;

struct worker_group_options {
    const struct spawn_context *spawn;
    const struct plan *plan;
    struct logs *logs;            /* begun for this attempt */
    struct event_log *events;     /* NULL: nobody asks */
    struct cdi_msg_assign assign; /* with master_addr and master_port */
    /* A worker is gone; kind EXIT with code 0 means well. From the loop, or from worker_group_report_unstarted(). */
    void (*exited)(void *arg, const struct cdi_failure *end);
    /*
     * This one is the cause of another's end, whose exited() follows: it had exited with status 0 and was still needed,
     * or it wrote its error file first, and its own exited() follows too.
     */
    void (*cause)(void *arg, const struct cdi_failure *end);
    /* Some output was read or has ended. */
    void (*progress)(void *arg);
    void *arg;
};

/*
 * Start every worker. One that cannot be started, and those behind it, wait in worker_group_report_unstarted(), which
 * tells of them by exited(): call it when ready to hear that. *out is written on success only. CDDP_E_NOMEM.
 */
cddp_status worker_group_start(struct worker_group **out, const struct worker_group_options *opt,
                               struct cdi_error *err);
void worker_group_report_unstarted(struct worker_group *c);
/* Our window has another size now: tell the workers whose stdout is a pseudo-terminal. */
void worker_group_resize(struct worker_group *c);
/* To every worker's process group. */
void worker_group_kill(struct worker_group *c, int signal);
/* SIGCONT for those that are stopped. */
void worker_group_continue(struct worker_group *c);
/* The same as worker_group_kill for a signal that is to end it: cddp_stop_requested() says so too; a stopped worker is
 * continued, so that it hears it. */
void worker_group_end(struct worker_group *c, int signal);
/* Who is still there: "rank 1 (pid 77)", "rank 1 (pid 77), rank 3 (pid 79) and 2 more"; "": nobody. */
void worker_group_list_alive(const struct worker_group *c, char *text, size_t cap);
void worker_group_tell_death(struct worker_group *c, int rank, const char *sentence);
void worker_group_tell_over(struct worker_group *c);
/*
 * The round is over because of this failure, of another node. If a worker of ours that had exited with status 0 was
 * missed there, or here, it is the cause: tell of it by cause().
 */
void worker_group_tell_missed(struct worker_group *c, const struct cdi_failure *first);
/* There is room in the logs again: read on from those that had to wait. */
void worker_group_read_on(struct worker_group *c);
bool worker_group_has_output(const struct worker_group *c);
/* Does a worker's output wait for room in the logs? */
bool worker_group_waits_for_room(const struct worker_group *c);
/* SIGCHLD came: reap the dead, orphans too, and tell of workers by exited(). */
void worker_group_on_child(struct worker_group *c);
/* Where its ranks were when the first of them failed, or all of them were to end (progress.h); "": not known. */
const char *worker_group_progress(const struct worker_group *c);
/* Fill what is known here of r->first's worker, and of the others. The strings are the group's. */
void worker_group_describe(struct worker_group *c, struct report *r);
/* Close everything and free c, later, from the loop. No event follows. NULL-safe. */
void worker_group_destroy(struct worker_group *c);

#endif
