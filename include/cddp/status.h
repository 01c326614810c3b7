/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The status type that every libcddp function returns, and the marks that public functions carry. 0 is success, a
 * positive value means "in progress", a negative one is an error.
 */
#ifndef CDDP_STATUS_H
#define CDDP_STATUS_H

#if defined(__GNUC__)
#define CDDP_API __attribute__((visibility("default")))
#define CDDP_NODISCARD __attribute__((warn_unused_result))
#else
#define CDDP_API
#define CDDP_NODISCARD
#endif

#if defined(__clang__) && !defined(__CUDACC__)
#define CDDP_NO_CASE __attribute__((unused)) /* -Wswitch does not ask for it */
#else
#define CDDP_NO_CASE
#endif

/*
 * The last enumerator of every enumeration. It makes the type 32 bits wide, also with -fshort-enums, and numbers that
 * have no name legal values of it in C++. Nothing returns or takes it.
 */
#define CDDP_ENUM_32(tag) tag##_FORCE_INT_ CDDP_NO_CASE = 0x7fffffff

/*
 * What each status means for the communicator. It is usable until an error makes it fail; from then on every call that
 * communicates returns that error. cddp_comm_error() returns CDDP_OK, or that error.
 *
 * The communicator stays usable after
 *   INVALID      nothing was done. In a reducer's step (cddp_ddp_grad_ready) it is misuse: see STATE.
 *   LIMIT        the call did nothing.
 *   NOT_FOUND, EXISTS, VERSION, DENIED   of a file, a key or another communicator that was to be made.
 *   UNSUPPORTED  nothing was done.
 *   NONFINITE    the numbers of this step are of no use; every rank gets this status, and may go on with the next one.
 *   REMOTE       another rank failed in its own work, and reported it. Every rank gets this status, and may go on.
 *   STATE        the call did nothing, and may be made when its time has come. But a reducer whose step cannot end any
 *                more (gradients are missing, or came twice) ends the waits of its peers: then the communicator has
 *                failed, and theirs with ABORTED.
 * It stays usable, or not, after
 *   NOMEM, SYSTEM, IO, CLOSED, PROTOCOL   usable where memory, a file or the connection to the store is the cause;
 *                failed where it is a peer's connection or the GPU.
 *   MISMATCH     usable where a function compares what the ranks give it, as cddp_ddp_create() and checkpoints do;
 *                failed where ranks have called different collectives.
 *   TIMEOUT      usable where a key of the store did not come; failed where a rank did not.
 * It has failed after
 *   PEER         a rank died or left.
 *   ABORTED      a rank has called cddp_abort(), has misused its reducer or left too early, or the launcher has ended
 *                the job.
 */
typedef enum cddp_status {
    CDDP_OK = 0,              /* success */
    CDDP_IN_PROGRESS = 1,     /* in progress */
    CDDP_E_INVALID = -1,      /* invalid argument or environment variable */
    CDDP_E_NOMEM = -2,        /* out of memory */
    CDDP_E_TIMEOUT = -3,      /* timed out */
    CDDP_E_IO = -4,           /* input/output error */
    CDDP_E_CLOSED = -5,       /* connection closed */
    CDDP_E_PROTOCOL = -6,     /* the peer broke the protocol */
    CDDP_E_LIMIT = -7,        /* a limit was exceeded */
    CDDP_E_NOT_FOUND = -8,    /* not found */
    CDDP_E_EXISTS = -9,       /* already exists */
    CDDP_E_MISMATCH = -10,    /* ranks disagree */
    CDDP_E_PEER = -11,        /* another rank died */
    CDDP_E_ABORTED = -12,     /* aborted */
    CDDP_E_STATE = -13,       /* not allowed in this state */
    CDDP_E_UNSUPPORTED = -14, /* not supported */
    CDDP_E_SYSTEM = -15,      /* the operating system refused */
    CDDP_E_VERSION = -16,     /* versions do not match */
    CDDP_E_DENIED = -17,      /* refused */
    CDDP_E_NONFINITE = -18,   /* a NaN or an infinity */
    CDDP_E_REMOTE = -19,      /* another rank reported a failure */
    CDDP_ENUM_32(CDDP_STATUS)
} cddp_status;

#endif
