/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cluster/hostlist.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HOST_MAX 255
#define BLANKS " \t\r\n"

/* Compares a and b, with or without their domain; two full names must be equal. */
static bool hostlist_is_same(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t shorter = a_len < b_len ? a_len : b_len;

    if (strncasecmp(a, b, shorter) != 0)
        return false;
    return a_len == b_len || (a_len > shorter ? a[shorter] : b[shorter]) == '.';
}

/* The next host's name at *p, which moves to the end of its line; NULL: no more. */
static const char *hostlist_next(const char **p, size_t *len)
{
    while (**p != '\0') {
        const char *name = *p + strspn(*p, " \t\r");

        *len = strcspn(name, " \t\r\n#");
        *p = name + strcspn(name, "\n");
        *p += **p == '\n';
        if (*len > 0)
            return name;
    }
    return NULL;
}

cddp_status hostlist_find(struct cluster_env *s, const char *text, const char *host, const char *from,
                          struct cdi_error *err)
{
    int64_t n = 0, mine = -1;
    size_t len;
    char first[HOST_MAX + 1] = "";

    for (const char *p = text, *name; (name = hostlist_next(&p, &len)) != NULL; n++) {
        if (len > HOST_MAX || n >= CLUSTER_NODES_MAX)
            return cdi_fail(err, CDDP_E_INVALID, "%s: a name is longer than %d bytes, or there are more than %d hosts",
                            from, HOST_MAX, CLUSTER_NODES_MAX);
        if (n == 0)
            (void)snprintf(first, sizeof first, "%.*s", (int)len, name);
        if (!hostlist_is_same(name, len, host, strlen(host)))
            continue;
        if (mine >= 0)
            return cdi_fail(err, CDDP_E_INVALID, "%s lists this host, '%.200s', twice", from, host);
        mine = n;
    }
    if (n == 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s lists no host", from);
    if (mine < 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND,
                        "%s does not list this host, '%.200s' (set another name with --local_addr)", from, host);
    s->n_nodes = n;
    s->node_rank = mine;
    (void)snprintf(s->first_node, sizeof s->first_node, "%s", first);
    return CDDP_OK;
}

cddp_status hostlist_unique(const char *text, bool with_slots, struct cdi_buf *out, int64_t *n, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    bool is_slots = false;

    *n = 0;
    for (const char *p = text + strspn(text, BLANKS); st == CDDP_OK && *p != '\0'; p += strspn(p, BLANKS)) {
        size_t len = strcspn(p, BLANKS);
        bool known = is_slots, at_start = true;
        const char *have = (const char *)cdi_buf_data(out);

        for (size_t i = 0; !known && i + len < out->len; i++) {
            known = at_start && memcmp(have + i, p, len) == 0 && have[i + len] == '\n';
            at_start = have[i] == '\n';
        }
        if (!known) {
            st = cdi_buf_append(out, p, len);
            if (st == CDDP_OK)
                st = cdi_buf_append(out, "\n", 1);
            ++*n;
        }
        is_slots = with_slots && !is_slots;
        p += len;
    }
    if (st == CDDP_OK)
        st = cdi_buf_append(out, "", 1);
    return st == CDDP_OK ? st : cdi_fail(err, st, "the list of the job's hosts is too long");
}

void hostlist_show(struct cluster_env *s, const char *lines)
{
    size_t at = 0;

    for (const char *p = lines; *p != '\0' && at + 3 < sizeof s->nodes; p++) {
        if (*p != '\n') {
            s->nodes[at++] = *p;
        } else if (p[1] != '\0') {
            s->nodes[at++] = ',';
            s->nodes[at++] = ' ';
        }
    }
    s->nodes[at] = '\0';
}

cddp_status hostlist_place(struct cluster_env *s, const struct cluster_source *from, const struct cdi_buf *hosts,
                           const char *list, bool is_script, struct cdi_error *err)
{
    const char *lines = (const char *)cdi_buf_data(hosts);

    hostlist_show(s, lines);
    s->in_job = is_script;
    if (is_script || s->job_nodes < 2)
        return CDDP_OK;
    s->in_step = true;
    s->one_task_per_node = true;
    return hostlist_find(s, lines, from->host, list, err);
}
