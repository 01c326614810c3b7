/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of one agent's workers. Pure: (state, event, now) -> actions. It owns no process, socket or clock;
 * agent.c feeds it events and carries out its actions.
 *               ASSIGN                 all ended with 0               swept: DONE
 *   JOINING ───────────────> RUNNING ───────────────────> SWEEPING ───────────────> WAITING
 *      ^                        │ worker failed, round over,  ^   │                    │
 *      │                        v signal, link lost           │   │ stop               │ ASSIGN: RUNNING
 *      │                     STOPPING ────────────────────────┘   v                    │
 *      │                       TERM, grace, KILL   all gone     OVER <─────────────────┘ CLOSED, signal, link lost
 */
#ifndef SUPERVISE_H
#define SUPERVISE_H

#include "protocol/message.h"

#include <stdbool.h>
#include <stdint.h>

#define SUPERVISE_PATIENCE_MS 5000 /* after it, the workers still running are logged, unless SIGKILL is due soon: */
#define SUPERVISE_SOON_MS 500
#define SUPERVISE_SAME_SIGNAL_MS 500 /* the same signal twice within this time counts once */
/* A tick that is this late shows that this process and the workers were stopped: their grace period restarts. */
#define SUPERVISE_STOPPED_MS 1000
#define SUPERVISE_CAUSE_WAIT_MS 300 /* the report of an earlier failure on another node may take this long */
#define SUPERVISE_ORDER_WAIT_MS 300 /* the end waits this long for it */
#define SUPERVISE_ORDER_MS 2000     /* a worker may get a batch system's signal this much earlier than cddprun */

enum supervise_state {
    SUPERVISE_JOINING,
    SUPERVISE_RUNNING,
    SUPERVISE_STOPPING,
    SUPERVISE_SWEEPING,
    SUPERVISE_WAITING,
    SUPERVISE_OVER,
};

enum supervise_event_kind {
    SUPERVISE_ASSIGN,     /* u.assign */
    SUPERVISE_ROUND_OVER, /* u.over; a second one of the same round has another cause */
    SUPERVISE_CLOSED,     /* u.closed */
    SUPERVISE_LINK_LOST,  /* u.text */
    SUPERVISE_FENCED,     /* u.text: the workers must be killed immediately; wall_ms */
    SUPERVISE_RESUMED,    /* connected to the rendezvous again, which may have lost the last messages */
    SUPERVISE_EXIT,       /* u.end: a worker has exited */
    SUPERVISE_CAUSE,      /* u.end: a worker that has exited with 0 and was still needed, or one whose EXIT follows */
    SUPERVISE_SWEPT,      /* no descendant is left and all output is read */
    SUPERVISE_SIGNAL,     /* u.signal: one that ends the job */
    SUPERVISE_TICK,       /* the time of supervise_deadline_ms() is reached */
};

struct supervise_event {
    enum supervise_event_kind kind;
    int64_t wall_ms; /* Unix time, of FENCED */
    union {
        struct cdi_msg_assign assign;
        struct cdi_msg_round_over over;
        struct {
            enum cdi_close_status status;
            const char *text;
            struct cdi_failure failure;
        } closed;
        const char *text;
        struct cdi_failure end; /* kind EXIT with code 0: success */
        int signal;
    } u;
    bool agreed; /* of EXIT: all ranks had agreed to stop (cddp_should_stop) when this one exited */
};

enum supervise_action_kind {
    SUPERVISE_DO_SPAWN,           /* start all workers, by .assign */
    SUPERVISE_DO_PUBLISH_FAILURE, /* write rank first.rank and the first line of first.text to every flight page */
    SUPERVISE_DO_PUBLISH_END,     /* write the end of the round to every flight page: collectives fail from then on */
    SUPERVISE_DO_KILL,            /* send .signal to the workers' groups */
    SUPERVISE_DO_ASK,             /* request the workers to stop; send .signal to those that do not ask for it */
    SUPERVISE_DO_SWEEP,           /* kill every descendant, read the output to its end, then SWEPT */
    SUPERVISE_DO_SEND_FAILED,     /* local_first */
    SUPERVISE_DO_SEND_DONE,
    SUPERVISE_DO_SEND_STOPPED,
    SUPERVISE_DO_SEND_LEAVE,
    SUPERVISE_DO_LOG_WAIT,  /* log which workers still run since .stop_ms, and when SIGKILL is due */
    SUPERVISE_DO_LOG_CAUSE, /* log .over, after which a new round starts; .n_causes_logged > 1: another cause was logged
                               before */
    SUPERVISE_DO_REJOIN, /* no worker is left here: connect to the rendezvous again, as the same node or as a new one */
    SUPERVISE_DO_FINISH, /* the job is over for this agent; supervise_exit_status() */
};

struct supervise_action {
    enum supervise_action_kind what;
    int signal;
};

#define SUPERVISE_MAX_ACTIONS 8

struct supervise_actions {
    struct supervise_action v[SUPERVISE_MAX_ACTIONS];
    unsigned n;
};

