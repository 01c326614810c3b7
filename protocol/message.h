/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control messages between agents and the rendezvous server: one table of types and fields (message.c), JSON
 * objects in the frames of frame.h. docs/internals/protocol.md describes them with an example session.
 *
 *   agent -> server                                  server -> agent
 *   JOIN       once, after the handshake             WELCOME    session token, lease
 *   FAILED     a worker of this node failed          WAITING    present and missing nodes (from time to time)
 *   DONE       all workers of this node succeeded    ASSIGN     a round begins: start the workers
 *   STOPPED    no worker of this node is alive;      ROUND_OVER stop the workers, then send STOPPED
 *              ready for the next round              CLOSED     the job is over, or the agent is rejected
 *   LEAVE      the node leaves (after a signal)      HEARTBEAT  reply
 *   HEARTBEAT  keeps the lease
 *
 * Strings are UTF-8; the encoder replaces invalid bytes, and the decoder makes them visible (common/visible.h): a
 * string that is too long only then is cut. Pure: from bytes to structs. One thread at a time.
 */
#ifndef CDI_MESSAGE_H
#define CDI_MESSAGE_H

#include "common/buf.h"
#include "common/error.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define CDI_CONTROL_VERSION 1
#define CDI_JOIN_TIME_MAX_MS (7 * 24 * 3600 * 1000) /* limit of the times in JOIN */

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

/* Kind of a failure. */
enum cdi_end_kind {
    CDI_END_NONE = 0,
    CDI_END_EXIT = 1,   /* code: the exit code */
    CDI_END_SIGNAL = 2, /* code: the signal's number */
    CDI_END_SPAWN = 3,  /* the worker could not be started; code: errno */
    CDI_END_NODE = 4,   /* the node was lost; code: 0 */
    CDI_END_HANG = 5,   /* the job stood still until --hang_timeout; rank: the first that is behind, code: 0 */
};

/* The first failure of a round, in FAILED, ROUND_OVER and CLOSED. kind NONE: none. */
struct cdi_failure {
    enum cdi_end_kind kind;
    int32_t code;
    int32_t rank;       /* global; -1 unknown */
    int32_t local_rank; /* -1 unknown */
    int32_t node_rank;  /* -1 unknown */
    int64_t pid;
    int64_t time_ms; /* Unix time in ms at which its agent noticed it */
    uint32_t core_dumped;
    char host[256];
    char text[1024]; /* the error message; further lines may follow (the tail of stderr) */
    uint32_t misses; /* one more than the rank on another node that had exited and was still needed; 0: none */
    /* Of libcddp's last error in that process: its status, 0 for none; and one more than the rank that it names. */
    int32_t error;
    uint32_t blames;
    int64_t age_ms; /* from time_ms until the message was sent */
    uint32_t final; /* 1: the job is not restarted after it (--no_restart_codes) */
};
/*
 * Returns true for a signal (0: none) that kills a process for its own reason: not a request to terminate, and not
 * SIGPIPE from writing to a peer that has exited. Such a death is the cause of another exit at about the same time.
 * Pure.
 */
static inline bool cdi_signal_is_cause(int signal)
{
    return signal != 0 && signal != SIGTERM && signal != SIGPIPE;
}

enum cdi_close_status {
    CDI_CLOSE_DONE = 0,    /* every worker of the last round exited with status 0 */
    CDI_CLOSE_FAILED = 1,  /* a worker failed, and no restart is left */
    CDI_CLOSE_REFUSED = 2, /* this agent may not join; the reason is in text */
    CDI_CLOSE_TIMEOUT = 3, /* join timeout; text names the missing nodes */
    CDI_CLOSE_LEFT = 4,    /* an agent left after a signal */
};

/* The consequence after a job has stood still for hang_timeout_ms. An older agent sends NONE. */
enum cdi_on_hang { CDI_ON_HANG_NONE = 0, CDI_ON_HANG_REPORT = 1, CDI_ON_HANG_RESTART = 2, CDI_ON_HANG_STOP = 3 };

struct cdi_msg_join {
    uint32_t version; /* CDI_CONTROL_VERSION */
    char release[32]; /* "0.1.0" */
    char run_id[256];
    char host[256];
    int64_t pid;
    int32_t node_rank; /* -1: any */
    uint32_t n_procs;  /* workers on this node */
    uint32_t min_nodes, max_nodes;
    uint32_t spares; /* standby nodes, beyond max_nodes */
    uint32_t max_restarts;
    char topology[256]; /* nodes with similar strings get adjacent ranks; "": unknown */
    /* For a server of several jobs: those of a job's first agent count. ms; -1: the server's default. */
    int64_t join_timeout_ms, last_call_ms, close_timeout_ms, lease_ms;
    char session[64]; /* to return: the one of WELCOME; "": a new agent */
    int64_t round;    /* to return: the one of the last ASSIGN; -1: none yet */
    char nonce[40];   /* unique to the agent, and the same in all its JOINs; "": none (an older agent) */
    /* Restarts of the job that the agent knows of, for a rendezvous server that was restarted. */
    uint32_t restart_count;
    /* Those of a job's first agent count; 0: off. */
    int64_t hang_warning_ms, hang_timeout_ms;
    enum cdi_on_hang on_hang;
    int64_t sent_ms; /* Unix time in ms, by the node's clock; 0: not known */
};

struct cdi_msg_assign {
    uint32_t round; /* 0, 1, ...; each has its own key space in the store */
    int32_t node_rank;
    uint32_t n_nodes;
    uint32_t rank_base; /* global rank of this node's local rank 0 */
    uint32_t world_size;
    uint32_t restart_count; /* so far: TORCHELASTIC_RESTART_COUNT */
    char master_addr[256];  /* "": the address to which this agent is connected */
    uint32_t master_port;   /* 0: the port to which this agent is connected */
};

struct cdi_msg_round_over {
    uint32_t round;
    bool restart;   /* another round follows */
    bool counts;    /* as one of max_restarts */
    char text[512]; /* reason why the round is over */
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
            bool final; /* this agent hosts the rendezvous server, which ends, too */
        } leave;
        struct {
            uint32_t seq;
        } heartbeat;
        struct {
            uint32_t version;
            char release[32];
            char session[64];
            uint32_t lease_ms;
            bool resumed; /* the agent has returned in time */
            bool hosted;  /* the server runs in the cddprun of one of the job's nodes, and ends with it */
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
            bool retry; /* rejected for now: the agent may join later */
            bool gone;  /* rejected: the job of the JOIN's session is over, and must not be started again */
        } closed;
    } u;
};

/* Returns a name such as "ROUND_OVER". */
const char *cdi_msg_name(enum cdi_msg_type type);

/* Appends one complete frame (header and JSON) to out. Returns CDDP_OK, CDDP_E_NOMEM or CDDP_E_LIMIT. */
cddp_status cdi_msg_encode(const struct cdi_msg *msg, struct cdi_buf *out, struct cdi_error *err);

/*
 * Parses the payload of a frame, of the type in its header. Unknown members are ignored (a newer peer may send them).
 * Members that were added within this version may be missing (an older peer), and are then 0. Any other missing member,
 * a wrong type, a number out of range, or a string that is too long is CDDP_E_PROTOCOL, with an error message that
 * names type and member. *msg is set on success only.
 */
cddp_status cdi_msg_decode(uint16_t type, const void *payload, size_t len, struct cdi_msg *msg, struct cdi_error *err);

#endif
