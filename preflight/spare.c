/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/spare.h"

#include "common/clock.h"
#include "common/dial.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

#define STATUS_MAX ((size_t)16 << 20)
#define ANSWER_MS 4000
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

/* Receives the whole answer, its header included. */
static bool read_status(struct cdi_dial *d, const char *host, int port)
{
    static const char request[] = "GET /status HTTP/1.0\r\nConnection: close\r\n\r\n";
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), ANSWER_MS);
    cddp_status st = cdi_dial_name(d, host, port, deadline_ms, NULL);

    if (st == CDDP_OK && cdi_buf_append(&d->out, request, sizeof request - 1) == CDDP_OK)
        st = cdi_dial_flush(d, deadline_ms, NULL);
    while (st == CDDP_OK)
        st = cdi_dial_need(d, d->in.len + 1, deadline_ms, NULL);
    return st == CDDP_E_CLOSED;
}

static bool asks_enough(const char *host, int port, uint32_t leaving)
{
    struct cdi_dial d = {.fd = -1};
    const char *body = NULL;
    bool enough = false;

    cdi_buf_init(&d.out, 0);
    cdi_buf_init(&d.in, STATUS_MAX);
    if (read_status(&d, host, port))
        body = memmem(cdi_buf_data(&d.in), d.in.len, "\r\n\r\n", 4);
    if (body != NULL)
        enough =
            spare_enough(body + 4, d.in.len - (size_t)(body + 4 - (const char *)cdi_buf_data(&d.in)), port, leaving);
    cdi_dial_drop(&d);
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
