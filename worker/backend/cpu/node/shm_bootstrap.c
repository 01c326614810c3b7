/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All messages have one size and use SOCK_SEQPACKET, so that none is ever partial. The control segment (ranks are local
 * ranks):
 *     rank r -> 0: hello    0 -> r: segment (descriptor)    r -> 0: mapped?    0 -> r: all mapped?
 * The parts of a region: each rank sends its descriptor to rank 0, which passes one after another to all, so that no
 * rank holds more than one descriptor at a time, for any number of ranks.
 */
#include "worker/backend/cpu/node/shm_bootstrap.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/rank_list.h"
#include "worker/backend/who.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FD_EXCHANGE_MAGIC 0x43444448u
#define SOCKET_NAME "shm"   /* by node: "+name of the first rank's socket", or why there is none */
#define CAUSE_NAME "broken" /* the same: why it failed, for ranks whose connection ends */
#define SLICE_MS 20
#define SLACK_MS 1000
#define ASK_MS 200   /* between two checks of the members of a part, before the first one's socket exists */
#define WORD_MS 1000 /* that the report of a death may arrive after the end of a connection */

struct message {
    uint32_t magic;
    int32_t rank, size;
    int32_t status;
    uint64_t bytes;
    char text[CDI_SHM_TEXT];
};

/* The deadline, and the other events that end the wait. */
struct deadline {
    int64_t deadline_ms;
    const struct cdi_flight *flight;
    const struct cdi_wait *wait;        /* NULL before there is a segment */
    const struct cdi_world *connecting; /* then: the world that connects */
};

static cddp_status fdx_check(const struct deadline *p, struct cdi_error *err)
{
    cddp_status st = p->wait != NULL ? cdi_wait_check(p->wait, err) : cdi_flight_check(p->flight, err);

    if (st == CDDP_OK && p->connecting != NULL)
        st = cdi_world_watch(p->connecting, err);
    if (st == CDDP_OK && cdi_now_ms() >= p->deadline_ms)
        return cdi_fail(err, CDDP_E_TIMEOUT, "timed out");
    return st;
}

static cddp_status fdx_wait_fd(int fd, short events, const struct deadline *p, struct cdi_error *err)
{
    for (;;) {
        struct pollfd pfd = {.fd = fd, .events = events};
        int n = poll(&pfd, 1, SLICE_MS);
        cddp_status st;

        if (n > 0)
            return CDDP_OK;
        if (n < 0 && errno != EINTR)
            return cdi_fail_errno(err, errno, "poll");
        st = fdx_check(p, err);
        if (st != CDDP_OK)
            return st;
    }
}

/* Before Linux 6.2 (net/unix/af_unix.c, unix_dgram_sendmsg) a close during a send gives the last two. */
static bool is_end(int errnum)
{
    return errnum == EPIPE || errnum == ECONNRESET || errnum == ECONNREFUSED || errnum == ENOTCONN;
}

/* Sends m, and fd unless it is negative. */
static cddp_status fdx_send(int sock, const struct message *m, int fd, const struct deadline *p, struct cdi_error *err)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)m, .iov_len = sizeof *m};
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        struct cmsghdr *c;

        msg.msg_control = control.buf;
        msg.msg_controllen = sizeof control.buf;
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    for (;;) {
        cddp_status st;

        if (sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return CDDP_OK;
        if (errno == EINTR)
            continue;
        if (is_end(errno))
            return cdi_fail(err, CDDP_E_PEER, "the connection ended");
        if (errno != EAGAIN && errno != ETOOMANYREFS)
            return cdi_fail_errno(err, errno, "cannot send to a rank of this node");
        if (errno == ETOOMANYREFS) { /* too many descriptors are in transit; they will arrive */
            const struct timespec ms = {.tv_nsec = 1000000};

            (void)nanosleep(&ms, NULL);
            st = fdx_check(p, err);
        } else {
            st = fdx_wait_fd(sock, POLLOUT, p, err);
        }
        if (st != CDDP_OK)
            return st;
    }
}

