/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Slurm job: the batch script or an interactive shell, or one process of a step on each node. Values of the job are
 * never mixed with those of the step.
 */
#include "launcher/cluster/slurm.h"

#include "common/env.h"
#include "launcher/cluster/readers.h"
#include "launcher/cluster/values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STEP_ID_MAX 0xfffffff0 /* from here on: Slurm's own steps (batch, interactive, extern) */
#define NAME_MAX_LEN 255
#define DIGITS_MAX 9
#define BRACKETS_MAX 4
#define COMPONENTS_MAX 1024

/* ------------------------------------------------------------------------------------------------- host list ---- */

struct walk {
    const char *list; /* for messages */
    bool (*each)(void *arg, const char *name);
    void *arg;
    struct cdi_error *err;
    size_t n;
    bool enough;
    char name[NAME_MAX_LEN + 1];
};

static cddp_status slurm_malformed(const struct walk *w)
{
    return cdi_fail(w->err, CDDP_E_INVALID, "'%.200s' is not a list of nodes as Slurm writes it", w->list);
}

static cddp_status slurm_append(struct walk *w, size_t *len, const char *text, size_t n)
{
    if (*len + n > NAME_MAX_LEN)
        return cdi_fail(w->err, CDDP_E_LIMIT, "the list of nodes '%.200s' has a name of more than %d bytes", w->list,
                        NAME_MAX_LEN);
    memcpy(w->name + *len, text, n);
    *len += n;
    w->name[*len] = '\0';
    return CDDP_OK;
}

static cddp_status slurm_expand(struct walk *w, size_t len, const char *p, const char *end, unsigned depth);

/* Reads "01", up to `end` or the first byte that is not a digit. */
static const char *slurm_read_number(const char *p, const char *end, uint32_t *v)
{
    const char *first = p;

    for (*v = 0; p < end && *p >= '0' && *p <= '9' && p - first < DIGITS_MAX; p++)
        *v = *v * 10 + (uint32_t)(*p - '0');
    return p == first ? NULL : p;
}

/* Expands "7" or "01-03"; the rest of the name follows each number. */
static cddp_status slurm_expand_range(struct walk *w, size_t len, const char *p, const char *range_end,
                                      const char *rest, const char *end, unsigned depth)
{
    uint32_t from, to;
    const char *q = slurm_read_number(p, range_end, &from);
    int width = q == NULL ? 0 : (int)(q - p);

    to = from;
    if (q != NULL && q < range_end && *q == '-')
        q = slurm_read_number(q + 1, range_end, &to);
    if (q != range_end || to < from)
        return slurm_malformed(w);
    for (uint32_t v = from; v <= to && !w->enough; v++) {
        char number[16];
        size_t at = len;
        int n = snprintf(number, sizeof number, "%0*" PRIu32, width, v);
        cddp_status st = slurm_append(w, &at, number, (size_t)n);

        if (st == CDDP_OK)
            st = slurm_expand(w, at, rest, end, depth + 1);
        if (st != CDDP_OK)
            return st;
    }
    return CDDP_OK;
}

/* Expands the text from p to end, which follows the first len bytes of w->name. */
static cddp_status slurm_expand(struct walk *w, size_t len, const char *p, const char *end, unsigned depth)
{
    const char *open = memchr(p, '[', (size_t)(end - p));
    const char *close = open == NULL ? NULL : memchr(open, ']', (size_t)(end - open));
    cddp_status st = slurm_append(w, &len, p, (size_t)((open == NULL ? end : open) - p));

    if (st != CDDP_OK)
        return st;
    if (open == NULL) {
        if (len == 0 || memchr(w->name, ']', len) != NULL)
            return slurm_malformed(w);
        if (w->n++ >= CLUSTER_NODES_MAX)
            return cdi_fail(w->err, CDDP_E_LIMIT, "the list of nodes '%.200s' has more than %d names", w->list,
                            CLUSTER_NODES_MAX);
        w->enough = !w->each(w->arg, w->name);
        return CDDP_OK;
    }
    if (close == NULL || depth >= BRACKETS_MAX)
        return slurm_malformed(w);
    for (const char *q = open + 1, *stop; st == CDDP_OK && !w->enough; q = stop + 1) {
        stop = memchr(q, ',', (size_t)(close - q));
        if (stop == NULL)
            stop = close;
        st = slurm_expand_range(w, len, q, stop, close + 1, end, depth);
        if (stop == close)
            break;
    }
    return st;
}

/* Returns the next comma outside brackets, or the end of the text. */
static const char *slurm_end_of_element(const char *p)
{
    bool inside = false;

    for (; *p != '\0' && (inside || *p != ','); p++) {
        if (*p == '[')
            inside = true;
        else if (*p == ']')
            inside = false;
    }
    return p;
}

cddp_status slurm_hosts(const char *list, bool (*each)(void *arg, const char *name), void *arg, struct cdi_error *err)
{
    struct walk w = {.list = list, .each = each, .arg = arg, .err = err};
    cddp_status st = CDDP_OK;

    for (const char *p = list, *end; st == CDDP_OK && !w.enough; p = end + 1) {
        end = slurm_end_of_element(p);
        st = slurm_expand(&w, 0, p, end, 0);
        if (*end == '\0')
            break;
    }
    return st;
}

/* ------------------------------------------------------------------------------------------------- variables ---- */

static bool slurm_take_first(void *arg, const char *name)
{
    (void)snprintf(arg, NAME_MAX_LEN + 1, "%s", name);
    return false;
}

