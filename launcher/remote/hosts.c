/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/remote/hosts.h"

#include "common/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------------- list ----
 */

/* One "name", "name:8" or "[v6]:8" of len bytes. */
static bool read_host(struct host *h, const char *text, size_t len)
{
    char number[16] = "";
    const char *colon = memrchr(text, ':', len), *close = memrchr(text, ']', len);
    size_t name = len;

    *h = (struct host){.n_procs = 0};
    if (colon != NULL && (close == NULL ? memchr(text, ':', len) == colon : colon == close + 1)) {
        name = (size_t)(colon - text);
        (void)snprintf(number, sizeof number, "%.*s", (int)(len - name - 1), colon + 1);
        if (!cdi_parse_int(number, 1, OPTIONS_MAX_PROCS, &h->n_procs))
            return false;
    }
    if (close != NULL && text[0] == '[' && close == text + name - 1) {
        text++;
        name -= 2;
    }
    /* ssh would read a dash as a flag. */
    if (name == 0 || name >= sizeof h->name || text[0] == '-' || memchr(text, ' ', name) != NULL)
        return false;
    memcpy(h->name, text, name);
    return true;
}

static cddp_status check_flags(const struct options *o, struct cdi_error *err)
{
    const char *other = o->standalone              ? "--standalone"
                        : o->nnodes_given          ? "--nnodes"
                        : o->node_rank >= 0        ? "--node_rank"
                        : o->rank_order != NULL    ? "--rank_order"
                        : o->rdzv_endpoint != NULL ? "--rdzv_endpoint"
                        : o->spares > 0            ? "--spares"
                        : o->local_addr != NULL    ? "--local_addr"
                                                   : NULL;

    if (other != NULL)
        return cdi_fail(err, CDDP_E_INVALID,
                        "--hosts defines the nodes and their order; remove %s (--master_addr and --master_port may set "
                        "the rendezvous endpoint)",
                        other);
    if (o->world_size > 0)
        return cdi_fail(err, CDDP_E_INVALID, "--hosts with --world_size: give each host's number of workers (a:8,b:8)");
    return CDDP_OK;
}

cddp_status hosts_parse(struct hosts *out, const struct options *o, struct cdi_error *err)
{
    struct hosts h = {.n = 0};
    cddp_status st = check_flags(o, err);
    size_t n = 1;

    for (const char *p = o->hosts; *p != '\0'; p++)
        n += *p == ',';
    if (st == CDDP_OK && n > HOSTS_MAX)
        st = cdi_fail(err, CDDP_E_LIMIT, "--hosts has more than %d hosts", HOSTS_MAX);
    if (st != CDDP_OK)
        return st;
    h.v = calloc(n, sizeof *h.v);
    if (h.v == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (const char *p = o->hosts; h.n < n; p += strcspn(p, ",") + 1) {
        size_t len = strcspn(p, ",");

        if (!read_host(&h.v[h.n], p, len)) {
            free(h.v);
            return cdi_fail(err, CDDP_E_INVALID, "--hosts: '%.*s' is not HOST or HOST:N with N from 1 to %d",
                            len < 64 ? (int)len : 64, p, OPTIONS_MAX_PROCS);
        }
        h.n++;
    }
    *out = h;
    return CDDP_OK;
}

const char *hosts_address(const struct host *h)
{
    const char *at = strrchr(h->name, '@');

    return at == NULL ? h->name : at + 1;
}

/* ------------------------------------------------------------------------------------------------------- script ----
 */

/* Adds a space and the word in quotes for sh. */
static cddp_status add_word(struct cdi_buf *out, const char *word)
{
    cddp_status st = cdi_buf_append(out, " '", 2);

    for (const char *p = word; st == CDDP_OK && *p != '\0'; p++)
        st = *p == '\'' ? cdi_buf_append(out, "'\\''", 4) : cdi_buf_append(out, p, 1);
    return st == CDDP_OK ? cdi_buf_append(out, "'", 1) : st;
}

static cddp_status add_flag(struct cdi_buf *out, const char *name, const char *value)
{
    char text[320];

    (void)snprintf(text, sizeof text, "%s=%.255s", name, value);
    return add_word(out, text);
}

static cddp_status add_number(struct cdi_buf *out, const char *name, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    return add_flag(out, name, text);
}

/* After the user's own flags: the last value of a repeated flag applies. */
static cddp_status hosts_add_place(struct cdi_buf *out, const struct hosts_job *job, uint32_t node)
{
    const struct host *h = &job->hosts->v[node];
    cddp_status st = add_word(out, "--hosts=");

    if (st == CDDP_OK)
        st = add_number(out, "--nnodes", job->hosts->n);
    if (st == CDDP_OK)
        st = add_number(out, "--node_rank", node);
    if (st == CDDP_OK && h->n_procs > 0)
        st = add_number(out, "--nproc_per_node", h->n_procs);
    if (st == CDDP_OK && job->hosts->n > 1)
        st = add_flag(out, "--master_addr", job->master_addr);
    if (st == CDDP_OK && job->hosts->n > 1)
        st = add_number(out, "--master_port", job->master_port);
    if (st == CDDP_OK)
        st = add_flag(out, "--local_addr", hosts_address(h));
    return st == CDDP_OK ? add_word(out, "--") : st;
}

cddp_status hosts_script(struct cdi_buf *out, const struct hosts_job *job, uint32_t node)
{
    cddp_status st = cdi_buf_append(out, "cd", 2);

    if (st == CDDP_OK)
        st = add_word(out, job->directory);
    if (st == CDDP_OK)
        st = cdi_buf_printf(out, " && exec env %s=%s", OPTIONS_REMOTE_ENV,
                            job->terminal ? OPTIONS_REMOTE_TERMINAL : "1");
    for (char *const *e = job->env; st == CDDP_OK && *e != NULL; e++)
        st = add_word(out, *e);
    if (st == CDDP_OK)
        st = add_word(out, job->program);
    for (int i = 0; st == CDDP_OK && i < job->n_flags; i++)
        st = add_word(out, job->flags[i]);
    if (st == CDDP_OK)
        st = hosts_add_place(out, job, node);
    for (char *const *word = job->command; st == CDDP_OK && *word != NULL; word++)
        st = add_word(out, *word);
    return st == CDDP_OK ? cdi_buf_append(out, "; exit\n", 7) : st; /* where it was not run */
}
