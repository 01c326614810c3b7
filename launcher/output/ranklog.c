/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/output/ranklog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *ranklog_end_of(const char *macro, const char *name)
{
    size_t n = strlen(name);

    return strncmp(macro, name, n) == 0 ? macro + n : NULL;
}

const char *ranklog_prefix(char buf[RANKLOG_PREFIX_MAX], const char *template, const char *role, uint32_t rank,
                           uint32_t local_rank)
{
    size_t n = 0;

    if (template == NULL) {
        (void)snprintf(buf, RANKLOG_PREFIX_MAX, "[%u] ", rank);
        return buf;
    }
    while (*template != '\0' && n < RANKLOG_PREFIX_MAX - 1) {
        const char *end;

        if ((end = ranklog_end_of(template, "${role_name}")) != NULL)
            n += (size_t)snprintf(buf + n, RANKLOG_PREFIX_MAX - n, "%s", role);
        else if ((end = ranklog_end_of(template, "${rank}")) != NULL)
            n += (size_t)snprintf(buf + n, RANKLOG_PREFIX_MAX - n, "%u", rank);
        else if ((end = ranklog_end_of(template, "${local_rank}")) != NULL)
            n += (size_t)snprintf(buf + n, RANKLOG_PREFIX_MAX - n, "%u", local_rank);
        else
            buf[n++] = *template == '\n' ? ' ' : *template;
        template = end != NULL ? end : template + 1;
    }
    buf[n < RANKLOG_PREFIX_MAX ? n : RANKLOG_PREFIX_MAX - 1] = '\0';
    return buf;
}

/* Makes "[3] " and "[3]+ ", without and with a colour, once: a rank may print millions of lines. */
static void make_fronts(struct ranklog *log, const char *prefix, int colour)
{
    struct ranklog_front *all[] = {&log->plain[0], &log->plain[1], &log->shown[0], &log->shown[1]};
    size_t n = strlen(prefix), bare = n, each = n + sizeof "+ \033[36m\033[0m";
    char *to = log->fronts = malloc(4 * each);

    while (bare > 0 && prefix[bare - 1] == ' ')
        bare--;
    for (unsigned i = 0; i < 4; i++) {
        const char *before = "", *after = "";
        char escape[16];
        int len;

        *all[i] = (struct ranklog_front){.text = ""};
        if (to == NULL)
            continue;
        if (i >= 2 && colour != 0) {
            (void)snprintf(escape, sizeof escape, "\033[%dm", colour);
            before = escape;
            after = "\033[0m";
        }
        len = snprintf(to, each, "%s%.*s%s%s", before, (int)(i % 2 == 0 ? n : bare), prefix, i % 2 == 0 ? "" : "+ ",
                       after);
        *all[i] = (struct ranklog_front){.text = to, .len = (size_t)len};
        to += each;
    }
}

void ranklog_init(struct ranklog *log, const struct ranklog_options *opt)
{
    *log = (struct ranklog){.filter = opt->filter, .drawn = opt->drawn};
    cdi_buf_init(&log->part, RANKLOG_LINE_MAX);
    make_fronts(log, opt->prefix != NULL ? opt->prefix : "", opt->colour ? 31 + (int)(opt->rank % 6) : 0);
    if (opt->keep_tail)
        log->tail = calloc(RANKLOG_TAIL_LINES, sizeof *log->tail);
}

