/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/cluster/cluster.h"

#include "common/env.h"
#include "launcher/cluster/slurm.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HOST_MAX 255
#define LISTS_MAX (16u << 20)

uint16_t cluster_port(const char *job)
{
    uint32_t hash = 2166136261u;

    for (const char *p = job; *p != '\0'; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return (uint16_t)(CLUSTER_FIRST_PORT + hash % (CLUSTER_N_PORTS - CLUSTER_JOB_PORTS + 1));
}

/* -------------------------------------------------------------------------------------------- lists of hosts ---- */

/* a and b with or without their domain; of two full names all counts. */
static bool same_host(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t shorter = a_len < b_len ? a_len : b_len;

    if (strncasecmp(a, b, shorter) != 0)
        return false;
    return a_len == b_len || (a_len > shorter ? a[shorter] : b[shorter]) == '.';
}

/* The next host's name at *p, which moves to the end of its line; NULL: no more. */
static const char *next_host(const char **p, size_t *len)
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

cddp_status cluster_order(struct cluster_env *s, const char *text, const char *host, const char *from,
                          struct cdi_error *err)
{
    int64_t n = 0, mine = -1;
    size_t len;
    char first[HOST_MAX + 1] = "";

    for (const char *p = text, *name; (name = next_host(&p, &len)) != NULL; n++) {
        if (len > HOST_MAX || n >= CLUSTER_NODES_MAX)
            return cdi_fail(err, CDDP_E_INVALID, "%s: a name is longer than %d bytes, or there are more than %d hosts",
                            from, HOST_MAX, CLUSTER_NODES_MAX);
        if (n == 0)
            (void)snprintf(first, sizeof first, "%.*s", (int)len, name);
        if (!same_host(name, len, host, strlen(host)))
            continue;
        if (mine >= 0)
            return cdi_fail(err, CDDP_E_INVALID, "%s has this host, '%.200s', twice", from, host);
        mine = n;
    }
    if (n == 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s has no host in it", from);
    if (mine < 0)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "%s does not have this host, '%.200s' (--local_addr says another name)",
                        from, host);
    s->n_nodes = n;
    s->node_rank = mine;
    (void)snprintf(s->first_node, sizeof s->first_node, "%s", first);
    return CDDP_OK;
}

/* "a 4 b 4" or one name a line, each once, in the order in which they come: one name a line. */
static cddp_status unique_hosts(const char *text, bool with_slots, struct cdi_buf *out, int64_t *n,
                                struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    bool is_slots = false;

    *n = 0;
    for (const char *p = text; st == CDDP_OK && *p != '\0'; p += strspn(p, " \t\r\n")) {
        size_t len = strcspn(p, " \t\r\n");
        bool known = is_slots, at_start = true;
        const char *have = (const char *)cdi_buf_data(out);

        for (size_t i = 0; !known && i + len < out->len; i++) {
            known = at_start && memcmp(have + i, p, len) == 0 && have[i + len] == '\n';
            at_start = have[i] == '\n';
        }
        if (!known && len > 0) {
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

/* "a, b, c" of one name a line, for a sentence. */
static void show_hosts(struct cluster_env *s, const char *lines)
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

/* ---------------------------------------------------------------------------------------------- environments ---- */

static const char *get(const struct cluster_source *from, const char *name)
{
    const char *value = from->env(name, from->arg);

    return value == NULL || *value == '\0' ? NULL : value;
}

static cddp_status number(int64_t *out, const struct cluster_env *s, const struct cluster_source *from,
                          const char *name, int64_t min, int64_t max, struct cdi_error *err)
{
    const char *text = get(from, name);

    if (text != NULL && cdi_parse_int(text, min, max, out))
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID,
                    "%s: %s is '%.64s', which is no number from %" PRId64 " to %" PRId64
                    "; give --nnodes, --node_rank and --master_addr, or --standalone",
                    s->kind, name, text == NULL ? "" : text, min, max);
}

/* "1234.0;tcp://10.0.0.1,192.168.0.1:45337": the first address of the machine where mpirun runs. */
static void hnp_address(struct cluster_env *s, const char *uri)
{
    const char *tcp = uri == NULL ? NULL : strstr(uri, "tcp://");
    size_t n = tcp == NULL ? 0 : strcspn(tcp + 6, ",:/;");

    if (n > 0 && n < sizeof s->first_node)
        (void)snprintf(s->first_node, sizeof s->first_node, "%.*s", (int)n, tcp + 6);
}

/* mpirun starts daemons by srun or pbsdsh, whose variables our environment then has too: so it is asked first. */
static cddp_status read_open_mpi(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err)
{
    const char *space = get(from, "PMIX_NAMESPACE"), *job = get(from, "OMPI_MCA_ess_base_jobid");
    int64_t local = 1;
    cddp_status st;

    s->kind = "Open MPI job";
    s->start = "mpirun --map-by ppr:1:node";
    st = number(&s->n_nodes, s, from, "OMPI_COMM_WORLD_SIZE", 1, CLUSTER_NODES_MAX, err);
    if (st == CDDP_OK)
        st = number(&s->node_rank, s, from, "OMPI_COMM_WORLD_RANK", 0, s->n_nodes - 1, err);
    if (st == CDDP_OK && get(from, "OMPI_COMM_WORLD_LOCAL_SIZE") != NULL)
        st = number(&local, s, from, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, CLUSTER_NODES_MAX, err);
    if (st != CDDP_OK)
        return st;
    s->in_step = true;
    s->one_task_per_node = local == 1;
    hnp_address(s, get(from, "OMPI_MCA_orte_hnp_uri"));
    job = job != NULL ? job : space != NULL ? space : get(from, "OMPI_MCA_orte_hnp_uri");
    (void)snprintf(s->run_id, sizeof s->run_id, "%.80s", job == NULL ? "mpirun" : job);
    s->port = cluster_port(s->run_id);
    return CDDP_OK;
}

static void name_job(struct cluster_env *s)
{
    (void)snprintf(s->run_id, sizeof s->run_id, "%.80s", s->job_id);
    s->port = cluster_port(s->job_id);
}

/* This host's place among the job's, unless this is the job's script, which runs on the first of them only. */
static cddp_status place_among(struct cluster_env *s, const struct cluster_source *from, const struct cdi_buf *hosts,
                               const char *list, bool is_script, struct cdi_error *err)
{
    const char *lines = (const char *)cdi_buf_data(hosts);

    show_hosts(s, lines);
    s->in_job = is_script;
    if (is_script || s->job_nodes < 2)
        return CDDP_OK;
    s->in_step = true;
    s->one_task_per_node = true;
    return cluster_order(s, lines, from->host, list, err);
}

static cddp_status read_pbs(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err)
{
    const char *path = get(from, "PBS_NODEFILE"), *task = get(from, "PBS_TASKNUM");
    struct cdi_buf text, hosts;
    cddp_status st;

    s->kind = "PBS job";
    s->start = "pbsdsh -u";
    s->job_id = get(from, "PBS_JOBID");
    name_job(s);
    cdi_buf_init(&text, LISTS_MAX);
    cdi_buf_init(&hosts, LISTS_MAX);
    st = path == NULL ? CDDP_OK : from->read_file(path, &text, err);
    if (st == CDDP_OK)
        st = cdi_buf_append(&text, "", 1);
    if (st == CDDP_OK)
        st = unique_hosts((const char *)cdi_buf_data(&text), false, &hosts, &s->job_nodes, err);
    /* The job's own shell is its first task; what pbsdsh starts comes behind. */
    if (st == CDDP_OK)
        st = place_among(s, from, &hosts, "PBS_NODEFILE", task == NULL || strcmp(task, "1") == 0, err);
    cdi_buf_release(&text);
    cdi_buf_release(&hosts);
    return st;
}

/* jsrun counts its tasks itself; the host in front of the compute nodes, where the job's script runs, is none of them.
 */
static cddp_status read_jsrun(struct cluster_env *s, const struct cluster_source *from, const char *hosts,
                              struct cdi_error *err)
{
    int64_t local = 1;
    cddp_status st = number(&s->n_nodes, s, from, "JSM_NAMESPACE_SIZE", 1, CLUSTER_NODES_MAX, err);

    if (st == CDDP_OK)
        st = number(&s->node_rank, s, from, "JSM_NAMESPACE_RANK", 0, s->n_nodes - 1, err);
    if (st == CDDP_OK && get(from, "JSM_NAMESPACE_LOCAL_SIZE") != NULL)
        st = number(&local, s, from, "JSM_NAMESPACE_LOCAL_SIZE", 1, CLUSTER_NODES_MAX, err);
    if (st != CDDP_OK)
        return st;
    for (int64_t skip = s->job_nodes - s->n_nodes; skip > 0; skip--)
        hosts += strcspn(hosts, "\n") + 1;
    show_hosts(s, hosts);
    (void)snprintf(s->first_node, sizeof s->first_node, "%.*s", (int)strcspn(hosts, "\n"), hosts);
    s->in_step = true;
    s->one_task_per_node = local == 1;
    return CDDP_OK;
}

static cddp_status read_lsf(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err)
{
    const char *list = get(from, "LSB_MCPU_HOSTS");
    bool by_jsrun = get(from, "JSM_NAMESPACE_SIZE") != NULL, by_blaunch = get(from, "LSF_PM_TASKID") != NULL;
    struct cdi_buf hosts;
    cddp_status st;

    s->kind = "LSF job";
    s->start = "blaunch, or jsrun -r 1";
    s->job_id = get(from, "LSB_JOBID");
    name_job(s);
    cdi_buf_init(&hosts, LISTS_MAX);
    st = unique_hosts(list == NULL ? "" : list, true, &hosts, &s->job_nodes, err);
    if (st == CDDP_OK)
        st = by_jsrun ? read_jsrun(s, from, (const char *)cdi_buf_data(&hosts), err)
                      : place_among(s, from, &hosts, "LSB_MCPU_HOSTS", !by_blaunch, err);
    cdi_buf_release(&hosts);
    return st;
}

cddp_status cluster_read(struct cluster_env *out, const struct cluster_source *from, struct cdi_error *err)
{
    struct cluster_env s = {.kind = NULL};
    cddp_status st;

    if (get(from, "OMPI_COMM_WORLD_SIZE") != NULL)
        st = read_open_mpi(&s, from, err);
    else if (get(from, "SLURM_JOB_ID") != NULL || get(from, "SLURM_STEP_ID") != NULL)
        st = slurm_read(&s, from->env, from->arg, err);
    else if (get(from, "PBS_JOBID") != NULL)
        st = read_pbs(&s, from, err);
    else if (get(from, "LSB_JOBID") != NULL)
        st = read_lsf(&s, from, err);
    else
        st = CDDP_OK;
    if (st == CDDP_OK)
        *out = s;
    return st;
}
