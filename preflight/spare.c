/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/spare.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/resolve.h"

#include <jansson.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define STATUS_MAX ((size_t)16 << 20)
#define ANSWER_S 2
#define AGAIN_MS 100

bool spare_enough(const char *json, size_t n, int port, uint32_t leaving)
{
    json_t *root = json_loadb(json, n, 0, NULL), *job;
    bool enough = false;
    size_t i;

    json_array_foreach(json_object_get(root, "jobs"), i, job)
    {
        json_int_t of = 0, present = 0, min = 0;

        if (json_unpack(job, "{s:I, s:{s:I, s:I}}", "port", &of, "nodes", "present", &present, "min", &min) == 0 &&
            of == port)
            enough = present > 0 && min >= 0 && present - (json_int_t)leaving >= min;
    }
    json_decref(root);
    return enough;
}

static int spare_connect(const char *host, int port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const struct timeval limit = {.tv_sec = ANSWER_S}; /* Linux's connect(2) keeps it, too */
    struct addrinfo *list;
    char service[8];
    int fd = -1;

    (void)snprintf(service, sizeof service, "%d", port);
    if (cdi_resolve(host, service, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            (void)close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

/* Appends the whole answer, its header included. */
static bool read_status(const char *host, int port, struct cdi_buf *to)
{
    static const char request[] = "GET /status HTTP/1.0\r\nConnection: close\r\n\r\n";
    CDI_AUTOCLOSE int fd = spare_connect(host, port);
    char part[16384];
    ssize_t n = 0;

    if (fd < 0 || send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != (ssize_t)sizeof request - 1)
        return false;
    while ((n = recv(fd, part, sizeof part, 0)) > 0)
        if (cdi_buf_append(to, part, (size_t)n) != CDDP_OK)
            return false;
    return n == 0;
}

static bool asks_enough(const char *host, int port, uint32_t leaving)
{
    struct cdi_buf answer;
    const char *body = NULL;
    bool enough = false;

    cdi_buf_init(&answer, STATUS_MAX);
    if (read_status(host, port, &answer))
        body = memmem(cdi_buf_data(&answer), answer.len, "\r\n\r\n", 4);
    if (body != NULL)
        enough = spare_enough(body + 4, answer.len - (size_t)(body + 4 - (const char *)cdi_buf_data(&answer)), port,
                              leaving);
    cdi_buf_release(&answer);
    return enough;
}

bool spare_wait(const char *host, int port, uint32_t leaving, int64_t timeout_ms)
{
    const struct timespec pause = {.tv_nsec = AGAIN_MS * 1000000L};
    int64_t until_ms = cdi_now_ms() + timeout_ms;

    do {
        if (asks_enough(host, port, leaving))
            return true;
        (void)nanosleep(&pause, NULL);
    } while (cdi_now_ms() < until_ms);
    return false;
}