/* Receives m. *fd (may be NULL) is its descriptor, or -1: there is none, or this process has no free descriptor. */
static cddp_status fdx_recv(int sock, struct message *m, int *fd, const struct deadline *p, struct cdi_error *err)
{
    struct iovec iov = {.iov_base = m, .iov_len = sizeof *m};
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof control.buf};
    CDI_AUTOCLOSE int got = -1;
    ssize_t n;

    do {
        cddp_status st = fdx_wait_fd(sock, POLLIN, p, err);

        if (st != CDDP_OK)
            return st;
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n == 0 || (n < 0 && is_end(errno)))
        return cdi_fail(err, CDDP_E_PEER, "the connection ended");
    if (n < 0)
        return cdi_fail_errno(err, errno, "cannot receive from a rank of this node");
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(&got, CMSG_DATA(c), sizeof got);
    if ((size_t)n != sizeof *m || m->magic != FD_EXCHANGE_MAGIC)
        return cdi_fail(err, CDDP_E_PROTOCOL, "a rank of this node sent unexpected data");
    m->text[sizeof m->text - 1] = '\0';
    if (fd != NULL)
        *fd = cdi_steal_fd(&got);
    return CDDP_OK;
}

static struct message fdx_message(int rank, int size, cddp_status st, const struct cdi_error *err)
{
    struct message m = {.magic = FD_EXCHANGE_MAGIC, .rank = rank, .size = size, .status = st};

    if (st != CDDP_OK)
        (void)snprintf(m.text, sizeof m.text, "%.500s", err->msg);
    return m;
}

static bool same_user(int sock)
{
    struct ucred who;
    socklen_t len = sizeof who;

    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == geteuid();
}

