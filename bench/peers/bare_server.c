/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that a store server can do: epoll, one read and one write per request, one counter whatever its name, the
 * value that was set last, no check of anything. What it needs is what the kernel and the load cost; no server can be
 * faster without sparing system calls. Prints its port, serves until its standard input ends. libc only.
 */
#include "../load.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SET = 1, GET = 3, ADD = 4, WAIT = 6, PING = 13, VALIDATE = 0 };

#define MAX_FILES (1 << 20)

static bool waiting[MAX_FILES];
static int n_files;
static uint64_t counter;
static uint8_t value[8 + 256];
static size_t value_len; /* with the eight bytes of its length */
static uint8_t key[256]; /* of the value, with its length */
static size_t key_len;   /* 0: nothing was set */

static uint64_t u64_at(const uint8_t *p)
{
    uint64_t n;

    memcpy(&n, p, sizeof n);
    return n;
}

static void answer(int fd, const void *bytes, size_t len)
{
    if (send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)len)
        die("send");
}

static void wake_all(void)
{
    for (int fd = 0; fd < n_files; fd++)
        if (waiting[fd]) {
            waiting[fd] = false;
            answer(fd, "", 1);
        }
}

/* Carry out one request; returns its size, and adds to the answer. */
static size_t carry_out(int fd, const uint8_t *p, uint8_t *out, size_t *len)
{
    const uint8_t *name = p + (p[0] == WAIT ? 9 : 1);
    size_t size = p[0] == VALIDATE || p[0] == PING ? 0 : 8 + (size_t)u64_at(name);

    switch (p[0]) {
    case VALIDATE:
        return 5;
    case PING:
        memcpy(out + *len, p + 1, 4);
        *len += 4;
        return 5;
    case ADD:
        counter++;
        memcpy(out + *len, &counter, 8);
        *len += 8;
        return 1 + size + 8;
    case GET:
        memcpy(out + *len, value, value_len);
        *len += value_len;
        return 1 + size;
    case WAIT:
        waiting[fd] = size != key_len || memcmp(name, key, size) != 0;
        if (!waiting[fd])
            out[(*len)++] = 0;
        return 9 + size;
    case SET:
        value_len = 8 + (size_t)u64_at(name + size);
        key_len = size;
        if (value_len > sizeof value || key_len > sizeof key)
            break;
        memcpy(value, name + size, value_len);
        memcpy(key, name, size);
        wake_all();
        return 1 + size + value_len;
    default:
        break;
    }
    errno = EPROTO;
    die("a request that a bare server does not know");
    return 0;
}

static bool serve(int fd)
{
    static uint8_t in[65536], out[65536];
    ssize_t n = recv(fd, in, sizeof in, MSG_DONTWAIT);
    size_t at = 0, len = 0;

    if (n < 0 && errno == EAGAIN)
        return true;
    if (n <= 0)
        return false;
    while (at < (size_t)n)
        at += carry_out(fd, in + at, out, &len);
    if (len > 0)
        answer(fd, out, len);
    return true;
}

static void take(int ep, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

    if (fd >= MAX_FILES || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) != 0)
        die("epoll_ctl");
    waiting[fd] = false;
    if (fd >= n_files)
        n_files = fd + 1;
}

static void take_all(int ep, int listener)
{
    int fd;

    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        take(ep, fd);
}

int main(void)
{
    int ep = epoll_create1(EPOLL_CLOEXEC), on = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    take_all_descriptors();
    (void)setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* accepted sockets inherit it */
    if (ep < 0 || bind(listener, (struct sockaddr *)&a, len) != 0 || listen(listener, 4096) != 0 ||
        getsockname(listener, (struct sockaddr *)&a, &len) != 0)
        die("listen");
    take(ep, listener);
    take(ep, STDIN_FILENO);
    (void)printf("%u\n", ntohs(a.sin_port));
    (void)fflush(stdout);
    for (;;) {
        struct epoll_event evs[512];
        int n = epoll_wait(ep, evs, 512, -1);

        for (int i = 0; i < n; i++) {
            int fd = evs[i].data.fd;

            if (fd == STDIN_FILENO)
                return 0;
            if (fd == listener)
                take_all(ep, listener);
            else if (!serve(fd))
                (void)close(fd);
        }
    }
}
