/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How links are made. Names in the out-of-band exchange:
 *   node/N = "first rank, ranks" (by the first rank of node N)   nodes = "token, ranks of each node" (by rank 0)
 *   addr/R = addresses of rank R                                 broken = "status message" of a rank that failed
 * The rank on the lower node connects, so that no rank needs an address of node 0, which is often the endpoint's host
 * and may know only a loopback address of itself.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "worker/backend/cpu/net/tcp_listener.h"
#include "worker/backend/describe.h"
#include "worker/backend/who.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BROKEN "broken"
#define SLICE_MS 20
#define ASK_MS 300             /* between two checks for failed ranks while this rank waits for a name */
#define CONNECT_MS 3000        /* for one of several addresses, at first */
#define PATIENCE_MOST_MS 60000 /* the same, where a connection gets no answer */

/* ---------------------------------------------------------------------------------------- out-of-band exchange ---- */

void cdi_tcp_report_failure(const struct cdi_oob *oob, const struct cdi_error *why)
{
    cdi_oob_tell_cause(oob, BROKEN, why);
}

/* Returns an event that ends all waits. While links of the mesh are made, control sockets are read, too. */
static cddp_status tcp_check(struct cdi_tcp *tcp, struct cdi_error *err)
{
    cddp_status st = cdi_wait_check(tcp->wait, err);

    return st == CDDP_OK && tcp->making_mesh ? cdi_control_look(tcp, err) : st;
}