static socklen_t abstract_address(struct sockaddr_un *a, const char *name)
{
    size_t len = strlen(name);

    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    memcpy(a->sun_path + 1, name, len); /* a first byte of 0: no file */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

void cdi_oob_tell_cause(const struct cdi_oob *oob, const char *name, const struct cdi_error *why)
{
    char text[CDI_SHM_TEXT];

    (void)snprintf(text, sizeof text, "%d %d %.480s", (int)why->status, why->blamed, why->msg);
    (void)cdi_oob_set_text(oob, name, text, NULL); /* best effort: without it the others run into their deadline */
}

/* The names of one node. */
struct names {
    char socket[32], cause[32];
};

static struct names names_of(const struct cdi_world *world)
{
    struct names n;

    (void)snprintf(n.socket, sizeof n.socket, SOCKET_NAME "/%d", world->node_rank);
    (void)snprintf(n.cause, sizeof n.cause, CAUSE_NAME "/%d", world->node_rank);
    return n;
}

cddp_status cdi_oob_cause(const char *text, struct cdi_error *err)
{
    int st = 0, blamed = 0, at = 0;

    if (sscanf(text, "%d %d %n", &st, &blamed, &at) < 2)
        blamed = at = 0;
    return cdi_fail_told(err, blamed, st < 0 ? (cddp_status)st : CDDP_E_PROTOCOL, text + at);
}

/*
 * A rank of this node is gone. It may have left because it heard of a death before this rank, or be dead, which the
 * agent or the parent communicator report a moment later. Returns the error of the first report of all these; CDDP_OK:
 * there was none within a second.
 */
static cddp_status fdx_await_word(const struct cdi_world *world, const struct deadline *p, struct cdi_error *err)
{
    const struct names names = names_of(world);
    const struct deadline word = {
        .deadline_ms = cdi_now_ms() + WORD_MS, .flight = p->flight, .connecting = p->connecting};
    char text[CDI_SHM_TEXT];

    for (;;) {
        struct cdi_error why;
        cddp_status st = fdx_check(&word, &why);

        if (st != CDDP_OK && st != CDDP_E_TIMEOUT)
            return cdi_fail_since(err, &why, "%s", why.msg);
        if (cdi_oob_get_text(&world->keys, names.cause, text, sizeof text, 0, NULL) == CDDP_OK)
            return cdi_oob_cause(text, err);
        if (st != CDDP_OK)
            return CDDP_OK;
        (void)poll(NULL, 0, SLICE_MS);
    }
}

/* ---------------------------------------------------------------------------------------------- the first rank ---- */

static cddp_status fdx_listen(char name[64], int *out, int backlog, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un a;
    uint64_t random[2];
    socklen_t len;

    if (fd < 0)
        return cdi_fail_errno(err, errno, "cannot create a socket");
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return cdi_fail_errno(err, errno, "cannot get random bytes");
    (void)snprintf(name, 64, "cddp-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    len = abstract_address(&a, name);
    if (bind(fd, (struct sockaddr *)&a, len) != 0 || listen(fd, backlog) != 0)
        return cdi_fail_errno(err, errno, "cannot listen on an abstract socket");
    *out = cdi_steal_fd(&fd);
    return CDDP_OK;
}

static cddp_status fdx_welcome(struct cdi_shm *s, int sock, int memfd, const struct deadline *p, struct cdi_error *err)
{
    struct message m;
    struct deadline soon = *p;
    cddp_status st;

    if (!same_user(sock))
        return CDDP_E_PROTOCOL;
    soon.deadline_ms = cdi_now_ms() + 5000;
    st = fdx_recv(sock, &m, NULL, soon.deadline_ms < p->deadline_ms ? &soon : p, err);
    if (st != CDDP_OK)
        return st;
    if (m.size != s->size || m.rank <= 0 || m.rank >= s->size || s->socks[m.rank] >= 0)
        return CDDP_E_PROTOCOL;
    st = fdx_send(sock, &(struct message){.magic = FD_EXCHANGE_MAGIC, .size = s->size, .bytes = s->bytes}, memfd, p,
                  err);
    if (st == CDDP_OK)
        s->socks[m.rank] = sock;
    return st;
}

/* Reports the ranks that are missing. */
static cddp_status fdx_missing(const struct cdi_shm *s, const struct cdi_world *world, struct cdi_error *err)
{
    struct cdi_rank_list missing = {0};
    int first = 0;

    for (int r = 1; r < s->size; r++)
        if (s->socks[r] < 0) {
            cdi_rank_list_add(&missing, s->first + r);
            first = first == 0 ? r : first;
        }
    return cdi_fail_by(err, cdi_rank_of_job(world, s->first + first), CDDP_E_TIMEOUT,
                       "%d of %d ranks did not take part in the shared-memory setup within %.4g s: %s%s", missing.n,
                       s->size, (double)world->init_timeout_ms / 1000, missing.text,
                       cdi_who_of_job(world->ranks, &missing).text);
}

static cddp_status fdx_accept_all(struct cdi_shm *s, int listener, int memfd, const struct cdi_world *world,
                                  const struct deadline *p, struct cdi_error *err)
{
    for (int n = 1; n < s->size;) {
        struct deadline slice = *p;
        const struct names names = names_of(world);
        char cause[CDI_SHM_TEXT];
        cddp_status st;
        int sock;

        slice.deadline_ms = cdi_now_ms() + 5 * SLICE_MS;
        if (slice.deadline_ms > p->deadline_ms)
            slice.deadline_ms = p->deadline_ms;
        st = fdx_wait_fd(listener, POLLIN, &slice, err);
        if (st == CDDP_E_TIMEOUT) {
            if (cdi_oob_get_text(&world->keys, names.cause, cause, sizeof cause, 0, err) == CDDP_OK)
                return cdi_oob_cause(cause, err);
            if (cdi_now_ms() >= p->deadline_ms)
                return fdx_missing(s, world, err);
            continue;
        }
        if (st != CDDP_OK)
            return st;
        sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (sock < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
            continue;
        if (sock < 0)
            return cdi_fail_errno(err, errno, "cannot accept the connection of a rank of this node");
        if (fdx_welcome(s, sock, memfd, p, err) == CDDP_OK)
            n++;
        else
            (void)close(sock); /* not a rank of this node, or it died: then the deadline reports it */
    }
    return CDDP_OK;
}

/* Collects "mapped" from all ranks. Returns the first failure. */
static cddp_status fdx_agree(struct cdi_shm *s, const struct cdi_world *world, const struct deadline *p,
                             struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (int r = 1; r < s->size && st == CDDP_OK; r++) {
        int of_job = cdi_rank_of_job(world, s->first + r);
        struct message m;
        struct cdi_error why;
        cddp_status word;

        st = fdx_recv(s->socks[r], &m, NULL, p, &why);
        if (st == CDDP_E_PEER && why.blamed <= 0 && (word = fdx_await_word(world, p, err)) != CDDP_OK)
            st = word;
        else if (st != CDDP_OK && why.blamed > 0) /* another event has ended the wait */
            *err = why;
        else if (st != CDDP_OK)
            (void)cdi_fail_by(err, of_job, st, "%s exited during the shared-memory setup: %.800s",
                              cdi_who(world->ranks, s->first + r).text, why.msg);
        else if (m.status != CDDP_OK)
            st = cdi_fail_by(err, of_job, (cddp_status)m.status, "%s: %s", cdi_who(world->ranks, s->first + r).text,
                             m.text);
    }
    return st;
}

static void fdx_tell_all(struct cdi_shm *s, const struct deadline *p, cddp_status st, const struct cdi_error *err)
{
    struct message m = fdx_message(0, s->size, st, err);

    for (int r = 1; r < s->size; r++)
        if (s->socks[r] >= 0)
            (void)fdx_send(s->socks[r], &m, -1, p, NULL); /* the next wait notices a rank that died meanwhile */
}

static cddp_status fdx_first_rank(struct cdi_shm *s, const struct cdi_world *world, const struct deadline *p,
                                  struct cdi_error *err)
{
    CDI_AUTOCLOSE int memfd = -1;
    CDI_AUTOCLOSE int listener = -1;
    const struct names names = names_of(world);
    char name[64], text[CDI_SHM_TEXT];
    void *segment;
    cddp_status st = cdi_shm_memfd("cddp-control", s->bytes, false, &memfd, err);

    if (st == CDDP_OK)
        st = cdi_shm_map(&s->mapper, memfd, s->bytes, &segment, err);
    if (st == CDDP_OK) {
        cdi_shm_format(s, segment);
        cdi_shm_hold(s, cdi_steal_fd(&memfd));
        st = fdx_listen(name, &listener, s->size, err);
    }
    if (st != CDDP_OK) {
        (void)cdi_error_wrap(err, "%s", cdi_who(world->ranks, world->rank).text);
        cdi_oob_tell_cause(&world->keys, names.socket, err);
        return st;
    }
    (void)snprintf(text, sizeof text, "+%s", name);
    st = cdi_oob_set_text(&world->keys, names.socket, text, err);
    if (st != CDDP_OK)
        return st;
    st = fdx_accept_all(s, listener, s->life, world, p, err);
    if (st == CDDP_OK)
        st = fdx_agree(s, world, p, err);
    fdx_tell_all(s, p, st, err);
    if (st != CDDP_OK)
        cdi_oob_tell_cause(&world->keys, names.cause, err);
    return st;
}

/* --------------------------------------------------------------------------------------------- the other ranks ---- */

static cddp_status fdx_connect(const char *name, const char *first, int *out, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un a;
    int rc;

    if (fd < 0)
        return cdi_fail_errno(err, errno, "cannot create a socket");
    if (strlen(name) + 2 > sizeof a.sun_path)
        return cdi_fail(err, CDDP_E_PROTOCOL, "the socket of %s has an invalid name", first);
    do
        rc = connect(fd, (struct sockaddr *)&a, abstract_address(&a, name)); /* blocks only while the backlog is full */
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno == ECONNREFUSED)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "%s is on another host, in another container, or gone: the ranks of one node (GROUP_RANK, "
                        "LOCAL_WORLD_SIZE) must be on one host and in one network namespace",
                        first);
    if (rc != 0)
        return cdi_fail_errno(err, errno, "cannot connect to %s", first);
    if (!same_user(fd))
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s runs as another user", first);
    *out = cdi_steal_fd(&fd);
    return CDDP_OK;
}

static cddp_status map_control(struct cdi_shm *s, int memfd, struct cdi_error *err)
{
    void *segment;
    cddp_status st;

    if (memfd < 0)
        return cdi_fail(err, CDDP_E_SYSTEM, "cannot receive shared memory: too many open files");
    st = cdi_shm_map(&s->mapper, memfd, s->bytes, &segment, err);
    if (st == CDDP_OK) {
        st = cdi_shm_adopt(s, segment, err);
        if (st != CDDP_OK)
            cdi_shm_unmap(&s->mapper, segment, s->bytes);
    }
    return st;
}

static cddp_status fdx_map_over(struct cdi_shm *s, const struct deadline *p, struct cdi_error *err)
{
    CDI_AUTOCLOSE int memfd = -1;
    struct message m = fdx_message(s->rank, s->size, CDDP_OK, NULL);
    cddp_status st = fdx_send(s->socks[0], &m, -1, p, err);

    if (st == CDDP_OK)
        st = fdx_recv(s->socks[0], &m, &memfd, p, err);
    if (st != CDDP_OK)
        return st;
    if (m.status != CDDP_OK) /* another rank failed first */
        return cdi_fail(err, (cddp_status)m.status, "%s", m.text);
    st = map_control(s, memfd, err);
    if (st == CDDP_OK)
        cdi_shm_hold(s, cdi_steal_fd(&memfd));
    m = fdx_message(s->rank, s->size, st, err);
    st = fdx_send(s->socks[0], &m, -1, p, err);
    if (st == CDDP_OK)
        st = fdx_recv(s->socks[0], &m, NULL, p, err);
    if (st == CDDP_OK && m.status != CDDP_OK)
        return cdi_fail(err, (cddp_status)m.status, "%s", m.text);
    return st;
}

/* Waits for the socket of the first rank, and checks the members of a part meanwhile. */
static cddp_status find_socket(const struct cdi_oob *oob, const char *name, char *where, size_t cap,
                               const struct deadline *p, struct cdi_error *err)
{
    for (;;) {
        int64_t left = p->deadline_ms - cdi_now_ms();
        cddp_status st;

        if (left < 1)
            left = 1;
        if (left > ASK_MS && p->connecting->watch.fn != NULL)
            left = ASK_MS;
        st = cdi_oob_get_text(oob, name, where, cap, left, err);
        if (st == CDDP_E_TIMEOUT)
            st = fdx_check(p, err);
        else
            return st;
        if (st != CDDP_OK)
            return st;
    }
}

static cddp_status fdx_other_rank(struct cdi_shm *s, const struct cdi_world *world, const struct deadline *p,
                                  struct cdi_error *err)
{
    const struct names names = names_of(world);
    char where[CDI_SHM_TEXT];
    cddp_status word, st = find_socket(&world->keys, names.socket, where, sizeof where, p, err);

    if (st == CDDP_E_TIMEOUT)
        return cdi_fail_by(err, cdi_rank_of_job(world, s->first), st,
                           "%s did not begin the shared-memory setup within %.4g s",
                           cdi_who(world->ranks, s->first).text, (double)world->init_timeout_ms / 1000);
    if (st != CDDP_OK)
        return st;
    if (where[0] != '+')
        return cdi_oob_cause(where, err);
    st = fdx_connect(where + 1, cdi_who(world->ranks, s->first).text, &s->socks[0], err);
    if (st == CDDP_E_UNSUPPORTED && (word = fdx_await_word(world, p, err)) != CDDP_OK)
        return word;
    if (st != CDDP_OK) {
        (void)cdi_error_wrap(err, "%s", cdi_who(world->ranks, world->rank).text);
        cdi_oob_tell_cause(&world->keys, names.cause, err); /* rank 0 waits for us */
        return st;
    }
    st = fdx_map_over(s, p, err);
    if (st == CDDP_E_PEER && err->blamed > 0) /* the agent or the parent communicator knows the rank that died */
        return st;
    /* The first rank knows the missing ranks, and may have begun its wait a moment later. */
    if ((st == CDDP_E_PEER || st == CDDP_E_TIMEOUT) && (word = fdx_await_word(world, p, err)) != CDDP_OK)
        return word;
    if (st == CDDP_E_PEER)
        return cdi_fail_by(err, cdi_rank_of_job(world, s->first), st, "%s died during the shared-memory setup",
                           cdi_who(world->ranks, s->first).text);
    if (st == CDDP_E_TIMEOUT)
        return cdi_fail(err, st, "the shared-memory setup timed out after %.4g s",
                        (double)world->init_timeout_ms / 1000);
    return st;
}

void cdi_shm_bootstrap_refuse(const struct cdi_world *world, const struct cdi_error *why)
{
    const struct names names = names_of(world);
    struct cdi_error told;

    if (world->size == 1)
        return;
    (void)cdi_fail_by(&told, cdi_rank_of_job(world, world->rank), why->status, "%s: %.400s",
                      cdi_who(world->ranks, world->rank).text, why->msg);
    cdi_oob_tell_cause(&world->keys, world->local_rank == 0 ? names.socket : names.cause, &told);
}

cddp_status cdi_shm_bootstrap_control(struct cdi_shm **out, const struct cdi_world *world, const struct cdi_mapper *m,
                                      struct cdi_error *err)
{
    const struct deadline p = {.deadline_ms = cdi_deadline_ms(cdi_now_ms(), world->init_timeout_ms),
                               .flight = world->flight,
                               .connecting = world};
    struct cdi_error local = {.status = CDDP_OK};
    struct cdi_shm *s;
    cddp_status st;

    err = err != NULL ? err : &local;
    st = cdi_shm_create(&s, world->local_rank, world->local_size, world->rank - world->local_rank, world->n_nodes > 1,
                        m, err);
    if (st != CDDP_OK) {
        cdi_shm_bootstrap_refuse(world, err);
        return st;
    }
    st = world->local_rank == 0 ? fdx_first_rank(s, world, &p, err) : fdx_other_rank(s, world, &p, err);
    if (st != CDDP_OK) {
        cdi_shm_destroy(s);
        return st;
    }
    *out = s;
    return CDDP_OK;
}

/* --------------------------------------------------------------------------------------------------- regions ---- */

static cddp_status map_part(struct cdi_shm *s, const int *ranks, int rank, const struct message *m, int fd,
                            size_t bytes, void **part, struct cdi_error *err)
{
    if (m->status != CDDP_OK) /* the text names the rank */
        return cdi_fail(err, (cddp_status)m->status, "%s", m->text);
    if (m->bytes != bytes)
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s created a region of another size",
                        cdi_who(ranks, s->first + rank).text);
    if (fd < 0)
        return cdi_fail(err, CDDP_E_SYSTEM, "%s: cannot receive shared memory: too many open files",
                        cdi_who(ranks, s->first + s->rank).text);
    if (cdi_shm_map(&s->mapper, fd, bytes, part, err) != CDDP_OK)
        return cdi_error_wrap(err, "%s", cdi_who(ranks, s->first + s->rank).text);
    return CDDP_OK;
}

