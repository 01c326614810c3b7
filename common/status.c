/* SPDX-License-Identifier: Apache-2.0 */
#include "common/status.h"

/* The compiler reports a status that is missing here. */
#define TEXTS(X)                                             \
    X(OK, "success")                                         \
    X(IN_PROGRESS, "in progress")                            \
    X(E_INVALID, "invalid argument or environment variable") \
    X(E_NOMEM, "out of memory")                              \
    X(E_TIMEOUT, "timed out")                                \
    X(E_IO, "input/output error")                            \
    X(E_CLOSED, "connection closed")                         \
    X(E_PROTOCOL, "the peer broke the protocol")             \
    X(E_LIMIT, "a limit was exceeded")                       \
    X(E_NOT_FOUND, "not found")                              \
    X(E_EXISTS, "already exists")                            \
    X(E_MISMATCH, "ranks disagree")                          \
    X(E_PEER, "another rank died")                           \
    X(E_ABORTED, "aborted")                                  \
    X(E_STATE, "not allowed in this state")                  \
    X(E_UNSUPPORTED, "not supported")                        \
    X(E_SYSTEM, "the operating system refused")              \
    X(E_VERSION, "versions do not match")                    \
    X(E_DENIED, "refused")                                   \
    X(E_NONFINITE, "a NaN or an infinity")                   \
    X(E_REMOTE, "another rank reported a failure")

const char *cdi_status_text(cddp_status status)
{
    switch (status) {
#define TEXT(name, text) \
    case CDDP_##name:    \
        return text;
        TEXTS(TEXT)
#undef TEXT
    case CDDP_STATUS_FORCE_INT_:
    default:
        return "unknown status";
    }
}

const char *cdi_status_name(cddp_status status)
{
    switch (status) {
#define NAME(name, text) \
    case CDDP_##name:    \
        return "CDDP_" #name;
        TEXTS(NAME)
#undef NAME
    case CDDP_STATUS_FORCE_INT_:
    default:
        return "CDDP_UNKNOWN";
    }
}
