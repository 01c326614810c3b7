/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/show.h"

#include "common/log.h"
#include "watch/query.h"
#include "watch/where.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define OPEN_MS 5000
#define ASK_MS 5000
#define TEXT_MAX (4u * 1024 * 1024)
#define ROWS 18       /* with the other lines, a screen of 24 */
#define OTHER_LINES 6 /* head, totals, prompt */

const char *show_target(const struct options *o, char endpoint[300])
{
    const char *addr = o->master_addr != NULL ? o->master_addr : o->env_master_addr;
    bool v6 = addr != NULL && strchr(addr, ':') != NULL;

    if (o->rdzv_endpoint != NULL) {
        (void)snprintf(endpoint, 300, "%s", o->rdzv_endpoint);
        return o->where;
    }
    if (addr == NULL || strchr(o->where, ':') != NULL) {
        (void)snprintf(endpoint, 300, "%s", o->where);
        return o->run_id;
    }
    if (o->master_port > 0)
        (void)snprintf(endpoint, 300, v6 ? "[%s]:%d" : "%s:%d", addr, (int)o->master_port);
    else if (o->env_master_port != NULL)
        (void)snprintf(endpoint, 300, v6 ? "[%s]:%s" : "%s:%s", addr, o->env_master_port);
    else
        (void)snprintf(endpoint, 300, "%s", addr);
    return o->where;
}

static void size_of_screen(FILE *out, size_t *rows, size_t *columns)
{
    struct winsize size;

    *rows = ROWS;
    *columns = 0;
    if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0)
        return;
    *rows = size.ws_row > OTHER_LINES + 2 ? size.ws_row - OTHER_LINES : 2;
    *columns = size.ws_col;
}

/* A word alone is a host; most likely it was to be a job. */
static cddp_status explain(cddp_status st, const struct options *o, const char *endpoint, struct cdi_error *err)
{
    if (st != CDDP_E_NOT_FOUND || strcmp(endpoint, o->where) != 0 || strchr(endpoint, ':') != NULL)
        return st;
    return cdi_fail(err, st,
                    "no host here has the name '%.200s'; if it is a job, give its rendezvous, too: "
                    "--rdzv_endpoint=HOST:PORT (or --master_addr, or MASTER_ADDR)",
                    endpoint);
}

static cddp_status ask(const struct options *o, const struct cdi_secret *secret, json_t **reply, struct cdi_error *err)
{
    char endpoint[300];
    const char *job = show_target(o, endpoint);
    struct query *q;
    cddp_status st = query_open(&q, endpoint, secret, OPEN_MS, err);

    if (st != CDDP_OK)
        return explain(st, o, endpoint, err);
    st = query_ask(q, job, ASK_MS, reply, err);
    query_close(q);
    return st;
}

static cddp_status print_reply(json_t *reply, FILE *out, struct cdi_error *err)
{
    struct cdi_buf text;
    size_t rows, columns;
    cddp_status st;

    cdi_buf_init(&text, TEXT_MAX);
    size_of_screen(out, &rows, &columns);
    st = where_text(reply, rows, columns, &text, err);
    if (st == CDDP_OK && (fwrite(cdi_buf_data(&text), 1, text.len, out) != text.len || fflush(out) != 0))
        st = cdi_fail(err, CDDP_E_IO, "cannot write where the ranks are");
    cdi_buf_release(&text);
    return st;
}

int show_where(const struct options *o, FILE *out)
{
    struct cdi_secret secret;
    struct cdi_error err = {0};
    json_t *reply = NULL;
    cddp_status st = CDDP_OK;

    if (o->auth_token_file != NULL)
        st = cdi_secret_load(&secret, o->auth_token_file, &err);
    if (st == CDDP_OK)
        st = ask(o, o->auth_token_file != NULL ? &secret : NULL, &reply, &err);
    if (o->auth_token_file != NULL)
        cdi_secret_release(&secret);
    if (st == CDDP_OK)
        st = print_reply(reply, out, &err);
    json_decref(reply);
    if (st != CDDP_OK)
        cdi_log(CDI_LOG_ERROR, "WHERE", "--where: %s", err.msg);
    return st == CDDP_OK ? 0 : st == CDDP_E_INVALID ? 2 : 1;
}
