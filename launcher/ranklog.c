/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/ranklog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ranklog_init(struct ranklog *log, uint32_t rank, bool keep_tail)
{
    *log = (struct ranklog){.rank = rank};
    cdi_buf_init(&log->part, RANKLOG_LINE_MAX);
    if (keep_tail)
        log->tail = calloc(RANKLOG_TAIL_LINES, sizeof *log->tail);
}

void ranklog_release(struct ranklog *log)
{
    cdi_buf_release(&log->part);
    free(log->tail);
    log->tail = NULL;
}

static void remember(struct ranklog *log, const char *line, size_t n)
{
    char *to;

    if (log->tail == NULL)
        return;
    to = log->tail[log->n_tail % RANKLOG_TAIL_LINES];
    if (n >= RANKLOG_TAIL_BYTES)
        n = RANKLOG_TAIL_BYTES - 1;
    memcpy(to, line, n);
    to[n] = '\0';
    log->n_tail++;
}

/* One line, or a piece of one, without its newline. */
static cddp_status put_line(struct ranklog *log, const char *line, size_t n, bool complete, struct cdi_buf *out)
{
    char prefix[24];
    int len = snprintf(prefix, sizeof prefix, log->continued ? "[%u]+ " : "[%u] ", log->rank);
    uint8_t *to = cdi_buf_reserve(out, (size_t)len + n + 1);

    if (!log->continued)
        remember(log, line, n);
    log->continued = !complete;
    if (to == NULL)
        return CDDP_E_NOMEM;
    memcpy(to, prefix, (size_t)len);
    if (n > 0)
        memcpy(to + len, line, n);
    to[(size_t)len + n] = '\n';
    cdi_buf_commit(out, (size_t)len + n + 1);
    return CDDP_OK;
}

/* What is held back plus n more bytes. */
static cddp_status put_part(struct ranklog *log, const char *bytes, size_t n, bool complete, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    if (log->part.len == 0)
        return put_line(log, bytes, n, complete, out);
    if (n > 0)
        st = cdi_buf_append(&log->part, bytes, n);
    if (st == CDDP_OK)
        st = put_line(log, (const char *)cdi_buf_data(&log->part), log->part.len, complete, out);
    cdi_buf_consume(&log->part, log->part.len);
    return st;
}

cddp_status ranklog_feed(struct ranklog *log, const char *bytes, size_t n, struct cdi_buf *out)
{
    cddp_status st, worst = CDDP_OK;

    while (n > 0) {
        size_t room = RANKLOG_LINE_MAX - log->part.len;
        const char *newline = memchr(bytes, '\n', n < room ? n : room);
        size_t take;

        if (newline != NULL) {
            take = (size_t)(newline - bytes);
            st = put_part(log, bytes, take, true, out);
            take++;
        } else if (n >= room) {
            take = room;
            st = put_part(log, bytes, take, false, out);
        } else {
            take = n;
            st = cdi_buf_append(&log->part, bytes, n);
        }
        if (st != CDDP_OK)
            worst = st;
        bytes += take;
        n -= take;
    }
    return worst;
}

cddp_status ranklog_end(struct ranklog *log, struct cdi_buf *out)
{
    if (log->part.len == 0)
        return CDDP_OK;
    return put_part(log, NULL, 0, true, out);
}

unsigned ranklog_tail_count(const struct ranklog *log)
{
    if (log->tail == NULL)
        return 0;
    return log->n_tail < RANKLOG_TAIL_LINES ? log->n_tail : RANKLOG_TAIL_LINES;
}

const char *ranklog_tail_line(const struct ranklog *log, unsigned i)
{
    unsigned first = log->n_tail - ranklog_tail_count(log);

    return log->tail[(first + i) % RANKLOG_TAIL_LINES];
}