struct search {
    const char *wanted;
    int64_t at; /* names before it */
    bool found;
};

static bool slurm_look_for(void *arg, const char *name)
{
    struct search *s = arg;

    s->found = strcmp(name, s->wanted) == 0;
    s->at += !s->found;
    return !s->found;
}

static struct search slurm_find_host(const char *list, const char *name)
{
    struct search s = {.wanted = name};

    if (slurm_hosts(list, slurm_look_for, &s, NULL) != CDDP_OK)
        s.found = false;
    return s;
}

struct component {
    const char *step; /* the nodes of the step */
    char *first;
    bool found;
};

static bool slurm_look_in_step(void *arg, const char *name)
{
    struct component *c = arg;

    c->found = slurm_find_host(c->step, name).found;
    return c->found ? slurm_take_first(c->first, name) : true;
}

/*
 * Node 0 of a step of a heterogeneous job. Slurm sorts the step's list by name, but numbers the nodes component by
 * component, in the order of their groups. Only sbatch and salloc set the nodes of each group. In a separate srun the
 * list is used if this node's position in it is its number. "": not known.
 */
static cddp_status slurm_find_first_of_groups(struct cluster_env *s, const char *list, int64_t n_groups,
                                              const struct cluster_source *from, struct cdi_error *err)
{
    const char *own = cluster_value(from, "SLURMD_NODENAME");
    struct component c = {.step = list, .first = s->first_node};
    char name[64];

    for (int64_t g = 0; g < n_groups; g++) {
        const char *group;
        cddp_status st;

        (void)snprintf(name, sizeof name, "SLURM_JOB_NODELIST_HET_GROUP_%" PRId64, g);
        group = cluster_value(from, name);
        if (group == NULL)
            break;
        st = slurm_hosts(group, slurm_look_in_step, &c, err);
        if (st != CDDP_OK || c.found)
            return st;
    }
    if (own != NULL) {
        struct search place = slurm_find_host(list, own);

        if (!place.found || place.at != s->node_rank)
            s->first_node[0] = '\0';
    }
    return CDDP_OK;
}

/* "1" or "1(x2)". */
static bool slurm_is_one_each(const char *tasks)
{
    return tasks == NULL || strcmp(tasks, "1") == 0 || (strncmp(tasks, "1(x", 3) == 0 && strchr(tasks, ',') == NULL);
}

static cddp_status slurm_read_step(struct cluster_env *s, const struct cluster_source *from, int64_t step,
                                   struct cdi_error *err)
{
    const char *list = cluster_value(from, "SLURM_STEP_NODELIST");
    const char *groups = cluster_value(from, "SLURM_HET_SIZE");
    int64_t job = 0, restart = 0, n_groups = 0;
    cddp_status st = cluster_number(&job, s, from, "SLURM_JOB_ID", 0, UINT32_MAX, err);

    if (st == CDDP_OK)
        st = cluster_number(&s->n_nodes, s, from, "SLURM_STEP_NUM_NODES", 1, CLUSTER_NODES_MAX, err);
    if (st == CDDP_OK)
        st = cluster_number(&s->node_rank, s, from, "SLURM_NODEID", 0, s->n_nodes - 1, err);
    if (st == CDDP_OK && cluster_value(from, "SLURM_RESTART_COUNT") != NULL)
        st = cluster_number(&restart, s, from, "SLURM_RESTART_COUNT", 0, UINT32_MAX, err);
    if (st == CDDP_OK)
        st = slurm_hosts(list == NULL ? "" : list, slurm_take_first, s->first_node, err);
    if (st == CDDP_OK && groups != NULL && cdi_parse_int(groups, 2, COMPONENTS_MAX, &n_groups))
        st = slurm_find_first_of_groups(s, list, n_groups, from, err);
    if (st != CDDP_OK)
        return st;
    (void)snprintf(s->nodes, sizeof s->nodes, "%s", list);
    s->in_step = true;
    s->one_task_per_node = slurm_is_one_each(cluster_value(from, "SLURM_STEP_TASKS_PER_NODE"));
    (void)snprintf(s->run_id, sizeof s->run_id, "%" PRId64 ".%" PRId64, job, step);
    s->port = cluster_port(s->run_id);
    (void)snprintf(s->run_id, sizeof s->run_id, "%" PRId64 ".%" PRId64 ".%" PRId64, job, step, restart);
    return CDDP_OK;
}

cddp_status slurm_read(struct cluster_env *out, const struct cluster_source *from, struct cdi_error *err)
{
    struct cluster_env s = {
        .kind = "Slurm step", .start = "srun --ntasks-per-node=1", .job_id = cluster_value(from, "SLURM_JOB_ID")};
    const char *nodes = cluster_value(from, "SLURM_JOB_NUM_NODES"), *step_text = cluster_value(from, "SLURM_STEP_ID");
    cddp_status st = CDDP_OK;
    int64_t step;

    if (step_text != NULL && cdi_parse_int(step_text, 0, STEP_ID_MAX, &step)) {
        st = slurm_read_step(&s, from, step, err);
    } else if (s.job_id != NULL) {
        if (nodes == NULL)
            nodes = cluster_value(from, "SLURM_NNODES");
        s.in_job = nodes != NULL && cdi_parse_int(nodes, 1, CLUSTER_NODES_MAX, &s.job_nodes);
    }
    if (!s.in_step)
        s.kind = s.in_job ? "Slurm job" : NULL;
    if (st == CDDP_OK)
        *out = s;
    return st;
}
