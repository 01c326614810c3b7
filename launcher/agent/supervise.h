/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of one agent's workers as a pure state machine: (state, event, now) -> actions. It owns no process, socket
 * or clock; agent.c feeds it and carries out what it says.
 *
 *               ASSIGN                 all ended with 0               swept: DONE
 *   JOINING ───────────────> RUNNING ───────────────────> SWEEPING ───────────────> WAITING
 *      ^                        │ worker failed, round over,  ^   │                    │
 *      │                        v signal, link lost           │   │ told to end        │ ASSIGN: RUNNING
 *      │                     STOPPING ────────────────────────┘   v                    │
 *      │                       TERM, grace, KILL   all gone     OVER <─────────────────┘ CLOSED, signal, link lost
 */
#ifndef SUPERVISE_H
#define SUPERVISE_H

#include "protocol/message.h"

#include <stdbool.h>
#include <stdint.h>

#define SUPERVISE_GRACE_MS 30000   /* from the first signal to SIGKILL, where nobody says otherwise */
#define SUPERVISE_PATIENCE_MS 5000 /* so long after it, it is said who has not ended, if SIGKILL is not due soon: */
#define SUPERVISE_SOON_MS 500
#define SUPERVISE_SAME_SIGNAL_MS 500  /* the same signal twice within this time was one */
#define SUPERVISE_UNKILLABLE_MS 10000 /* after SIGKILL, before giving up on a process that the kernel holds */
/* A tick that is so late says that this process was stopped, and the workers with it: their grace begins again. */
#define SUPERVISE_STOPPED_MS 1000
#define SUPERVISE_STAY_MORE_MS 5000  /* so much longer a host waits for other nodes' workers */
#define SUPERVISE_CROSSING_MS 300    /* so long the news of an earlier failure on another node may take */
#define SUPERVISE_ORDER_COMES_MS 300 /* so long the end waits for it */
#define SUPERVISE_ORDER_MS 2000      /* a worker may get a batch system's signal so much earlier than cddprun does */

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
    SUPERVISE_ROUND_OVER, /* u.over; of the same round again, where the cause is another one */
    SUPERVISE_CLOSED,     /* u.closed */
    SUPERVISE_LINK_LOST,  /* u.text */
    SUPERVISE_FENCED,     /* u.text: the workers must be dead at once; wall_ms */
    SUPERVISE_RESUMED,    /* the rendezvous is reached again, and may not have heard what was said last */
    SUPERVISE_EXIT,       /* u.end: a worker is gone */
    SUPERVISE_CAUSE,      /* u.end: whose EXIT with code 0 was told before, and was needed; or another, EXIT follows */
    SUPERVISE_SWEPT,      /* no descendant is left and all output is read */
    SUPERVISE_SIGNAL,     /* u.signal: INT, TERM, HUP or QUIT */
    SUPERVISE_TICK,       /* the time of supervise_deadline_ms() has come */
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
        struct cdi_failure end; /* kind EXIT with code 0: it ended well */
        int signal;
    } u;
};

enum supervise_do {
    SUPERVISE_DO_SPAWN,       /* all workers, by .assign */
    SUPERVISE_DO_TELL_DEATH,  /* first.text (the sentence) of rank first.rank to every flight page */
    SUPERVISE_DO_TELL_OVER,   /* round over to every flight page: collectives fail from then on */
    SUPERVISE_DO_KILL,        /* .signal to the workers' groups */
    SUPERVISE_DO_SWEEP,       /* kill every descendant, read the output to its end, then SWEPT */
    SUPERVISE_DO_SEND_FAILED, /* local_first */
    SUPERVISE_DO_SEND_DONE,
    SUPERVISE_DO_SEND_STOPPED,
    SUPERVISE_DO_SEND_LEAVE,
    SUPERVISE_DO_SAY_WAIT, /* which workers have not ended since .asked_ms, and when SIGKILL is due */
    SUPERVISE_DO_SAY_WHY,  /* .over, which another round follows; something else was said before if .said_why > 1 */
    SUPERVISE_DO_REJOIN,   /* no worker is left here: reach the rendezvous again, as whom it knows or as a new node */
    SUPERVISE_DO_FINISH,   /* the job is over for this agent; supervise_exit_status() */
};

