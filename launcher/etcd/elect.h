/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The election of the agent that hosts the rendezvous, by a key in etcd with a lease. Pure: (state, event, now) ->
 * actions; etcd.c makes the requests, and agent.c hosts and joins. One request is under way at a time.
 *
 *               no key                lease              created
 *   LOOKING ───────────────> GRANTING ─────> CAMPAIGNING ───────> HOSTING
 *     │  ^  the key is there                  │ another was first     │ the lease or the key is lost
 *     v  │                                    v                       v
 *   FOLLOWING <───────────────────────────────┘                    LOOKING
 *
 * One world at a time, T being the lease's time to live. A lease that was renewed by a request sent at time 0 ends in
 * etcd at T at the earliest. Until T/5 the server answers its agents; so the last heartbeat with an answer was sent by
 * then. The lease that it gives to its agents is 9T/10. An agent kills its workers after two thirds of that without an
 * answer, and its guard does after five sixths, at T/5 + 3T/4 = 19T/20. Only after T another host may be elected. The
 * host's own agent is an agent like the others. A host gives its key up earlier only if no worker of its rounds runs.
 */
#ifndef ELECT_H
#define ELECT_H

#include <stdbool.h>
#include <stdint.h>

#define ELECT_ADDR_MAX 256
#define ELECT_POLL_MS 250       /* between two looks of an agent that has lost its host */
#define ELECT_RETRY_MAX_MS 1000 /* between two requests that fail */
#define ELECT_SAY_MS 10000      /* between two messages about waiting */
#define ELECT_OVER_WAIT_MS 2000 /* the host's own message about the end may be on its way */
#define ELECT_END_MS 5000       /* the last requests take this long at most */

/* The time for which agents of a host with this time to live count as present without a message. */
#define ELECT_AGENT_LEASE_MS(ttl_ms) ((ttl_ms)*9 / 10)

enum elect_state {
    ELECT_LOOKING,
    ELECT_GRANTING,
    ELECT_CAMPAIGNING,
    ELECT_FOLLOWING,
    ELECT_HOSTING,
    ELECT_OVER,   /* another host has ended the job */
    ELECT_ENDING, /* the last requests */
    ELECT_ENDED,
};

enum elect_ask {
    ELECT_ASK_NONE,
    ELECT_ASK_LOOK,     /* both keys */
    ELECT_ASK_GRANT,    /* a lease of lease_ms */
    ELECT_ASK_CAMPAIGN, /* create the host's key with the lease, unless it exists or the job has ended after known_epoch
                         */
    ELECT_ASK_KEEP,     /* renew the lease */
    ELECT_ASK_TOMB,     /* a lease for the key that says that the job is over */
    ELECT_ASK_CLOSE,    /* that key, with tomb_lease, in place of the host's if its create revision is `epoch` */
    ELECT_ASK_REVOKE,   /* the lease, and with it the host's key */
};

/* The host's key. */
struct elect_host {
    bool is, foreign; /* foreign: the value is not cddprun's */
    int64_t epoch;    /* its create revision */
    int64_t lease;    /* 0: none */
    char addr[ELECT_ADDR_MAX];
    uint16_t port;
};

struct elect_answer {
    bool failed;            /* no answer, or an error; text says which */
    bool fatal;             /* trying again does not help, such as a wrong password */
    bool lease_gone;        /* the error is that the lease does not exist */
    bool won;               /* CAMPAIGN */
    int64_t lease, ttl_ms;  /* GRANT, TOMB, and KEEP (ttl_ms; 0: gone) */
    int64_t epoch;          /* CAMPAIGN: the create revision */
    struct elect_host host; /* LOOK, and CAMPAIGN if not won */
    int64_t over;           /* the same: the revision of the key that says that the job is over; 0: none */
    bool over_done;         /* it was successful */
    const char *text;       /* failed; may be NULL otherwise */
};

enum elect_event_kind {
    ELECT_EV_START,
    ELECT_EV_ANSWER, /* answer; now_ms is when it came */
    ELECT_EV_TICK,   /* elect_next_ms() is reached */
    ELECT_EV_LINK,   /* linked: whether this agent has a connection to the host that answers */
    ELECT_EV_ROUND,  /* the host has given this agent a round */
    ELECT_EV_END, /* over: this agent hosts, and every node's workers have ended for good; give_up: ended here only */
};

struct elect_event {
    enum elect_event_kind kind;
    const struct elect_answer *answer;
    bool linked, over, done, give_up; /* done: it was successful */
};

enum elect_action_kind {
    ELECT_DO_ASK,      /* send the request `ask` */
    ELECT_DO_LISTEN,   /* start a server that gives no answers yet, for leases of ttl_ms */
    ELECT_DO_HOST,     /* this agent hosts: join at its own server */
    ELECT_DO_UNLISTEN, /* close that server: another agent hosts */
    ELECT_DO_UNHOST,   /* close the server immediately: this agent no longer hosts; text: why */
    ELECT_DO_JOIN,     /* join at `host` */
    ELECT_DO_WAITING,  /* tell the user: text */
    ELECT_DO_FAIL,     /* the job cannot meet: text. The last action, but for ENDED */
    ELECT_DO_OVER,     /* the job is over. The same */
    ELECT_DO_ENDED,    /* nothing is under way any more */
};

struct elect_action {
    enum elect_action_kind what;
    enum elect_ask ask;
};

#define ELECT_MAX_ACTIONS 6

struct elect_actions {
    struct elect_action v[ELECT_MAX_ACTIONS];
    unsigned n;
    char text[1200];
};

/* All may read it; only elect_handle() writes it. */
struct elect {
    enum elect_state state;
    int64_t lease_ms;            /* wanted */
    int64_t deadline_ms;         /* for the first host to be found; CDI_NEVER_MS after that */
    enum elect_ask asking, last; /* last: ENDING, the present one of the last requests */
    int64_t asked_ms;
    int64_t lease, ttl_ms, granted_ms; /* lease 0: none */
    int64_t tomb_lease;
    int64_t keep_ms;           /* when the last KEEP that succeeded was sent */
    int64_t good_ms;           /* HOSTING: when the request was sent that last showed both lease and key */
    int64_t next_ms;           /* of the next request; CDI_NEVER_MS */
    int64_t say_ms, end_by_ms; /* CDI_NEVER_MS */
    int64_t wait_ms;           /* after the next failure */
    int64_t epoch;             /* of the host that this agent follows or is; 0: none */
    int64_t known_epoch;       /* of the last host that gave this agent a round; 0: none */
    bool linked, contacted, ever_joined, listening, ending, over, done, give_up, stale_said;
    struct elect_host host;
    char name[200];      /* etcd's endpoints, for messages */
    char key[400];       /* the host's key, for messages */
    char last_text[400]; /* why the last request failed; "": it did not */
};

/* Begins; nothing is asked before START. */
void elect_init(struct elect *e, int64_t lease_ms, int64_t deadline_ms, const char *name, const char *key);
/* Handles an event; *out are the actions, in order. */
void elect_handle(struct elect *e, const struct elect_event *ev, int64_t now_ms, struct elect_actions *out);
/* Returns when a TICK is needed; CDI_NEVER_MS: not now. */
int64_t elect_next_ms(const struct elect *e);
/* Returns until when the server of this agent may answer; 0: it may not. */
int64_t elect_answers_until_ms(const struct elect *e);
/* Returns until when no other agent hosts, if this one does; 0: it does not. */
int64_t elect_alone_until_ms(const struct elect *e);

#endif