/* Adds the peer of a connection to the error, in a communicator that exists. */
static cddp_status name_peer(const struct deadline *p, int rank, cddp_status st, struct cdi_error *err)
{
    const struct cdi_wait *w = p->wait;

    if (err->blamed > 0) /* an abort or the agent names the rank */
        return st;
    if (st == CDDP_E_PEER)
        return cdi_wait_report_end(w, rank, err);
    rank += w->shm->first;
    if (st == CDDP_E_TIMEOUT)
        return cdi_fail_by(err, cdi_wait_rank_of_job(w, rank), st, "%s did not arrive within %.4g s",
                           cdi_who(w->ranks, rank).text, (double)w->timeout_ms / 1000);
    return st;
}

static cddp_status fdx_send_to(struct cdi_shm *s, int rank, const struct message *m, int fd, const struct deadline *p,
                               struct cdi_error *err)
{
    cddp_status st = fdx_send(s->socks[rank], m, fd, p, err);

    return st == CDDP_OK ? st : name_peer(p, rank, st, err);
}

static cddp_status fdx_recv_from(struct cdi_shm *s, int rank, struct message *m, int *fd, const struct deadline *p,
                                 struct cdi_error *err)
{
    cddp_status st = fdx_recv(s->socks[rank], m, fd, p, err);

