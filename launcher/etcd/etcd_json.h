/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of the election and their answers, as etcd's JSON gateway has them (etcd 3.4 and later: POST /v3/...;
 * keys and values in base64, 64-bit numbers as strings). Answers are bytes from outside. Pure. One thread at a time.
 *
 * Under PREFIX/RUN_ID are two keys: "host", with the lease of the host, and "over", with a separate lease that nobody
 * renews, after the job's end. The value of "host" is {"cddprun":1,"addr":"10.0.0.1","port":40123}.
 */
#ifndef ETCD_JSON_H
#define ETCD_JSON_H

#include "common/buf.h"
#include "common/error.h"
#include "launcher/etcd/elect.h"

#define ETCD_ANSWER_MAX (64u * 1024) /* bytes of an answer; more is an error */
#define ETCD_TOKEN_MAX 1024

/* The parts of a request that the election itself does not decide. */
struct etcd_facts {
    char key_host[600], key_over[600];
    char addr[ELECT_ADDR_MAX]; /* of this agent's server */
    uint16_t port;
    int64_t tomb_ms; /* how long "over" stays */
};

/* Sets the keys. CDDP_E_INVALID if they would be too long. */
cddp_status etcd_set_keys(struct etcd_facts *f, const char *prefix, const char *run_id, struct cdi_error *err);
/* Appends the body of a request; returns its path, such as "/v3/kv/range". NULL: out of memory. */
const char *etcd_request(enum elect_ask ask, const struct elect *e, const struct etcd_facts *f, struct cdi_buf *body);
/* Reads the answer to it. Any bytes give an answer; a->text points into `text` (400 bytes). */
void etcd_read_answer(enum elect_ask ask, int http_status, const char *bytes, size_t n, struct elect_answer *a,
                      char *text);
/* Returns true if etcd wants another token: the old one has ended, or there was none. */
bool etcd_wants_token(int http_status, const char *bytes, size_t n);

#define ETCD_LOGIN_PATH "/v3/auth/authenticate"

/* Appends the body of the request for a token. Returns false if out of memory. */
bool etcd_login_request(const char *user, const char *password, struct cdi_buf *body);
/* Reads the token, ETCD_TOKEN_MAX bytes at most. Returns false with a->text as above. */
bool etcd_read_token(int http_status, const char *bytes, size_t n, char *token, struct elect_answer *a, char *text);

/* Appends base64 with padding (RFC 4648, section 4). Returns false if out of memory. */
bool etcd_base64(struct cdi_buf *out, const void *bytes, size_t n);
/* Decodes base64 with padding; returns the number of bytes, or -1 if it is not valid or longer than cap. */
long etcd_unbase64(uint8_t *out, size_t cap, const char *text);

#endif