/* All may read it; only supervise_handle writes it. */
struct supervise {
    enum supervise_state state;
    uint32_t n_local; /* workers of this agent */
    int64_t grace_ms; /* from the first signal to SIGKILL */
    uint32_t n_alive;
    struct cdi_msg_assign assign; /* of the present round */
    int64_t kill_at_ms;           /* when SIGKILL is due; CDI_NEVER_MS */
    int stop_signal;              /* the last signal that was sent to end the workers of this round; 0: none */
    int64_t stop_ms;              /* when the first one was sent */
    int64_t log_wait_at_ms;       /* when LOG_WAIT is due; CDI_NEVER_MS */
    bool killed;                  /* SIGKILL was sent in this round */
    bool given_up;                /* a process has survived it */

    struct cdi_failure local_first;      /* of this round, on this node; kind NONE */
    struct cdi_failure first;            /* the job's first failure of this round, as known here */
    int64_t first_ms;                    /* when it became known */
    uint32_t n_succeeded, n_ended_after; /* of this round: with status 0; after the first failure */
    uint32_t n_agreed;                   /* of n_succeeded: after all ranks had agreed to stop */
    uint32_t n_overdue;                  /* workers that lived when grace_ms was over, and were killed */
    uint32_t n_hurried;                  /* workers that a second signal to this cddprun killed */
    struct cdi_failure stop_failure;     /* the first worker here that failed after an order to stop; kind NONE */

    bool cause_still_runs;                     /* local_first is of a worker whose EXIT is still to follow */
    bool sent_failed, sent_done, sent_stopped; /* of this round */
    bool round_over;                           /* the rendezvous has ended the round */
    struct cdi_msg_round_over over;            /* the rendezvous' last message about it */
    uint32_t restart;                          /* the restart that `over` leads to, if it counts */
    unsigned n_causes_logged;                  /* the number of its LOG_CAUSE actions */
    int64_t log_cause_at_ms;                   /* when LOG_CAUSE is due; CDI_NEVER_MS */
    bool ending;                               /* no further round for this agent */
    bool keeps_others;                         /* a worker's failure does not stop the others */
    bool hosts;                                /* the rendezvous of the other nodes runs in this agent */
    bool link_lost;                            /* to the rendezvous */
    bool unreported; /* the rendezvous was lost before it received `first`, which may be a consequence of that loss */
    bool rejoins;    /* the job may accept a node again that was fenced in a round */
    bool returning;  /* fenced: REJOIN after the workers have exited */
    int64_t wait_until_ms; /* a host that was signalled waits until then for the other nodes to stop */
    uint64_t stop_signals; /* that request a stop, and never end a worker that asks: bit n-1 for signal n */
    int stop_exit_code;    /* the exit status after a stop on which all ranks agreed */
    int signal;            /* the signal that ended the agent; 0: none */
    int first_signal;      /* the one that requested the stop; `signal` may be a later one, which is more */
    int last_signal;
    int64_t last_signal_ms;
    bool closed;
    enum cdi_close_status close_status;
    char text[512]; /* why the agent ended, if not by a failure */
};

void supervise_init(struct supervise *s, uint32_t n_local, int64_t grace_ms);
/* Sets whether this agent hosts the rendezvous of other nodes: a signal then ends it only after they have stopped. */
void supervise_set_host(struct supervise *s, bool hosts);
/*
 * Sets that a node that was fenced in a round joins again, without its workers, instead of ending: its job may continue
 * without it and accept it again. A node that has not been in a round yet always does so.
 */
void supervise_set_rejoins(struct supervise *s);
/*
 * Sets the signals (bit n-1 for signal n) that only request a stop, however often they come, and cddprun's exit status
 * after an orderly stop. A worker may also exit with that status then.
 */
void supervise_set_stop(struct supervise *s, uint64_t signals, int exit_code);
/* Sets that a worker's failure is reported to the others, but does not stop them. */
void supervise_keep_others(struct supervise *s);
/* Resets the state of the round: the rendezvous has accepted this agent as a new one. */
void supervise_reset_round(struct supervise *s);
/*
 * Handles an event; *out are the actions, in order. A worker that could not be started counts as started, and EXIT with
 * END_SPAWN follows.
 */
void supervise_handle(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                      struct supervise_actions *out);
/* Returns when a TICK is needed; CDI_NEVER_MS: not now. */
int64_t supervise_deadline_ms(const struct supervise *s);
/* Returns whether this node would join again after a FENCED now. */
bool supervise_returns(const struct supervise *s);
/* Writes the message for a FENCED now, and that the workers are killed, if there are any. */
void supervise_fence_text(const struct supervise *s, const char *why, char *text, size_t cap);
/* Returns cddprun's exit status, after FINISH. */
int supervise_exit_status(const struct supervise *s);
/* Returns whether all of this node's workers have ended on purpose: after all ranks had agreed to stop. */
bool supervise_has_stopped(const struct supervise *s);
/* Returns the exit status for this failure. */
int supervise_failure_status(const struct cdi_failure *f);

#endif
