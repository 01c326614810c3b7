/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pod of a Kubernetes Job with completionMode: Indexed, which is also what JobSet and Kubeflow's TrainJob make. The
 * environment has the pod's index, JOB_COMPLETION_INDEX, but not the number of pods. The pod's host name is JOB-INDEX;
 * with a subdomain, the kubelet writes the full name into /etc/hosts, and the name of pod 0 differs in the index only.
 * https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication
 */
#include "launcher/cluster/hostlist.h"
#include "launcher/cluster/readers.h"
#include "launcher/cluster/values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Returns the length of the domain that follows name in a full name at the start of text; 0 if text has another name.
 */
static size_t domain_length(const char *text, const char *name, size_t n_name)
{
    size_t n = strcspn(text, " \t\r\n#");

    return n > n_name + 1 && memcmp(text, name, n_name) == 0 && text[n_name] == '.' ? n - n_name : 0;
}

/* Finds ".SUBDOMAIN.NAMESPACE.svc.DOMAIN" of this pod in the text of /etc/hosts: address, full name, name. */
static const char *find_domain(const char *hosts, const char *name, size_t n_name, size_t *length)
{
    for (const char *line = hosts; *line != '\0'; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *p = line + strspn(line, " \t");

        p += strcspn(p, " \t\r\n#");
        while (*(p += strspn(p, " \t")) != '\0' && strchr("\r\n#", *p) == NULL) {
            *length = domain_length(p, name, n_name);
            if (*length > 0)
                return p + n_name;
            p += strcspn(p, " \t\r\n#");
        }
    }
    return NULL;
}

/* Sets first_node to the full name of pod 0. Without a subdomain other pods cannot find it by name: "" stays. */
static cddp_status name_first_pod(struct cluster_env *s, const struct cluster_source *from, size_t n_job, size_t n_name,
                                  struct cdi_error *err)
{
    const char *domain = NULL;
    struct cdi_error ignored;
    struct cdi_buf hosts;
    size_t length = domain_length(from->host, from->host, n_name);
    cddp_status st = CDDP_OK;

    cdi_buf_init(&hosts, HOSTLIST_MAX);
    if (length > 0) { /* setHostnameAsFQDN: true */
        domain = from->host + n_name;
    } else if (from->read_file("/etc/hosts", &hosts, &ignored) == CDDP_OK) {
        st = cdi_buf_append(&hosts, "", 1);
        if (st == CDDP_OK)
            domain = find_domain((const char *)cdi_buf_data(&hosts), from->host, n_name, &length);
        else
            (void)cdi_fail(err, st, "'/etc/hosts' is too large");
    }
    if (domain != NULL && n_job + 2 + length < sizeof s->first_node)
        (void)snprintf(s->first_node, sizeof s->first_node, "%.*s-0%.*s", (int)n_job, from->host, (int)length, domain);
    cdi_buf_release(&hosts);
    return st;
}

cddp_status kubernetes_read(struct cluster_env *s, const struct cluster_source *from, struct cdi_error *err)
{
    size_t n_name = strcspn(from->host, "."), n_suffix;
    char suffix[24];
    cddp_status st;

    s->kind = "Kubernetes Job";
    s->start = "one pod per node";
    st = cluster_number(&s->node_rank, s, from, "JOB_COMPLETION_INDEX", 0, INT32_MAX, err);
    if (st != CDDP_OK)
        return st;
    s->in_step = true;
    s->one_task_per_node = true;
    s->nodes_by_user = true;
    n_suffix = (size_t)snprintf(suffix, sizeof suffix, "-%" PRId64, s->node_rank);
    /* With hostNetwork: true the name is that of the machine. */
    if (n_name <= n_suffix || memcmp(from->host + n_name - n_suffix, suffix, n_suffix) != 0)
        return CDDP_OK;
    (void)snprintf(s->run_id, sizeof s->run_id, "%.*s", (int)(n_name - n_suffix), from->host);
    return name_first_pod(s, from, n_name - n_suffix, n_name, err);
}
