/* SPDX-License-Identifier: Apache-2.0 */
/* cddprun: options -> guard | agent: machine -> plan -> run -> exit status. */
#include "common/log.h"
#include "launcher/agent.h"
#include "launcher/guard.h"
#include "launcher/help.h"
#include "launcher/machine.h"
#include "launcher/options.h"
#include "launcher/plan.h"
#include "launcher/topology.h"

#include <cddp/version.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define LISTS_MAX (16u << 20)

/* Nothing that we open later may become 0, 1 or 2. */
static void fill_standard_fds(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

static void random_id(char *buf, size_t cap)
{
    unsigned char bytes[16] = {0};
    size_t n = 0;

    (void)getrandom(bytes, sizeof bytes, 0);
    for (size_t i = 0; i < sizeof bytes && n + 2 < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%02x", bytes[i]);
}

/* A secret that nobody else has: 32 random bytes in hex, in the run directory. */
static cddp_status make_secret_file(const char *path, struct cdi_error *err)
{
    char text[65];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool written;

    random_id(text, 33);
    random_id(text + 32, 33);
    written = fd >= 0 && write(fd, text, 64) == 64;
    explicit_bzero(text, sizeof text);
    if (fd >= 0 && close(fd) == 0 && written)
        return CDDP_OK;
    return cdi_fail_errno(err, errno, "cannot write the job's secret to '%.300s'", path);
}

/* The user's secret before the fork, one of our own after it, when there is a place for it. */
static cddp_status start_guard(struct guard_link *link, const struct options *o, struct plan *plan,
                               struct cdi_secret *secret, struct cdi_error *err)
{
    static char path[PATH_MAX + 32];
    cddp_status st = CDDP_OK;

    if (o->auth_token_file != NULL) {
        st = cdi_secret_load(secret, o->auth_token_file, err);
        if (st == CDDP_OK && realpath(o->auth_token_file, path) == NULL) /* workers may change their directory */
            st = cdi_fail_errno(err, errno, "--auth_token_file '%.300s'", o->auth_token_file);
    }
    if (st == CDDP_OK)
        st = guard_start(link, o->tmpdir, o->signals, err);
    if (st == CDDP_OK && o->auth_token_file == NULL && o->standalone) {
        (void)snprintf(path, sizeof path, "%s/auth_token", link->run_dir);
        st = make_secret_file(path, err);
        if (st == CDDP_OK)
            st = cdi_secret_load(secret, path, err);
    }
    if (st == CDDP_OK && path[0] != '\0') {
        plan->secret = secret;
        plan->auth_token_file = path;
    }
    return st;
}

/* A whole file; LISTS_MAX bytes at most. */
static cddp_status read_file(const char *path, struct cdi_buf *out, struct cdi_error *err)
{
    FILE *f = fopen(path, "re");
    cddp_status st = CDDP_OK;
    char part[4096];
    size_t n;

    if (f == NULL)
        return cdi_fail_errno(err, errno, "cannot read '%.300s'", path);
    while (st == CDDP_OK && (n = fread(part, 1, sizeof part, f)) > 0)
        st = cdi_buf_append(out, part, n);
    if (st != CDDP_OK)
        st = cdi_fail(err, st, "'%.300s' is too large", path);
    else if (ferror(f))
        st = cdi_fail_errno(err, errno, "cannot read '%.300s'", path);
    (void)fclose(f);
    return st;
}

/* The order of the user's own file counts more than that of the environment. */
static cddp_status read_order(struct site *site, const struct options *o, const char *host, struct cdi_error *err)
{
    struct cdi_buf text;
    char from[320];
    cddp_status st;

    cdi_buf_init(&text, LISTS_MAX);
    (void)snprintf(from, sizeof from, "--rank_order '%.300s'", o->rank_order);
    st = read_file(o->rank_order, &text, err);
    if (st == CDDP_OK)
        st = cdi_buf_append(&text, "", 1);
    if (st == CDDP_OK)
        st = site_order(site, (const char *)cdi_buf_data(&text), o->local_addr != NULL ? o->local_addr : host, from,
                        err);
    if (st == CDDP_OK) {
        site->by_file = true;
        site->in_step = true;
        site->one_task_per_node = true;
        site->in_job = false;
        site->kind = site->kind == NULL ? "job" : site->kind;
    }
    cdi_buf_release(&text);
    return st;
}

/* Who says how many nodes there are does not need an environment that makes sense. */
static cddp_status read_site(struct site *site, const struct options *o, const char *host, struct cdi_error *err)
{
    struct site_source from = {.env = options_real_env, .host = host, .read_file = read_file};
    cddp_status st;

    if (o->standalone)
        return CDDP_OK;
    st = site_read(site, &from, err);
    if (st != CDDP_OK && !o->nnodes_given)
        return st;
    return o->rank_order != NULL ? read_order(site, o, host, err) : CDDP_OK;
}

/* One line about what no flag has said. */
static void say_detected(const struct meet *meet, const struct options *o)
{
    enum cdi_log_level level = meet->node_rank == 0 ? CDI_LOG_WARN : CDI_LOG_INFO;

    if (meet->detected[0] != '\0')
        cdi_log(level, "MAIN-SITE", "%s", meet->detected);
    else if (meet->n_nodes > 1 && o->from_variables[0] != '\0')
        cdi_log(level, "MAIN-SITE", "from the environment: %s", o->from_variables);
}

/* Which cores each worker gets. Where nobody has asked for it, whatever goes wrong is no reason not to run. */
static cddp_status place_workers(struct plan *plan, const struct options *o, const struct machine *m,
                                 struct cdi_error *err)
{
    enum bind_mode mode = (enum bind_mode)o->numa_binding;
    struct bind_topology t = {.n = 0};
    int gpu_nodes[CDI_GPUS_MAX];
    cddp_status st;

    plan->bind = calloc(plan->n_procs, sizeof *plan->bind);
    if (plan->bind == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < m->n_gpus; i++)
        gpu_nodes[i] = m->gpus[i].numa_node;
    st = mode == BIND_NONE || (mode == BIND_AUTO && !topology_is_numa("")) ? CDDP_OK : topology_read(&t, err);
    if (st == CDDP_OK)
        st = bind_make(plan->bind, plan->n_procs, mode, &t, gpu_nodes, m->n_gpus, err);
    free(t.cpus);
    if (st == CDDP_OK || mode != BIND_AUTO)
        return st;
    cdi_log(CDI_LOG_WARN, "MAIN-BIND", "workers are not bound to cores: %s", err->msg);
    for (uint32_t i = 0; i < plan->n_procs; i++)
        plan->bind[i] = (struct bind_worker){.node = -1, .gpu = -1};
    return CDDP_OK;
}

static int run(const struct options *o)
{
    struct guard_link link;
    struct cdi_secret secret;
    int status;
    struct machine machine;
    struct site site = {.kind = NULL};
    struct meet meet;
    struct plan plan;
    struct cdi_error err;
    char id[40];

    machine_read(&machine, "", o->cuda_visible_devices);
    if (read_site(&site, o, machine.host, &err) != CDDP_OK || meet_decide(&meet, o, &site, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-OPTIONS", "%s", err.msg);
        return 2;
    }
    say_detected(&meet, o);
    random_id(id, sizeof id);
    if (plan_make(&plan, o, &meet, &machine, id, &err) != CDDP_OK ||
        start_guard(&link, o, &plan, &secret, &err) != CDDP_OK || place_workers(&plan, o, &machine, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-START", "%s", err.msg);
        return 1;
    }
    status = agent_run(&plan, &link);
    cdi_secret_release(&secret);
    bind_free(plan.bind, plan.n_procs);
    free(plan.bind);
    return status;
}

int main(int argc, char **argv)
{
    struct options o;
    struct cdi_error err;
    int level;

    fill_standard_fds();
    cdi_log_set_name("cddprun");
    if (options_parse(&o, argc, argv, options_real_env, NULL, &err) != CDDP_OK) {
        cdi_log(CDI_LOG_ERROR, "MAIN-OPTIONS", "%s", err.msg);
        return 2;
    }
    level = o.log_level == NULL ? -1 : cdi_log_level_parse(o.log_level);
    if (level >= 0 && level <= CDI_LOG_ERROR)
        cdi_log_set_level((enum cdi_log_level)level);
    switch (o.what) {
    case OPTIONS_HELP:
        help_usage(stdout);
        return fflush(stdout) == 0 ? 0 : 1;
    case OPTIONS_VERSION:
        printf("cddprun %s\n", CDDP_VERSION);
        return fflush(stdout) == 0 ? 0 : 1;
    case OPTIONS_RUN:
        return run(&o);
    }
    return 2;
}
