/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/log.h"

#include "common/env.h"
#include "common/float_state.h"
#include "common/log.h"
#include "common/utf8.h"
#include "worker/comm/comm.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEVEL_ENV "CDDP_LOG_LEVEL"

/* ------------------------------------------------------------------------------------------------- the lines ---- */

/* Writes one character of the text in at most 4 bytes, and returns their number. *used: what it took of the text. */
static size_t put_char(char out[5], const char *text, size_t left, size_t *used)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = cdi_utf8_char(text, left);
    bool control = s[0] < 0x20 || s[0] == 0x7f || (n == 2 && s[0] == 0xc2 && s[1] < 0xa0);

    if (n > 0 && !control) {
        memcpy(out, text, n);
        *used = n;
        return n;
    }
    *used = 1;
    if (s[0] == '\n' || s[0] == '\t' || s[0] == '\r') {
        out[0] = '\\';
        out[1] = (char)(s[0] == '\n' ? 'n' : s[0] == '\t' ? 't' : 'r');
        return 2;
    }
    return (size_t)snprintf(out, 5, "\\x%02x", s[0]);
}

static size_t put_head(char *line, size_t cap, const struct cdi_log_head *h)
{
    size_t n;

    if (h->rank < 0)
        return 0;
    n = (size_t)snprintf(line, cap, "[%s%srank %d", h->name, h->name[0] != '\0' ? ", " : "", h->rank);
    if (h->has_step)
        n += (size_t)snprintf(line + n, cap - n, ", step %" PRIu64, h->step);
    return n + (size_t)snprintf(line + n, cap - n, "] ");
}

size_t cdi_log_line(char line[CDI_LOG_LINE_BYTES], const struct cdi_log_head *head, const char *text)
{
    static const char cut[] = "...";
    const size_t end = CDI_LOG_LINE_BYTES - sizeof cut;
    size_t at = put_head(line, end, head), left = text != NULL ? strlen(text) : 0, used;
    char one[5];

    if (text == NULL)
        return at + (size_t)snprintf(line + at, end - at, "(null)");
    while (left > 0 && (text[left - 1] == '\n' || text[left - 1] == '\r'))
        left--;
    for (; left > 0; text += used, left -= used) {
        size_t n = put_char(one, text, left, &used);

        if (at + n > end) {
            memcpy(line + at, cut, sizeof cut);
            return at + sizeof cut - 1;
        }
        memcpy(line + at, one, n);
        at += n;
    }
    line[at] = '\0';
    return at;
}

/* ----------------------------------------------------------------------------------------- where they go to ---- */

/* Where lines go to. Never changes and is never freed, so a thread that logs needs no lock, also in a child of fork().
 */
struct target {
    cddp_log_fn fn;
    void *arg;
    const struct target *next;
};

static struct {
    pthread_once_t once;
    int level;                             /* of common/log.h; -1: CDDP_LOG_LEVEL has none */
    char said[64];                         /* its text then */
    _Atomic(const struct target *) target; /* NULL: stderr */
    pthread_mutex_t lock;                  /* of `all` */
    const struct target *all;              /* every pair that the program has ever set, once */
} the_log = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

/* Does this thread call the program? What that logs goes to stderr, or it would never end. */
static _Thread_local bool is_calling;

static void read_level(void)
{
    const char *text = cdi_env_str(LEVEL_ENV);

    the_log.level = text == NULL ? CDI_LOG_INFO : cdi_log_level_parse(text);
    if (the_log.level < 0)
        (void)snprintf(the_log.said, sizeof the_log.said, "%s", text);
}

cddp_status cdi_log_check_level(struct cdi_error *err)
{
    (void)pthread_once(&the_log.once, read_level);
    if (the_log.level >= 0)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, LEVEL_ENV "='%s' is not debug, info, warning, error or off", the_log.said);
}

static bool is_logged(const cddp_comm *comm, cddp_log_scope scope, cddp_log_level level)
{
    (void)pthread_once(&the_log.once, read_level);
    if (the_log.level == CDI_LOG_OFF || (int)level < (the_log.level >= 0 ? the_log.level : CDI_LOG_INFO))
        return false;
    return comm == NULL || scope == CDDP_LOG_ALL || (scope == CDDP_LOG_RANK0 && cdi_comm_world(comm)->rank == 0) ||
           (scope == CDDP_LOG_NODE && cddp_local_rank(comm) == 0);
}

/* Returns the target with this pair, with the lock held; NULL: no memory. */
static const struct target *find_target(cddp_log_fn fn, void *arg)
{
    const struct target *old = the_log.all;
    struct target *made;

    while (old != NULL && (old->fn != fn || old->arg != arg))
        old = old->next;
    if (old != NULL)
        return old;
    made = malloc(sizeof *made);
    if (made != NULL) {
        *made = (struct target){fn, arg, the_log.all};
        the_log.all = made;
    }
    return made;
}

void cddp_set_log_callback(cddp_log_fn fn, void *arg)
{
    (void)pthread_mutex_lock(&the_log.lock);
    atomic_store(&the_log.target, fn != NULL ? find_target(fn, arg) : NULL);
    (void)pthread_mutex_unlock(&the_log.lock);
}

void cddp_log(const cddp_comm *comm, cddp_log_scope scope, cddp_log_level level, const char *text)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_log_head head = {.name = "", .rank = -1};
    char line[CDI_LOG_LINE_BYTES];
    const struct target *to;
    uint64_t next;
    ssize_t written;
    size_t n;

    if (!is_logged(comm, scope, level))
        return;
    if (comm != NULL) {
        next = cdi_comm_step(comm);
        head = (struct cdi_log_head){cdi_comm_world(comm)->name, cdi_comm_world(comm)->rank, next > 0, next - 1};
    }
    n = cdi_log_line(line, &head, text);
    to = is_calling ? NULL : atomic_load(&the_log.target);
    if (to != NULL) {
        CDI_CALLERS_FLOAT_STATE;

        is_calling = true;
        to->fn(to->arg, level, line);
        is_calling = false;
        return;
    }
    line[n] = '\n'; /* in place of the byte of 0 */
    written = write(STDERR_FILENO, line, n + 1);
    (void)written;
}
