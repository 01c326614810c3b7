/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control messages between agents and the rendezvous: one table of types and fields (message.c), JSON objects
 * inside the frames of frame.h. docs/protocol.md shows them with an example session.
 *
 *   agent -> rendezvous                              rendezvous -> agent
 *   JOIN       once, after the opening               WELCOME    session token, lease
 *   FAILED     a worker of mine ended badly          WAITING    who is there, who is missing (from time to time)
 *   DONE       all workers of mine ended well        ASSIGN     a round begins: spawn your workers
 *   STOPPED    none of my workers is alive, and      ROUND_OVER stop your workers, then send STOPPED
 *              I wait for the next round             CLOSED     the job is over (or you are refused): leave
 *   LEAVE      I am going (a signal)                 HEARTBEAT  answer
 *   HEARTBEAT  I am here
 *
 * Strings are UTF-8; encode replaces what is not. Pure: bytes in, struct out. One thread at a time.
 */
#ifndef CDI_MESSAGE_H
#define CDI_MESSAGE_H

#include "common/buf.h"
#include "common/error.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define CDI_CONTROL_VERSION 1
#define CDI_JOIN_TIME_MAX_MS (7 * 24 * 3600 * 1000) /* of the times in JOIN */

enum cdi_msg_type {
    CDI_MSG_JOIN = 1,
    CDI_MSG_FAILED = 2,
    CDI_MSG_DONE = 3,
    CDI_MSG_STOPPED = 4,
    CDI_MSG_LEAVE = 5,
    CDI_MSG_HEARTBEAT = 6,
    CDI_MSG_WELCOME = 101,
    CDI_MSG_WAITING = 102,
    CDI_MSG_ASSIGN = 103,
    CDI_MSG_ROUND_OVER = 104,
    CDI_MSG_CLOSED = 105,
};

/* How a worker ended. */
enum cdi_end_kind {
    CDI_END_NONE = 0,
    CDI_END_EXIT = 1,   /* code: the exit code */
    CDI_END_SIGNAL = 2, /* code: the signal's number */
    CDI_END_SPAWN = 3,  /* it could not be started; code: errno */
    CDI_END_NODE = 4,   /* its node was lost; code: 0 */
};

/* The first failure of a round: in FAILED, ROUND_OVER and CLOSED. kind NONE: there was none. */
struct cdi_failure {
    enum cdi_end_kind kind;
    int32_t code;
    int32_t rank;       /* global; -1 unknown */
    int32_t local_rank; /* -1 unknown */
    int32_t node_rank;  /* -1 unknown */
    int64_t pid;
    int64_t time_ms; /* wall clock (Unix ms) when its agent saw it */
    uint32_t core_dumped;
    char host[256];
    char text[1024]; /* the sentence for people; may hold more lines (the tail of stderr) after it */
    uint32_t misses; /* one more than the rank of another node that was gone before and was still needed; 0: none */
};
/*
 * Was a process that this signal (0: none) ended killed by somebody who did not ask it to end, and not by its own
 * writing to a peer that was gone? Then it is the cause of another's exit at about the same time. Pure.
 */
static inline bool cdi_signal_is_cause(int signal)
{
    return signal != 0 && signal != SIGTERM && signal != SIGPIPE;
}

enum cdi_close_status {
    CDI_CLOSE_DONE = 0,    /* every worker of the last round ended with 0 */
    CDI_CLOSE_FAILED = 1,  /* a worker failed and no restart is left */
    CDI_CLOSE_REFUSED = 2, /* this agent may not join: text says why */
    CDI_CLOSE_TIMEOUT = 3, /* not enough nodes came in time: text says who is missing */
    CDI_CLOSE_LEFT = 4,    /* an agent left on a signal */
};

struct cdi_msg_join {
    uint32_t version; /* CDI_CONTROL_VERSION */
    char release[32]; /* "0.1.0" */
    char run_id[256];
    char host[256];
    int64_t pid;
    int32_t node_rank; /* -1: any */
    uint32_t n_procs;  /* workers on this node */
    uint32_t min_nodes, max_nodes;
    uint32_t spares; /* nodes beyond max_nodes that may wait */
    uint32_t max_restarts;
    char topology[256]; /* nodes whose strings sort together get neighbouring ranks; "": nothing is known */
    /* What the first agent of a job says counts, where the rendezvous serves many jobs. ms; -1: its default. */
    int64_t join_timeout_ms, last_call_ms, close_timeout_ms, lease_ms;
    char session[64]; /* to come back: that of WELCOME; "": a new agent */
    int64_t round;    /* to come back: of the last ASSIGN; -1: none yet */
    char nonce[40];   /* the same in all JOINs of an agent, and of no other agent; "": none (an older agent) */
    /* Restarts that the job has had, as the agent knows it: for a rendezvous that was started anew. */
    uint32_t restart_count;
};

struct cdi_msg_assign {
    uint32_t round; /* 0, 1, ...; in its own store key space */
    int32_t node_rank;
    uint32_t n_nodes;
    uint32_t rank_base; /* global rank of this node's local rank 0 */
    uint32_t world_size;
    uint32_t restart_count; /* failures so far: TORCHELASTIC_RESTART_COUNT */
    char master_addr[256];  /* "": the address under which this agent reached the rendezvous */
    uint32_t master_port;   /* 0: the port under which this agent reached the rendezvous */
};

struct cdi_msg_round_over {
    uint32_t round;
    bool restart;   /* another round follows */
    bool counts;    /* as one of max_restarts */
    char text[512]; /* why the round is over */
    struct cdi_failure failure;
};

struct cdi_msg {
    enum cdi_msg_type type;
    union {
        struct cdi_msg_join join;
        struct {
            uint32_t round;
            struct cdi_failure failure;
        } failed;
        struct {
            uint32_t round;
        } done;
        struct {
            uint32_t round;
        } stopped;
        struct {
            char reason[256];
            bool final; /* the rendezvous goes with this agent */
        } leave;
        struct {
            uint32_t seq;
        } heartbeat;
        struct {
            uint32_t version;
            char release[32];
            char session[64];
            uint32_t lease_ms;
            bool resumed; /* the agent has come back in time */
            bool hosted;  /* the rendezvous runs in the cddprun of one of the job's nodes, and ends with it */
        } welcome;
        struct {
            uint32_t have, need;
            char text[512];
        } waiting;
        struct cdi_msg_assign assign;
        struct cdi_msg_round_over round_over;
        struct {
            enum cdi_close_status status;
            char text[512];
            struct cdi_failure failure;
            bool retry; /* refused for now: the agent may join later */
            bool gone;  /* refused: the job of the JOIN's session is over, and is not to be made anew */
        } closed;
    } u;
};

/* "ROUND_OVER". */
const char *cdi_msg_name(enum cdi_msg_type type);

/* Append one whole frame (header and JSON) to out. CDDP_OK, CDDP_E_NOMEM, CDDP_E_LIMIT. */
cddp_status cdi_msg_encode(const struct cdi_msg *msg, struct cdi_buf *out, struct cdi_error *err);

/*
 * Read the len bytes of a frame's payload, of the type that its header names. Unknown members are ignored (a newer peer
 * may send more), and those that were added within this version may be missing (an older peer: they are 0 then). Any
 * other missing member, a mistyped one, a number out of range, or a string that is too long is CDDP_E_PROTOCOL with an
 * error message that names type and member. *msg is written on success only.
 */
cddp_status cdi_msg_decode(uint16_t type, const void *payload, size_t len, struct cdi_msg *msg, struct cdi_error *err);

#endif