/* Has a rank failed to connect? Where the host of the keys has gone, no rank could tell, or find an address. */
static cddp_status tcp_check_peers(struct cdi_tcp *tcp, struct cdi_error *err)
{
    char text[CDI_SHM_TEXT];
    struct cdi_error why;
    cddp_status st = tcp_check(tcp, err);

    if (st == CDDP_OK && tcp->connecting != NULL)
        st = cdi_world_watch(tcp->connecting, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_oob_get_text(&tcp->oob, BROKEN, text, sizeof text, 0, &why);
    if (st == CDDP_OK)
        return cdi_oob_cause(text, err);
    return tcp->connecting != NULL && (st == CDDP_E_PEER || st == CDDP_E_CLOSED)
               ? cdi_fail_since(err, &why, "%s", why.msg)
               : CDDP_OK;
}

/* A peer that has left by another link can make no link any more: it would have left after this one was complete. */
static cddp_status check_not_left(const struct cdi_tcp *tcp, const struct cdi_link *l, struct cdi_error *err)
{
    const struct cdi_link *known = tcp->mesh[cdi_tcp_node_of(tcp, l->rank)];

    if (known == NULL || known == l || known->rank != l->rank || !cdi_link_gone(known))
        return CDDP_OK;
    return cdi_fail_by(err, cdi_wait_rank_of_job(tcp->wait, l->rank), CDDP_E_PEER, "%s " CDI_HAS_LEFT,
                       cdi_who(tcp->wait->ranks, l->rank).text);
}

/* Waits for the text under `name`. whose, number: its owner, for the error message. */
static cddp_status tcp_get_text(struct cdi_tcp *tcp, const char *name, const char *whose, int number, char *buf,
                                size_t cap, int64_t deadline_ms, struct cdi_error *err)
{
    int64_t begin_ms = cdi_now_ms();

    for (;;) {
        int64_t left = deadline_ms - cdi_now_ms();
        cddp_status st = cdi_oob_get_text(&tcp->oob, name, buf, cap, left < 1 ? 1 : left < ASK_MS ? left : ASK_MS, err);

        if (st != CDDP_E_TIMEOUT)
            return st;
        st = tcp_check_peers(tcp, err);
        if (st != CDDP_OK)
            return st;
        if (left <= ASK_MS)
            return cdi_fail(err, CDDP_E_TIMEOUT, "%s %d did not connect within %.4g s", whose, number,
                            (double)(cdi_now_ms() - begin_ms) / 1000);
    }
}

static void print_token(const struct cdi_tcp *tcp, char hex[2 * CDI_AUTH_HASH + 1])
{
    for (int i = 0; i < CDI_AUTH_HASH; i++)
        (void)snprintf(hex + (size_t)2 * i, 3, "%02x", tcp->token.key[i]);
}

static bool parse_token(struct cdi_tcp *tcp, const char *hex)
{
    for (int i = 0; i < CDI_AUTH_HASH; i++) {
        unsigned v;

        if (sscanf(hex + (size_t)2 * i, "%2x", &v) != 1)
            return false;
        tcp->token.key[i] = (uint8_t)v;
    }
    return true;
}

/* Rank 0: collects the nodes, checks that their ranks are in order, publishes the list. */
static cddp_status gather_nodes(struct cdi_tcp *tcp, char *text, size_t cap, int64_t deadline_ms, struct cdi_error *err)
{
    char hex[2 * CDI_AUTH_HASH + 1];
    size_t used;
    int next = 0;
    cddp_status st;

    st = cdi_auth_nonce(tcp->token.key, err);
    if (st != CDDP_OK)
        return st;
    print_token(tcp, hex);
    used = (size_t)snprintf(text, cap, "%s", hex);
    for (int n = 0; n < tcp->n_nodes; n++) {
        char name[32], value[64];
        int first, ranks;

        (void)snprintf(name, sizeof name, "node/%d", n);
        st = tcp_get_text(tcp, name, "node", n, value, sizeof value, deadline_ms, err);
        if (st != CDDP_OK)
            return st;
        if (sscanf(value, "%d %d", &first, &ranks) != 2 || ranks < 1 || first != next || ranks > tcp->size - next)
            return cdi_fail(
                err, CDDP_E_INVALID,
                "node %d (GROUP_RANK) begins with rank %d and not %d: ranks must be in the order of the nodes", n,
                first, next);
        next += ranks;
        used += (size_t)snprintf(text + used, cap - used, " %d", ranks);
    }
    if (next != tcp->size)
        return cdi_fail(err, CDDP_E_INVALID, "%d nodes have %d ranks in all, but WORLD_SIZE is %d", tcp->n_nodes, next,
                        tcp->size);
    return cdi_oob_set_text(&tcp->oob, "nodes", text, err);
}

static cddp_status parse_nodes(struct cdi_tcp *tcp, const char *text, struct cdi_error *err)
{
    const char *p = text + (size_t)2 * CDI_AUTH_HASH;
    int at = 0;

    if (strlen(text) < (size_t)2 * CDI_AUTH_HASH || !parse_token(tcp, text))
        return cdi_fail(err, CDDP_E_PROTOCOL, "cannot parse the list of nodes that rank 0 has sent");
    tcp->n_chains = tcp->size;
    for (int n = 0; n < tcp->n_nodes; n++) {
        char *end;
        long ranks = strtol(p, &end, 10);

        if (end == p || ranks < 1 || ranks > tcp->size - at)
            return cdi_fail(err, CDDP_E_PROTOCOL, "cannot parse the list of nodes that rank 0 has sent");
        p = end;
        tcp->first[n] = at;
        at += (int)ranks;
        tcp->n_chains = ranks < tcp->n_chains ? (int)ranks : tcp->n_chains;
        tcp->largest = ranks > tcp->largest ? (int)ranks : tcp->largest;
    }
    tcp->first[tcp->n_nodes] = at;
    return CDDP_OK;
}

static cddp_status learn_nodes(struct cdi_tcp *tcp, const struct cdi_world *w, int64_t deadline_ms,
                               struct cdi_error *err)
{
    size_t cap = 2 * CDI_AUTH_HASH + 16 + (size_t)tcp->n_nodes * 12;
    CDI_AUTOFREE char *text = malloc(cap);
    char name[32], value[64];
    cddp_status st = CDDP_OK;

    if (text == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d nodes", tcp->n_nodes);
    if (w->local_rank == 0) {
        (void)snprintf(name, sizeof name, "node/%d", w->node_rank);
        (void)snprintf(value, sizeof value, "%d %d", w->rank, w->local_size);
        st = cdi_oob_set_text(&tcp->oob, name, value, err);
    }
    if (st == CDDP_OK && w->rank == 0)
        st = gather_nodes(tcp, text, cap, deadline_ms, err);
    else if (st == CDDP_OK)
        st = tcp_get_text(tcp, "nodes", "rank", 0, text, cap, deadline_ms + CDI_TCP_SLACK_OP_MS,
                          err); /* rank 0 may wait, too */
    return st == CDDP_OK ? parse_nodes(tcp, text, err) : st;
}

/* ------------------------------------------------------------------------------------------------ connecting ---- */

/* Returns the timeout for error messages; the deadline was set a moment before the wait. */
static double seconds(int64_t begin_ms, int64_t deadline_ms)
{
    int64_t hundredths = (deadline_ms - begin_ms + 5) / 10;

    return (double)hundredths / 100;
}

/* The progress of an attempt; the most advanced one gives the best error message. */
enum how_far { NOT_CONNECTED, NOT_OURS, HUNG_UP, NO_ANSWER, CONNECTED };

struct attempt {
    enum how_far how_far;
    int errnum; /* of NOT_CONNECTED */
};

/* Meanwhile others may connect to this rank: nodes that connect with one another do not wait in a row. */
static bool tcp_wait_fd(struct cdi_tcp *tcp, int fd, short events, int64_t deadline_ms)
{
    struct cdi_error unused;

    while (cdi_now_ms() < deadline_ms && tcp_check(tcp, &unused) == CDDP_OK)
        if (cdi_listener_accept_or(tcp, fd, events))
            return true;
    return false;
}

/* Sends a frame, and receives the peer's. */
static enum how_far exchange_frames(struct cdi_tcp *tcp, int fd, const uint8_t *out, uint8_t *in, size_t len,
                                    int64_t deadline_ms)
{
    size_t got = 0;

    if (send(fd, out, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len)
        return HUNG_UP;
    while (got < len) {
        ssize_t n;

        if (!tcp_wait_fd(tcp, fd, POLLIN, deadline_ms))
            return NO_ANSWER;
        n = recv(fd, in + got, len - got, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return HUNG_UP;
        got += n > 0 ? (size_t)n : 0;
    }
    return CONNECTED;
}

/* Both sides say hello, and then prove that they have the token. */
static enum how_far introduce(struct cdi_tcp *tcp, int fd, struct cdi_link *l, enum cdi_tcp_channel channel,
                              int64_t deadline_ms)
{
    uint8_t out[CDI_TCP_HEADER + CDI_TCP_HELLO], in[CDI_TCP_HEADER + CDI_TCP_HELLO];
    struct cdi_tcp_hello mine, peer;
    enum how_far how_far;

    if (!cdi_tcp_make_hello(tcp, l->rank, channel, out, &mine))
        return HUNG_UP;
    how_far = exchange_frames(tcp, fd, out, in, sizeof out, deadline_ms);
    if (how_far != CONNECTED)
        return how_far;
    if (!cdi_tcp_check_hello(tcp, in, &peer) || peer.from != l->rank || peer.channel != channel)
        return NOT_OURS;
    cdi_tcp_make_proof(tcp, CDI_AUTH_CLIENT, &mine, peer.nonce, out);
    how_far = exchange_frames(tcp, fd, out, in, CDI_TCP_HEADER + CDI_TCP_PROOF, deadline_ms);
    if (how_far != CONNECTED)
        return how_far;
    if (!cdi_tcp_check_proof(tcp, CDI_AUTH_SERVER, &mine, peer.nonce, in))
        return NOT_OURS;
    cdi_tcp_name_link(tcp, l, &peer);
    return CONNECTED;
}

/* Makes the socket that is dialled. A child that is forked from now on closes its copy. */
static int open_dialled(struct cdi_tcp *tcp, int family, int *errnum)
{
    int fd;

    (void)pthread_mutex_lock(&tcp->lock);
    fd = tcp->dialled = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *errnum = errno;
    (void)pthread_mutex_unlock(&tcp->lock);
    return fd;
}

static void close_dialled(struct cdi_tcp *tcp)
{
    int fd = tcp->dialled;

    cdi_tcp_set_socket(tcp, &tcp->dialled, -1);
    if (fd >= 0)
        (void)close(fd);
}

/* Connects tcp->dialled. Sets *errnum to the reason of a failure. */
static bool try_connect(struct cdi_tcp *tcp, const struct cdi_address *a, int64_t deadline_ms, int *errnum)
{
    int fd = open_dialled(tcp, a->u.any.sa_family, errnum);
    socklen_t len = sizeof *errnum;

    if (fd < 0)
        return false;
    cdi_tcp_set_options(fd);
    *errnum = connect(fd, &a->u.any, a->len) == 0 ? 0 : errno;
    if (*errnum == EINPROGRESS) {
        *errnum = ETIMEDOUT;
        if (tcp_wait_fd(tcp, fd, POLLOUT, deadline_ms))
            (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, errnum, &len);
    }
    return *errnum == 0;
}

/* Connect both sockets to one address. */
static struct attempt connect_at(struct cdi_tcp *tcp, const struct cdi_address *a, struct cdi_link *l, bool pair,
                                 int64_t deadline_ms)
{
    struct attempt try = {.how_far = CONNECTED};

    for (int k = 0; k < 2 && try.how_far == CONNECTED; k++) {
        enum cdi_tcp_channel channel = (enum cdi_tcp_channel)((pair ? CDI_TCP_PAIR_DATA : CDI_TCP_DATA) + k);

        try.how_far = try_connect(tcp, a, deadline_ms, &try.errnum)
                          ? introduce(tcp, tcp->dialled, l, channel, deadline_ms)
                          : NOT_CONNECTED;
        if (try.how_far == CONNECTED)
            cdi_tcp_move_socket(tcp, k == 0 ? &l->data : &l->control, &tcp->dialled);
        else
            close_dialled(tcp);
    }
    if (try.how_far != CONNECTED && l->data >= 0) {
        int dead = l->data;

        cdi_tcp_set_socket(tcp, &l->data,
                           -1); /* before the close: a child that is forked now closes the socket in the link */
        (void)close(dead);
    }
    return try;
}

/* Tries all addresses of the rank in turn, each for at most patience_ms; *best is the most advanced attempt. */
static void connect_round(struct cdi_tcp *tcp, const char *text, struct cdi_link *l, bool pair, int64_t patience_ms,
                          int64_t deadline_ms, struct attempt *best)
{
    bool only_one = strchr(text, ' ') == NULL;
    char tried[CDI_TCP_ADDRESS_TEXT], *save = NULL;

    *best = (struct attempt){.how_far = NOT_CONNECTED, .errnum = ETIMEDOUT};
    (void)snprintf(tried, sizeof tried, "%s", text);
    for (char *one = strtok_r(tried, " ", &save); one != NULL && best->how_far != CONNECTED;
         one = strtok_r(NULL, " ", &save)) {
        int64_t until_ms = cdi_now_ms() + patience_ms;
        struct cdi_address a;
        struct attempt try;

        if (!cdi_address_parse(one, &a))
            continue;
        try = connect_at(tcp, &a, l, pair, only_one || until_ms > deadline_ms ? deadline_ms : until_ms);
        if (try.how_far >= best->how_far)
            *best = try;
    }
}

/* Have descriptors been missing since then for so long, or until the deadline, that the wait is in vain? */
static bool is_full_for_good(int64_t since_ms, int64_t now_ms, int64_t deadline_ms)
{
    return since_ms != 0 && (now_ms >= since_ms + CDI_TCP_FULL_MS || now_ms >= deadline_ms);
}

static cddp_status too_many_files(const char *who, struct cdi_error *err)
{
    return cdi_fail_errno(err, EMFILE,
                          "no connection with %s: this rank needs two more descriptors; raise the limit of open "
                          "files (ulimit -n)",
                          who);
}

/* Reports that the time is over. */
static cddp_status not_connected(const struct cdi_tcp *tcp, const struct cdi_link *l, const char *text,
                                 const struct attempt *best, double waited_s, struct cdi_error *err)
{
    const struct cdi_who who = cdi_who(tcp->wait->ranks, l->rank);
    int of_job = cdi_wait_rank_of_job(tcp->wait, l->rank);
    const char *why = best->how_far == NOT_OURS ? "another program answers there" : strerror(best->errnum);

    if (best->how_far == NO_ANSWER)
        return cdi_fail_by(err, of_job, CDDP_E_TIMEOUT, "%s did not arrive within %.4g s: no answer yet at %.200s",
                           who.text, waited_s, text);
    if (best->how_far == HUNG_UP)
        return cdi_fail_by(err, of_job, CDDP_E_TIMEOUT,
                           "cannot connect to %s at %.200s: it closes the connection without an answer; check "
                           "whether it has failed, "
                           "and whether another program connects to its port",
                           who.text, text);
    return cdi_fail_by(
        err, of_job, CDDP_E_TIMEOUT,
        "cannot connect to %s at %.200s: %s%s; if this is the wrong network, set " CDI_NET_IFNAME_ENV " on its node",
        who.text, text, why,
        best->how_far == NOT_CONNECTED && best->errnum == ECONNREFUSED ? ", so the rank has not started or has exited"
                                                                       : "");
}

/*
 * A rank that is still busy answers late. So all addresses are tried repeatedly, for twice as long where a connection
 * gets no answer, until the right address answers.
 */
cddp_status cdi_tcp_connect(struct cdi_tcp *tcp, struct cdi_link *l, bool pair, int64_t deadline_ms,
                            struct cdi_error *err)
{
    char name[32], text[CDI_TCP_ADDRESS_TEXT];
    int64_t begin_ms = cdi_now_ms(), patience_ms = CONNECT_MS, full_since_ms = 0;
    struct attempt best;
    cddp_status st;

    (void)snprintf(name, sizeof name, "addr/%d", l->rank);
    st = tcp_get_text(tcp, name, "rank", l->rank, text, sizeof text, deadline_ms, err);
    while (st == CDDP_OK) {
        connect_round(tcp, text, l, pair, patience_ms, deadline_ms, &best);
        if (best.how_far == CONNECTED)
            return CDDP_OK;
        st = tcp_check_peers(tcp, err);
        if (st == CDDP_OK)
            st = check_not_left(tcp, l, err);
        if (best.how_far != NOT_CONNECTED || !cdi_tcp_is_full(best.errnum))
            full_since_ms = 0;
        else if (full_since_ms == 0)
            full_since_ms = cdi_now_ms();
        if (st == CDDP_OK && is_full_for_good(full_since_ms, cdi_now_ms(), deadline_ms - SLICE_MS))
            return too_many_files(cdi_who(tcp->wait->ranks, l->rank).text, err);
        if (st == CDDP_OK && cdi_now_ms() + SLICE_MS >= deadline_ms)
            return not_connected(tcp, l, text, &best, seconds(begin_ms, deadline_ms), err);
        if (best.how_far == NO_ANSWER && patience_ms < PATIENCE_MOST_MS)
            patience_ms *= 2;
        (void)poll(NULL, 0, SLICE_MS);
    }
    return st;
}

cddp_status cdi_tcp_await_connection(struct cdi_tcp *tcp, const struct cdi_link *l, int64_t deadline_ms,
                                     struct cdi_error *err)
{
    int64_t look_at_ms = cdi_now_ms() + ASK_MS, begin_ms = cdi_now_ms();

    while (l->data < 0 || l->control < 0) {
        int64_t now = cdi_now_ms();
        cddp_status st = tcp_check(tcp, err);

        if (st == CDDP_OK)
            st = check_not_left(tcp, l, err);
        if (st == CDDP_OK && now >= look_at_ms) {
            st = tcp_check_peers(tcp, err);
            /* With a slow store a check takes long, and no connection is accepted meanwhile. */
            look_at_ms = cdi_now_ms() + ASK_MS + 4 * (cdi_now_ms() - now);
        }
        if (st != CDDP_OK)
            return st;
        if (is_full_for_good(tcp->listener.full_since_ms, now, deadline_ms))
            return too_many_files(cdi_who(tcp->wait->ranks, l->rank).text, err);
        if (now >= deadline_ms)
            return cdi_fail_by(err, cdi_wait_rank_of_job(tcp->wait, l->rank), CDDP_E_TIMEOUT,
                               "%s did not arrive within %.4g s: it has not connected yet",
                               cdi_who(tcp->wait->ranks, l->rank).text, seconds(begin_ms, deadline_ms));
        cdi_listener_accept(tcp);
    }
    return CDDP_OK;
}

cddp_status cdi_tcp_pair(struct cdi_tcp *tcp, int rank, struct cdi_link **out, struct cdi_error *err)
{
    struct cdi_link *l = tcp->pair[rank] != NULL ? tcp->pair[rank] : cdi_tcp_new_pair(tcp, rank);
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), tcp->wait->timeout_ms);
    cddp_status st = CDDP_OK;

    if (l == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a connection");
    if (l->data < 0 || l->control < 0) {
        cdi_wait_note_peer(tcp->wait, rank);
        st = tcp->rank < rank ? cdi_tcp_connect(tcp, l, true, deadline_ms, err)
                              : cdi_tcp_await_connection(tcp, l, deadline_ms, err);
        cdi_wait_note_peer(tcp->wait, -1);
        if (st == CDDP_OK)
            cdi_control_add(tcp, l);
    }
    if (st == CDDP_OK)
        *out = l;
    return st;
}

/* ------------------------------------------------------------------------------------------ create and destroy ---- */

static void close_link(struct cdi_link *l)
{
    if (l->data >= 0)
        (void)close(l->data);
    if (l->control >= 0)
        (void)close(l->control);
    l->data = l->control = -1;
}

void cdi_tcp_destroy(struct cdi_tcp *tcp)
{
    if (tcp == NULL)
        return;
    cdi_tcp_fork_unregister(tcp);
    cdi_control_stop(tcp);
    cdi_tcp_send_goodbye(tcp);
    for (int i = 0; i < cdi_tcp_n_links(tcp); i++) {
        struct cdi_link *l = cdi_tcp_nth_link(tcp, i);

        if (l == NULL)
            continue;
        close_link(l);
        if (l != &tcp->prev && l != &tcp->next)
            free(l);
    }
    for (int i = 0; i < tcp->listener.n_fds; i++)
        (void)close(tcp->listener.fd[i]);
    for (int i = 0; i < CDI_TCP_PENDING; i++)
        if (tcp->listener.pending[i].fd >= 0)
            (void)close(tcp->listener.pending[i].fd);
    cdi_abort_fd_stop(&tcp->abort_fd);
    (void)pthread_mutex_destroy(&tcp->lock);
    cdi_secret_release(&tcp->token);
    free(tcp->polled);
    free(tcp->links);
    free(tcp->node_at);
    free(tcp->progress);
    free(tcp->pair);
    free(tcp->mesh);
    free(tcp->first);
    free(tcp->ring);
    free(tcp);
}

static struct cdi_tcp *new_tcp(const struct cdi_world *w, struct cdi_wait *wait)
{
    struct cdi_tcp *tcp = calloc(1, sizeof *tcp);

    if (tcp == NULL)
        return NULL;
    (void)pthread_mutex_init(&tcp->lock, NULL);
    tcp->rank = w->rank;
    tcp->size = w->size;
    tcp->local_rank = w->local_rank;
    tcp->node = w->node_rank;
    tcp->n_nodes = w->n_nodes;
    tcp->wait = wait;
    tcp->oob = w->keys;
    tcp->dialled = -1;
    tcp->prev.rank = tcp->prev.data = tcp->prev.control = -1;
    tcp->next.rank = tcp->next.data = tcp->next.control = -1;
    for (int i = 0; i < CDI_TCP_PENDING; i++)
        tcp->listener.pending[i].fd = -1;
    tcp->abort_fd.fd = tcp->control.epoll = tcp->control.wake_fd = -1;
    tcp->polled = calloc(2 * (size_t)w->n_nodes + 1, sizeof *tcp->polled);
    tcp->links = calloc((size_t)w->n_nodes, sizeof(struct cdi_link *));
    tcp->node_at = calloc((size_t)w->n_nodes + 1, sizeof *tcp->node_at);
    tcp->progress = calloc((size_t)w->n_nodes, sizeof *tcp->progress);
    tcp->mesh = calloc((size_t)w->n_nodes, sizeof(struct cdi_link *));
    tcp->first = calloc((size_t)w->n_nodes + 1, sizeof *tcp->first);
    tcp->pair = calloc((size_t)w->size, sizeof(struct cdi_link *));
    if (tcp->polled == NULL || tcp->links == NULL || tcp->node_at == NULL || tcp->progress == NULL ||
        tcp->mesh == NULL || tcp->first == NULL || tcp->pair == NULL) {
        cdi_tcp_destroy(tcp);
        return NULL;
    }
    return tcp;
}

/* Links exist for the local ranks that every node has. */
static cddp_status tcp_make_links(struct cdi_tcp *tcp, int local_rank, int64_t deadline_ms, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (local_rank >= tcp->n_chains)
        return CDDP_OK;
    tcp->ring = malloc((size_t)CDI_TCP_RING * CDI_SHM_PIECE_BYTES);
    if (tcp->ring == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for pieces in transit");
    (void)pthread_mutex_lock(&tcp->lock);
    if (tcp->node > 0) {
        tcp->prev.rank = tcp->first[tcp->node - 1] + local_rank;
        tcp->mesh[tcp->node - 1] = &tcp->prev;
    }
    if (tcp->node + 1 < tcp->n_nodes) {
        tcp->next.rank = tcp->first[tcp->node + 1] + local_rank;
        tcp->mesh[tcp->node + 1] = &tcp->next;
    }
    (void)pthread_mutex_unlock(&tcp->lock);
    if (tcp->node + 1 < tcp->n_nodes) {
        st = cdi_tcp_connect(tcp, &tcp->next, false, deadline_ms, err);
        if (st == CDDP_OK)
            cdi_control_add(tcp, &tcp->next);
    }
    if (st == CDDP_OK && tcp->node > 0) {
        st = cdi_tcp_await_connection(tcp, &tcp->prev, deadline_ms, err);
        if (st == CDDP_OK)
            cdi_control_add(tcp, &tcp->prev);
    }
    return st;
}

cddp_status cdi_tcp_create(struct cdi_tcp **out, const struct cdi_world *world, struct cdi_wait *wait,
                           const struct cdi_address *reached, struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), world->init_timeout_ms);
    struct cdi_tcp *tcp = new_tcp(world, wait);
    cddp_status st;

    if (tcp == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", world->size);
    tcp->connecting = world;
    cdi_tcp_fork_register(tcp);
    cdi_abort_fd_start(&tcp->abort_fd, wait);
    cdi_control_start(tcp);
    st = learn_nodes(tcp, world, deadline_ms, err);
    if (st == CDDP_OK && tcp->node > 0)
        st = cdi_listener_open(tcp, reached, err);
    if (st == CDDP_OK)
        st = tcp_make_links(tcp, world->local_rank, deadline_ms, err);
    tcp->connecting = NULL;
    if (st != CDDP_OK) {
        cdi_tcp_destroy(tcp);
        return st;
    }
    *out = tcp;
    return CDDP_OK;
}
