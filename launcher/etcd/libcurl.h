/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few functions of libcurl that an election needs, opened by name: cddprun is built, and runs, without it. Types
 * and numbers are those of libcurl.so.4, whose ABI has been the same since 2006 (curl.h and multi.h of curl 7.88).
 */
#ifndef LIBCURL_H
#define LIBCURL_H

#include "common/error.h"

#define LIBCURL_GLOBAL_ALL 3L

enum libcurl_option {
    LIBCURL_WRITEDATA = 10001,
    LIBCURL_URL = 10002,
    LIBCURL_ERRORBUFFER = 10010,
    LIBCURL_WRITEFUNCTION = 20011,
    LIBCURL_POSTFIELDS = 10015,
    LIBCURL_HTTPHEADER = 10023,
    LIBCURL_SSLCERT = 10025,
    LIBCURL_POSTFIELDSIZE = 60,
    LIBCURL_CAINFO = 10065,
    LIBCURL_HTTP_VERSION = 84,
    LIBCURL_SSLKEY = 10087,
    LIBCURL_NOSIGNAL = 99,
    LIBCURL_SOCKOPTFUNCTION = 20148,
    LIBCURL_TIMEOUT_MS = 155,
    LIBCURL_NOPROXY = 10177,
};

#define LIBCURL_HTTP_1_1 2L
#define LIBCURL_ERROR_SIZE 256

enum libcurl_info { LIBCURL_RESPONSE_CODE = 0x200002, LIBCURL_LOCAL_IP = 0x100029 };
enum libcurl_multi_option {
    LIBCURL_SOCKETFUNCTION = 20001,
    LIBCURL_SOCKETDATA = 10002,
    LIBCURL_TIMERFUNCTION = 20004,
    LIBCURL_TIMERDATA = 10005,
};
enum libcurl_poll { LIBCURL_POLL_IN = 1, LIBCURL_POLL_OUT = 2, LIBCURL_POLL_INOUT = 3, LIBCURL_POLL_REMOVE = 4 };

#define LIBCURL_TIMEOUT (-1) /* the "socket" of a timeout */
#define LIBCURL_DONE 1       /* of a message */
#define LIBCURL_CSELECT_IN 1 /* a socket is ready for this */
#define LIBCURL_CSELECT_OUT 2

/* Of a transfer; those that trying again does not mend. */
#define LIBCURL_BAD_CERT 58
#define LIBCURL_PEER_NOT_VERIFIED 60
#define LIBCURL_BAD_CA_FILE 77

struct libcurl_message {
    int msg;
    void *easy;
    union {
        void *whatever;
        int result;
    } data;
};

struct libcurl {
    void *library;
    int (*global_init)(long flags);
    const char *(*strerror)(int code);
    void *(*easy_init)(void);
    void (*easy_cleanup)(void *easy);
    int (*easy_setopt)(void *easy, int option, ...);
    int (*easy_getinfo)(void *easy, int info, ...);
    void *(*multi_init)(void);
    int (*multi_cleanup)(void *multi);
    int (*multi_setopt)(void *multi, int option, ...);
    int (*multi_add_handle)(void *multi, void *easy);
    int (*multi_remove_handle)(void *multi, void *easy);
    int (*multi_assign)(void *multi, int fd, void *of_socket);
    int (*multi_socket_action)(void *multi, int fd, int events, int *running);
    struct libcurl_message *(*multi_info_read)(void *multi, int *left);
    void *(*slist_append)(void *list, const char *text);
    void (*slist_free_all)(void *list);
};

/* Opens the library, which stays open: OpenSSL has handlers of exit. CDDP_E_NOT_FOUND, with how to get it. */
cddp_status libcurl_open(struct libcurl *c, struct cdi_error *err);

#endif
