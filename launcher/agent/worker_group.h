/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All workers of this agent in one round: started together, signalled together, their output on its way to the logs.
 * The loop's thread; decides nothing.
 */
#ifndef CREW_H
#define CREW_H

#include "launcher/agent/events.h"
#include "launcher/agent/report.h"
#include "launcher/output/logs.h"
#include "launcher/process/spawn.h"

struct crew;

struct crew_options {
    const struct spawn_context *spawn;
    const struct plan *plan;
    struct logs *logs;            /* begun for this attempt */
    struct status *status;        /* NULL: nobody asks */
    struct cdi_msg_assign assign; /* with master_addr and master_port */
    /* A worker is gone; kind EXIT with code 0 means well. From the loop, or from crew_report_unstarted(). */
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

int64_t crew_wall_ms(void); /* Unix time, as failures have it */
/*
 * Start every worker. One that cannot be started, and those behind it, wait in crew_report_unstarted(), which tells of
 * them by exited(): call it when ready to hear that. *out is written on success only. CDDP_E_NOMEM.
 */
cddp_status crew_start(struct crew **out, const struct crew_options *opt, struct cdi_error *err);
void crew_report_unstarted(struct crew *c);
/* Our window has another size now: tell the workers whose stdout is a pseudo-terminal. */
void crew_resize(struct crew *c);
/* To every worker's process group. */
void crew_kill(struct crew *c, int signal);
/* SIGCONT for those that are stopped. */
void crew_continue(struct crew *c);
/* The same as crew_kill for a signal that is to end it: cddp_stop_requested() says so too; a stopped worker is
 * continued, so that it hears it. */
void crew_end(struct crew *c, int signal);
/* Who is still there: "rank 1 (pid 77)", "rank 1 (pid 77), rank 3 (pid 79) and 2 more"; "": nobody. */
void crew_list_alive(const struct crew *c, char *text, size_t cap);
void crew_tell_death(struct crew *c, int rank, const char *sentence);
void crew_tell_over(struct crew *c);
/*
 * The round is over because of this failure, of another node. If a worker of ours that had exited with status 0 was
 * missed there, or here, it is the cause: tell of it by cause().
 */
void crew_tell_missed(struct crew *c, const struct cdi_failure *first);
/* There is room in the logs again: read on from those that had to wait. */
void crew_read_on(struct crew *c);
bool crew_has_output(const struct crew *c);
/* Does a worker's output wait for room in the logs? */
bool crew_waits_for_room(const struct crew *c);
/* SIGCHLD came: reap the dead, orphans too, and tell of workers by exited(). */
void crew_on_child(struct crew *c);
/* Where its ranks were when the first of them failed, or all of them were to end (where.h); "": not known. */
const char *crew_where(const struct crew *c);
/* Fill what is known here of r->first's worker, and of the others. The strings are the crew's. */
void crew_describe(struct crew *c, struct report *r);
/* Close everything and free c, later, from the loop. No event follows. NULL-safe. */
void crew_destroy(struct crew *c);

#endif