    return st == CDDP_OK ? st : name_peer(p, rank, st, err);
}

/* Rank 0: receives the message of r (its own is in *m) and passes it to all ranks except r. */
static cddp_status fdx_relay(struct cdi_shm *s, int r, struct message *m, int *fd, const struct deadline *p,
                             struct cdi_error *err)
{
    cddp_status st = r == 0 ? CDDP_OK : fdx_recv_from(s, r, m, fd, p, err);

    if (st == CDDP_OK && m->status == CDDP_OK && *fd < 0) {
        m->status = CDDP_E_SYSTEM;
        (void)snprintf(m->text, sizeof m->text, "%.60s cannot receive shared memory: too many open files",
                       cdi_who(p->wait->ranks, s->first).text);
    }
    for (int to = 1; to < s->size && st == CDDP_OK; to++)
        if (to != r)
            st = fdx_send_to(s, to, m, *fd, p, err);
    return st;
}

cddp_status cdi_shm_bootstrap_parts(struct cdi_wait *w, size_t bytes, void **part, bool *broken, struct cdi_error *err)
{
    struct cdi_shm *s = w->shm;
    /* Rank 0 knows the rank that delays all: the others give it the time to report that. */
    int64_t timeout_ms = w->timeout_ms + (s->rank == 0 ? 0 : SLACK_MS);
    const struct deadline p = {
        .deadline_ms = cdi_deadline_ms(cdi_now_ms(), timeout_ms), .flight = w->flight, .wait = w};
    CDI_AUTOCLOSE int own = -1;
    cddp_status io = CDDP_OK,
                outcome = cdi_shm_memfd("cddp-region", bytes, cdi_shm_suits_huge(s->size, bytes), &own, err);
    struct message mine;

    if (outcome != CDDP_OK)
        (void)cdi_error_wrap(err, "%s", cdi_who(w->ranks, s->first + s->rank).text);
    mine = fdx_message(s->rank, s->size, outcome, err);
    mine.bytes = bytes;
    memset(part, 0, (size_t)s->size * sizeof *part);
    if (s->rank != 0)
        io = fdx_send_to(s, 0, &mine, own, &p, err);
    for (int r = 0; r < s->size && io == CDDP_OK; r++) {
        CDI_AUTOCLOSE int fd = r == s->rank ? cdi_steal_fd(&own) : -1;
        struct message m = mine;
        struct cdi_error why;
        cddp_status st;

        if (s->rank == 0)
            io = fdx_relay(s, r, &m, &fd, &p, err);
        else if (r != s->rank)
            io = fdx_recv_from(s, 0, &m, &fd, &p, err);
        st = io != CDDP_OK ? io : map_part(s, w->ranks, r, &m, fd, bytes, &part[r], &why);
        if (io == CDDP_OK && st != CDDP_OK && outcome == CDDP_OK)
            outcome = cdi_fail_since(err, &why, "%.900s", why.msg);
    }
    for (int r = 0; r < s->size && (io != CDDP_OK || outcome != CDDP_OK); r++) {
        cdi_shm_unmap(&s->mapper, part[r], bytes);
        part[r] = NULL;
    }
    *broken = io != CDDP_OK;
    return io != CDDP_OK ? io : outcome;
}