struct supervise_action {
    enum supervise_do what;
    int signal;
};

#define SUPERVISE_MAX_ACTIONS 8

struct supervise_actions {
    struct supervise_action v[SUPERVISE_MAX_ACTIONS];
    unsigned n;
};

/* Read by everyone, written by supervise_handle only. */
struct supervise {
    enum supervise_state state;
    uint32_t n_local; /* workers of this agent */
    int64_t grace_ms; /* from the first signal to SIGKILL */
    uint32_t n_alive;
    struct cdi_msg_assign assign; /* of the present round */
    int64_t kill_at_ms;           /* when SIGKILL is due; CDI_NEVER_MS */
    int asked;                    /* the signal by which the workers of this round were asked last to end; 0: none */
    int64_t asked_ms;             /* when they were asked first */
    int64_t say_wait_at_ms;       /* when SAY_WAIT is due; CDI_NEVER_MS */
    bool killed;                  /* SIGKILL was sent in this round */
    bool given_up;                /* a process did not die of it */

    struct cdi_failure local_first;       /* of this round, on this node; kind NONE */
    struct cdi_failure first;             /* the job's first failure of this round as far as known here */
    int64_t first_ms;                     /* when it became known */
    uint32_t n_ended_well, n_ended_after; /* of this round: with 0; badly, but after the first */

    bool cause_lives;                          /* local_first is of a worker whose EXIT is still to come */
    bool said_failed, said_done, said_stopped; /* of this round */
    bool round_over;                           /* the rendezvous has ended the round */
    struct cdi_msg_round_over over;            /* what it said of it last */
    uint32_t restart;                          /* that `over` leads to, if it counts */
    unsigned said_why;                         /* how often SAY_WHY was said of it */
    int64_t say_why_at_ms;                     /* when SAY_WHY is due; CDI_NEVER_MS */
    bool ending;                               /* no further round for this agent */
    bool leaves_alone;                         /* a worker's failure does not stop the others: they end by themselves */
    bool hosts;                                /* the other nodes' rendezvous runs in this agent */
    bool link_lost;                            /* to the rendezvous */
    bool unheard;          /* the rendezvous was lost before it heard of `first`, which may be the echo of that loss */
    bool rejoins;          /* the job may have a place for a node that was fenced in a round */
    bool returning;        /* fenced: REJOIN when the workers are gone */
    int64_t stay_until_ms; /* a host that is ended by a signal waits so long for the other nodes to stop */
    int signal;            /* that ended it; 0: none */
    int last_signal;
    int64_t last_signal_ms;
    bool closed;
    enum cdi_close_status close_status;
    char text[512]; /* why it ended, where no failure says it */
};

void supervise_init(struct supervise *s, uint32_t n_local, int64_t grace_ms);
/* The rendezvous of other nodes runs in this agent: a signal ends it when they have stopped, and not before. */
void supervise_set_host(struct supervise *s);
/*
 * A node that was fenced in a round comes back, without its workers, instead of ending: its job may go on without it
 * and with it. One that has not been in a round yet always does.
 */
void supervise_set_rejoins(struct supervise *s);
/* A worker's failure, here or elsewhere, is told to the others, but they are left alone. */
void supervise_leave_alone(struct supervise *s);
/* The rendezvous has taken this agent in as a new one: nothing that was said about earlier rounds counts any more. */
void supervise_forget_round(struct supervise *s);
/* What to do now, in this order. A worker that could not be started counts as started, and EXIT with END_SPAWN follows.
 */
void supervise_handle(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                      struct supervise_actions *out);
/* When a TICK is wanted; CDI_NEVER_MS: not now. */
int64_t supervise_deadline_ms(const struct supervise *s);
/* Would it come back, if FENCED came now? */
bool supervise_returns(const struct supervise *s);
/* The text of a FENCED that comes now, and what becomes of the workers, if there are any. */
void supervise_fence_text(const struct supervise *s, const char *why, char *text, size_t cap);
/* What cddprun exits with, once FINISH was said. */
int supervise_exit_status(const struct supervise *s);
/* The exit status that stands for this failure. */
int supervise_failure_status(const struct cdi_failure *f);

#endif