void ranklog_release(struct ranklog *log)
{
    cdi_buf_release(&log->part);
    free(log->tail);
    free(log->fronts);
    log->tail = NULL;
    log->fronts = NULL;
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

static cddp_status ranklog_append(struct cdi_buf *out, const struct ranklog_front *front, const char *line, size_t n,
                                  char end)
{
    uint8_t *to = cdi_buf_reserve(out, front->len + n + 1);

    if (to == NULL)
        return CDDP_E_NOMEM;
    memcpy(to, front->text, front->len);
    if (n > 0)
        memcpy(to + front->len, line, n);
    to[front->len + n] = (uint8_t)end;
    cdi_buf_commit(out, front->len + n + 1);
    return CDDP_OK;
}

/* The cursor may be at the beginning of another stream's text: the next output replaces it, and erases the rest. */
static cddp_status ranklog_show(struct ranklog *log, const struct ranklog_front *front, const char *line, size_t n,
                                char end, struct cdi_buf *to)
{
    if (log->drawn != NULL && *log->drawn && cdi_buf_append(to, RANKLOG_ERASE, strlen(RANKLOG_ERASE)) != CDDP_OK)
        return CDDP_E_NOMEM;
    if (log->drawn != NULL)
        *log->drawn = end == '\r';
    return ranklog_append(to, front, line, n, end);
}

static bool is_wanted(const struct ranklog_filter *filter, const char *line, size_t n)
{
    const char *word = filter->words;

    for (unsigned i = 0; i < filter->n; i++, word += strlen(word) + 1)
        if (memmem(line, n, word, strlen(word)) != NULL)
            return true;
    return false;
}

/* Writes one line, or a piece of one, without its newline. */
static cddp_status put_line(struct ranklog *log, const char *line, size_t n, bool complete,
                            const struct ranklog_out *out)
{
    bool more = log->continued;
    cddp_status st = CDDP_OK;

    if (!more)
        remember(log, line, n);
    log->continued = !complete;
    if (out->shown != NULL)
        st = ranklog_show(log, &log->shown[more], line, n, '\n', out->shown);
    if (is_wanted(&log->filter, line, n) && ranklog_append(out->matched, &log->plain[more], line, n, '\n') != CDDP_OK)
        st = CDDP_E_NOMEM;
    return st;
}

/* Writes the held bytes and n more. */
static cddp_status put_part(struct ranklog *log, const char *bytes, size_t n, bool complete,
                            const struct ranklog_out *out)
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

/* Writes the held bytes and n more, up to a carriage return: not a line, and not remembered. */
static cddp_status draw_part(struct ranklog *log, const char *bytes, size_t n, const struct ranklog_out *out)
{
    cddp_status st = cdi_buf_append(&log->part, bytes, n);

    if (st == CDDP_OK && log->part.len > 0 && out->shown != NULL)
        st = ranklog_show(log, &log->shown[log->continued], (const char *)cdi_buf_data(&log->part), log->part.len, '\r',
                          out->shown);
    cdi_buf_consume(&log->part, log->part.len);
    log->continued = false;
    return st;
}

/*
 * On a terminal: writes the text before the newline (NULL: none so far), up to its last carriage return but one. A
 * carriage return at the end of the bytes, or before the newline, is held: the two together end a line. Returns the
 * number of bytes handled.
 */
static size_t ranklog_draw(struct ranklog *log, const char *bytes, size_t n, const struct ranklog_out *out,
                           cddp_status *st)
{
    const char *end = bytes + n, *at = bytes, *cr;

    if (log->part.len > 0 && n > 0 && cdi_buf_data(&log->part)[log->part.len - 1] == '\r') {
        log->part.len--;
        *st = draw_part(log, NULL, 0, out);
    }
    while ((cr = memchr(at, '\r', (size_t)(end - at))) != NULL && cr + 1 < end) {
        if (draw_part(log, at, (size_t)(cr - at), out) != CDDP_OK)
            *st = CDDP_E_NOMEM;
        at = cr + 1;
    }
    return (size_t)(at - bytes);
}

cddp_status ranklog_feed(struct ranklog *log, const char *bytes, size_t n, const struct ranklog_out *out)
{
    cddp_status st, worst = CDDP_OK;

    if (out->shown == NULL && log->filter.n == 0 && log->tail == NULL)
        return CDDP_OK; /* no lines are wanted */
    while (n > 0) {
        size_t room = RANKLOG_LINE_MAX - log->part.len;
        const char *newline = memchr(bytes, '\n', n < room ? n : room);
        size_t take;

        if (log->drawn != NULL) {
            size_t line = newline != NULL ? (size_t)(newline - bytes) : n < room ? n : room;

            take = ranklog_draw(log, bytes, line, out, &worst);
            bytes += take;
            n -= take;
            if (take > 0)
                continue;
            room = RANKLOG_LINE_MAX - log->part.len;
        }
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

cddp_status ranklog_end(struct ranklog *log, const struct ranklog_out *out)
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
