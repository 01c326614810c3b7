/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/remote/hosts.h"

#include "common/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------------- list ----
 */

/* ssh would read a dash as a flag. */
static bool read_name(struct host *h, const char *text, size_t len)
{
    if (len == 0 || len >= sizeof h->name || text[0] == '-' || memchr(text, ' ', len) != NULL)
        return false;
    memcpy(h->name, text, len);
    return true;
}

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
    return read_name(h, text, name);
}

static cddp_status check_flags(const struct options *o, const char *flag, struct cdi_error *err)
{
    const char *other = o->standalone              ? "--standalone"
                        : o->nnodes_given          ? "--nnodes"
                        : o->node_rank >= 0        ? "--node_rank"
                        : o->rank_order != NULL    ? "--rank_order"
                        : o->rdzv_endpoint != NULL ? "--rdzv_endpoint"
                        : o->spares > 0            ? "--spares"
                        : o->local_addr != NULL    ? "--local_addr"
                                                   : NULL;

    if (o->hosts != NULL && o->hostfile != NULL)
        return cdi_fail(err, CDDP_E_INVALID, "--hosts and --hostfile both name the hosts; remove one of them");
    if (other != NULL)
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s defines the nodes and their order; remove %s (--master_addr and --master_port may set "
                        "the rendezvous endpoint)",
                        flag, other);
    if (o->world_size > 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s with --world_size: give each host's number of workers (%s)", flag,
                        o->hosts != NULL ? "a:8,b:8" : "slots=8");
    return CDDP_OK;
}

static cddp_status parse_list(struct hosts *h, const char *list, struct cdi_error *err)
{
    const char *p = list;

    for (;; p++) {
        size_t len = strcspn(p, ",");

        if (h->n == HOSTS_MAX)
            return cdi_fail(err, CDDP_E_LIMIT, "--hosts has more than %d hosts", HOSTS_MAX);
        if (!read_host(&h->v[h->n++], p, len))
            return cdi_fail(err, CDDP_E_INVALID, "--hosts: '%.*s' is not HOST or HOST:N with N from 1 to %d",
                            len < 64 ? (int)len : 64, p, OPTIONS_MAX_PROCS);
        p += len;
        if (*p == '\0')
            return CDDP_OK;
    }
}

/* Copies the word at *p, which ends before one of `ends`, and moves *p past it and the spaces after it. */
static void next_word(const char **p, const char *ends, char text[static 32])
{
    size_t len = strcspn(*p, ends);

    (void)snprintf(text, 32, "%.*s", len < 32 ? (int)len : 31, *p);
    *p += len;
    *p += strspn(*p, " \t\r");
}

/*
 * One line up to its comment: HOST or MPICH's HOST:N, [slots=N] [max_slots=N]. As in Open MPI, spaces may stand around
 * '=', and a host may be repeated without slots.
 */
static bool read_line(struct host *h, const char *line)
{
    const char *p = line + strspn(line, " \t\r");
    size_t word = strcspn(p, " \t\r\n#");
    bool good = read_host(h, p, word);

    h->has_slots = h->n_procs > 0;
    p += word;
    p += strspn(p, " \t\r");
    while (good && strchr("\n#", *p) == NULL) { /* or the end */
        char key[32], value[32];
        int64_t max;

        next_word(&p, " \t\r\n#=", key);
        good = *p == '=';
        p += good;
        p += strspn(p, " \t\r");
        next_word(&p, " \t\r\n#", value);
        if (good && strcmp(key, "slots") == 0)
            h->has_slots = good = !h->has_slots && cdi_parse_int(value, 1, OPTIONS_MAX_PROCS, &h->n_procs);
        else
            good = good && (strcmp(key, "max_slots") == 0 || strcmp(key, "max-slots") == 0) &&
                   cdi_parse_int(value, 1, INT32_MAX, &max);
    }
    return good;
}

static cddp_status add_host(struct hosts *h, const struct host *one, const char *path, struct cdi_error *err)
{
    struct host *same = NULL;

    for (uint32_t i = 0; i < h->n && same == NULL; i++)
        same = strcmp(h->v[i].name, one->name) == 0 ? &h->v[i] : NULL;
    if (same != NULL && (same->has_slots || one->has_slots))
        return cdi_fail(err, CDDP_E_INVALID, "--hostfile '%.200s': '%.64s' has slots in more than one line", path,
                        one->name);
    if (same != NULL) {
        same->n_procs += same->n_procs == 0 ? 2 : 1;
    } else {
        if (h->n == HOSTS_MAX)
            return cdi_fail(err, CDDP_E_LIMIT, "--hostfile '%.200s' has more than %d hosts", path, HOSTS_MAX);
        h->v[h->n++] = *one;
    }
    return CDDP_OK;
}

static cddp_status parse_file(struct hosts *h, const char *text, const char *path, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (int number = 1; st == CDDP_OK && *text != '\0'; number++) {
        size_t all = strcspn(text, "\n"), len = strcspn(text, "\n#");
        struct host one = {.n_procs = 0};

        if (strspn(text, " \t\r") < len && !read_line(&one, text))
            return cdi_fail(
                err, CDDP_E_INVALID,
                "--hostfile '%.200s', line %d: '%.*s' is not HOST, HOST slots=N or HOST:N with N from 1 to %d", path,
                number, len < 64 ? (int)len : 64, text, OPTIONS_MAX_PROCS);
        if (one.name[0] != '\0')
            st = add_host(h, &one, path, err);
        text += all + (text[all] == '\n');
    }
    return st != CDDP_OK || h->n > 0 ? st : cdi_fail(err, CDDP_E_INVALID, "--hostfile '%.200s' has no host", path);
}

/* --nproc_per_node is the number on each host of a file, whose slots are the most that fit there. */
static cddp_status apply_nproc(struct hosts *h, const struct options *o, struct cdi_error *err)
{
    for (uint32_t i = 0; o->nproc_given && i < h->n; i++) {
        struct host *one = &h->v[i];

        if (o->nproc_kind == OPTIONS_NPROC_COUNT && one->has_slots && o->nproc > one->n_procs)
            return cdi_fail(err, CDDP_E_INVALID,
                            "--hostfile '%.200s': '%.64s' has %lld slots, fewer than --nproc_per_node %lld; change one "
                            "of them",
                            o->hostfile, one->name, (long long)one->n_procs, (long long)o->nproc);
        one->n_procs = 0;
    }
    return CDDP_OK;
}

cddp_status hosts_parse(struct hosts *out, const struct options *o, const char *file, struct cdi_error *err)
{
    struct hosts h = {.n = 0};
    cddp_status st = check_flags(o, o->hosts != NULL ? "--hosts" : "--hostfile", err);

    if (st != CDDP_OK)
        return st;
    h.v = calloc(HOSTS_MAX, sizeof *h.v);
    if (h.v == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    st = o->hosts != NULL ? parse_list(&h, o->hosts, err) : parse_file(&h, file, o->hostfile, err);
    if (st == CDDP_OK && o->hosts == NULL)
        st = apply_nproc(&h, o, err);
    if (st == CDDP_OK)
        *out = h;
    else
        free(h.v);
    return st;
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
    cddp_status st = add_number(out, "--nnodes", job->hosts->n);

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
