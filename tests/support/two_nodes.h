/* SPDX-License-Identifier: Apache-2.0 */
/* A job of two nodes over a real session, without sockets: the test plays the agents. */
#ifndef TWO_NODES_H
#define TWO_NODES_H

#include "protocol/bulk.h"
#include "protocol/frame.h"
#include "rendezvous/round/session.h"

#include <criterion/criterion.h>
#include <string.h>

/* An agent, the first member of the test's own struct for it. */
struct two_nodes_agent {
    struct cdi_buf in, got; /* to the session, and from it */
    uint32_t peer;
};

static inline void two_nodes_on_send(void *conn, const void *bytes, size_t len)
{
    cr_assert_eq(cdi_buf_append(&((struct two_nodes_agent *)conn)->got, bytes, len), CDDP_OK);
}

static inline void two_nodes_on_close(void *conn, const char *why)
{
    (void)conn;
    cr_assert_fail("closed: %s", why);
}

static inline void two_nodes_on_rename(void *conn, uint32_t peer)
{
    ((struct two_nodes_agent *)conn)->peer = peer;
}

static inline void two_nodes_on_end_keys(void *arg)
{
    (void)arg;
}

static inline void two_nodes_on_random(void *bytes, size_t len)
{
    memset(bytes, 7, len);
}

/* Creates the session; bulk and queued (NULL: none) as in session_ops. */
static inline struct session *two_nodes_session(void (*bulk)(void *arg, uint32_t peer, uint16_t type,
                                                             const void *payload, size_t len),
                                                size_t (*queued)(void *conn))
{
    const struct session_ops ops = {.send = two_nodes_on_send,
                                    .close_conn = two_nodes_on_close,
                                    .renumber = two_nodes_on_rename,
                                    .end_keys = two_nodes_on_end_keys,
                                    .random = two_nodes_on_random,
                                    .bulk = bulk,
                                    .queued = queued};
    const struct session_options opt = {
        .round = {.run_id = "job", .min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .join_timeout_ms = 60000},
        .lease_ms = 15000,
        .hello_ms = 5000};
    struct session *s;

    cr_assert_eq(session_create(&s, &opt, &ops, 0, NULL), CDDP_OK);
    return s;
}

static inline void two_nodes_tell(struct session *s, struct two_nodes_agent *a, const struct cdi_msg *m, int64_t now_ms)
{
    cr_assert_eq(cdi_msg_encode(m, &a->in, NULL), CDDP_OK);
    cr_assert_eq(session_feed(s, a->peer, &a->in, now_ms, 1000, NULL), CDDP_OK);
}

static inline void two_nodes_send(struct session *s, struct two_nodes_agent *a, uint16_t type, const void *payload,
                                  size_t len, int64_t now_ms)
{
    cr_assert_eq(cdi_frame_put(&a->in, type, payload, len), CDDP_OK);
    cr_assert_eq(session_feed(s, a->peer, &a->in, now_ms, 1000, NULL), CDDP_OK);
}

/* Lets an agent with n_procs workers join; `hangs` has the members of JOIN about hangs, NULL: all 0. */
static inline void two_nodes_join(struct session *s, struct two_nodes_agent *a, int32_t node_rank, uint32_t n_procs,
                                  const struct cdi_msg_join *hangs)
{
    struct cdi_msg m = {.type = CDI_MSG_JOIN,
                        .u.join = {.version = CDI_CONTROL_VERSION,
                                   .run_id = "job",
                                   .node_rank = node_rank,
                                   .n_procs = n_procs,
                                   .min_nodes = 2,
                                   .max_nodes = 2,
                                   .max_restarts = 1,
                                   .round = -1}};

    (void)snprintf(m.u.join.host, sizeof m.u.join.host, "node%d", (int)node_rank);
    if (hangs != NULL) {
        m.u.join.hang_warning_ms = hangs->hang_warning_ms;
        m.u.join.hang_timeout_ms = hangs->hang_timeout_ms;
        m.u.join.on_hang = hangs->on_hang;
    }
    cdi_buf_init(&a->in, 0);
    cdi_buf_init(&a->got, 0);
    cr_assert_eq(session_attach(s, a, 0, &a->peer), CDDP_OK);
    two_nodes_tell(s, a, &m, 0);
}

static inline void two_nodes_release(struct two_nodes_agent *a)
{
    cdi_buf_release(&a->in);
    cdi_buf_release(&a->got);
}

#endif
