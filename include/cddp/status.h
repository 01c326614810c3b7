/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The status type that every libcddp function returns, and the marks that public functions carry.
 * 0 is success, a positive value means "in progress", a negative one is an error.
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

/* One list, three uses: the enum below, cddp_strerror() and cddp_status_name(). */
#define CDDP_STATUS_MAP(X)                                       \
    X(OK, 0, "success")                                          \
    X(IN_PROGRESS, 1, "in progress")                             \
    X(E_INVALID, -1, "invalid argument or environment variable") \
    X(E_NOMEM, -2, "out of memory")                              \
    X(E_TIMEOUT, -3, "timed out")                                \
    X(E_IO, -4, "input/output error")                            \
    X(E_CLOSED, -5, "connection closed")                         \
    X(E_PROTOCOL, -6, "the peer broke the protocol")             \
    X(E_LIMIT, -7, "a limit was exceeded")                       \
    X(E_NOT_FOUND, -8, "not found")                              \
    X(E_EXISTS, -9, "already exists")                            \
    X(E_MISMATCH, -10, "ranks disagree")                         \
    X(E_PEER, -11, "another rank died")                          \
    X(E_ABORTED, -12, "aborted")                                 \
    X(E_STATE, -13, "not allowed in this state")                 \
    X(E_UNSUPPORTED, -14, "not supported")                       \
    X(E_SYSTEM, -15, "the operating system refused")             \
    X(E_VERSION, -16, "versions do not match")                   \
    X(E_DENIED, -17, "refused")

typedef enum cddp_status {
#define CDDP_STATUS_ENUM(name, number, text) CDDP_##name = (number),
    CDDP_STATUS_MAP(CDDP_STATUS_ENUM)
#undef CDDP_STATUS_ENUM
        CDDP_ENUM_32(CDDP_STATUS)
} cddp_status;

#endif
