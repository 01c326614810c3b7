/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/plan.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/signal_abbrev.h"
#include "common/visible.h"
#include "protocol/flight_stop.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LOCAL_RANK_MACRO "${local_rank}"

/* This node's share of --world_size, if the number of nodes is given otherwise. */
static cddp_status share_world_size(uint32_t *out, const struct options *o, uint32_t n_nodes, struct cdi_error *err)
{
    int64_t each = o->world_size / n_nodes;

    if (each * n_nodes != o->world_size || each > OPTIONS_MAX_PROCS)
        return cdi_fail(err, CDDP_E_INVALID,
                        "--world_size %" PRId64
                        " cannot be divided evenly among %u nodes; give --nproc_per_node instead",
                        o->world_size, n_nodes);
    *out = (uint32_t)each;
    return CDDP_OK;
}

static cddp_status plan_count_workers(uint32_t *out, const struct options *o, uint32_t n_nodes, const struct machine *m,
                                      struct cdi_error *err)
{
    if (o->world_size > 0 && !o->nproc_given)
        return share_world_size(out, o, n_nodes, err);
    switch (o->nproc_kind) {
    case OPTIONS_NPROC_COUNT:
        *out = (uint32_t)o->nproc;
        return CDDP_OK;
    case OPTIONS_NPROC_CPU:
        *out = m->n_cores;
        return CDDP_OK;
    case OPTIONS_NPROC_GPU:
        if (m->n_gpus == 0)
            return cdi_fail(err, CDDP_E_NOT_FOUND, "--nproc_per_node=gpu, but %s; give a number, or cpu",
                            o->cuda_visible_devices != NULL ? "CUDA_VISIBLE_DEVICES hides all GPUs of this node"
                                                            : "this node has no NVIDIA GPU");
        *out = m->n_gpus;
        return CDDP_OK;
    case OPTIONS_NPROC_AUTO:
        *out = m->n_gpus > 0 ? m->n_gpus : m->n_cores;
        return CDDP_OK;
    }
    return CDDP_E_INVALID;
}

/* torchrun runs every program by Python by default; cddprun goes by the program's name. */
static void choose_interpreter(struct plan *p, const struct options *o)
{
    const char *dot = strrchr(o->command[0], '.');
    bool python = o->module || o->run_path || (!o->no_python && dot != NULL && strcmp(dot, ".py") == 0);

    if (!python)
        return;
    p->interpreter[0] = o->python_exec != NULL ? o->python_exec : "python3";
    p->interpreter[1] = "-u";
    p->interpreter[2] = o->module ? "-m" : NULL;
}

static cddp_status check_virtual(const struct plan *p, const struct options *o, struct cdi_error *err)
{
    uint32_t n = 1;

    if (!o->virtual_local_rank || o->cuda_visible_devices == NULL || *o->cuda_visible_devices == '\0')
        return CDDP_OK;
    for (const char *c = o->cuda_visible_devices; *c != '\0'; c++)
        n += *c == ',';
    return p->n_procs <= n ? CDDP_OK
                           : cdi_fail(err, CDDP_E_INVALID,
                                      "--virtual_local_rank gives each of the %u workers one entry of "
                                      "CUDA_VISIBLE_DEVICES='%.64s', which has only %u",
                                      p->n_procs, o->cuda_visible_devices, n);
}

/* The number of ranks of several nodes is known only after all have joined. */
static cddp_status check_interactive(const struct plan *p, const struct options *o, struct cdi_error *err)
{
    if (p->max_nodes > 1 || p->endpoint.spares > 0 || o->interactive < (int64_t)p->n_procs)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, "--interactive %" PRId64 " is out of range for %u ranks: 0 to %u",
                    o->interactive, p->n_procs, p->n_procs - 1);
}

const char *plan_program(const struct plan *p)
{
    return p->interpreter[0] != NULL ? p->interpreter[0] : p->command[0];
}

const char *plan_shown_program(const struct plan *p)
{
    return p->options->preflight == OPTIONS_PREFLIGHT_ONLY ? "cddp-preflight" : p->command[0];
}

bool plan_runs_python(const struct plan *p)
{
    const char *slash = strrchr(p->command[0], '/');
    const char *name = slash == NULL ? p->command[0] : slash + 1;

    return p->interpreter[0] != NULL || strncmp(name, "python", strlen("python")) == 0;
}

cddp_status plan_make(struct plan *out, const struct options *o, const struct endpoint *endpoint,
                      const struct machine *m, const char *random_id, struct cdi_error *err)
{
    struct plan p = {
        .min_nodes = endpoint->min_nodes,
        .max_nodes = endpoint->max_nodes,
        .max_restarts = (uint32_t)o->max_restarts,
        .wait_on_failure = o->on_failure == OPTIONS_WAIT,
        .endpoint = *endpoint,
        .role = o->role,
        .host = o->local_addr != NULL ? o->local_addr : m->host,
        .options = o,
        .command = o->command,
    };
    const char *name = random_id;
    cddp_status st = plan_count_workers(&p.n_procs, o, endpoint->n_nodes, m, err);

    if (st == CDDP_OK)
        st = check_virtual(&p, o, err);
    if (st == CDDP_OK)
        st = check_interactive(&p, o, err);
    if (st != CDDP_OK)
        return st;
    if (o->run_id != NULL)
        name = o->run_id;
    else if (endpoint->run_id[0] != '\0')
        name = endpoint->run_id;
    else if (endpoint->n_nodes > 1)
        name = "none";
    (void)cdi_visible_line(p.run_id, sizeof p.run_id, name, strlen(name)); /* as the rendezvous decodes it */
    choose_interpreter(&p, o);
    *out = p;
    return CDDP_OK;
}

/* ----------------------------------------------------------------------------------------------- environment ---- */

struct strings {
    char **v;
    size_t n, cap;
    bool failed; /* out of memory: no more strings are added */
};

static void strings_add(struct strings *s, char *text)
{
    if (text == NULL || s->failed || s->n + 1 >= s->cap) {
        s->failed = true;
        free(text);
        return;
    }
    s->v[s->n++] = text;
}

static bool plan_same_name(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");

    return strncmp(a, b, n) == 0 && b[n] == '=';
}

/* Sets NAME=value, which replaces an older value. */
__attribute__((format(printf, 2, 3))) static void strings_set(struct strings *s, const char *fmt, ...)
{
    char *text;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        s->failed = true;
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (plan_same_name(text, s->v[i])) {
            free(s->v[i]);
            s->v[i] = text;
            return;
        }
    }
    strings_add(s, text);
}

static bool strings_have(const struct strings *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (plan_same_name(name, s->v[i]))
            return true;
    return false;
}

static char **strings_end(struct strings *s)
{
    if (!s->failed)
        return s->v;
    plan_free_strings(s->v);
    return NULL;
}

void plan_free_strings(char **strings)
{
    for (size_t i = 0; strings != NULL && strings[i] != NULL; i++)
        free(strings[i]);
    free(strings);
}

/* NAME=VALUE sets a variable; NAME alone is in the environment already. */
static void set_exports(struct strings *s, const struct options *o)
{
    for (size_t i = 0; i < o->n_exports; i++)
        if (strchr(o->exports[i], '=') != NULL)
            strings_set(s, "%s", o->exports[i]);
}

/* The flag precedes the variable, which the worker would read, too. */
static void set_crash_stack(struct strings *s, const struct options *o)
{
    if (o->crash_stack == OPTIONS_OFF)
        strings_set(s, "CDDP_CRASH_STACK=off");
    else if (strings_have(s, "CDDP_CRASH_STACK"))
        strings_set(s, "CDDP_CRASH_STACK=on");
}

/* The worker's entry in the list of visible devices, or its local rank if there is no list. */
static void set_one_device(struct strings *s, const char *visible, uint32_t local_rank)
{
    const char *p = visible;

    for (uint32_t i = 0; p != NULL && i < local_rank; i++) {
        p = strchr(p, ',');
        p = p == NULL ? NULL : p + 1;
    }
    if (visible == NULL)
        strings_set(s, "CUDA_VISIBLE_DEVICES=%u", local_rank);
    else
        strings_set(s, "CUDA_VISIBLE_DEVICES=%.*s", p == NULL ? 0 : (int)strcspn(p, ","), p == NULL ? "" : p);
}

static void set_ranks(struct strings *s, const struct plan *p, const struct plan_rank *r)
{
    const struct cdi_msg_assign *a = r->assign;
    uint32_t rank = a->rank_base + r->local_rank;

    strings_set(s, "LOCAL_RANK=%u", p->options->virtual_local_rank ? 0 : r->local_rank);
    if (p->options->virtual_local_rank)
        set_one_device(s, p->options->cuda_visible_devices, r->local_rank);
    strings_set(s, "RANK=%u", rank);
    strings_set(s, "GROUP_RANK=%d", a->node_rank);
    strings_set(s, "ROLE_RANK=%u", rank);
    strings_set(s, "ROLE_NAME=%s", p->role);
    strings_set(s, "LOCAL_WORLD_SIZE=%u", p->n_procs);
    strings_set(s, "WORLD_SIZE=%u", a->world_size);
    strings_set(s, "GROUP_WORLD_SIZE=%u", a->n_nodes);
    strings_set(s, "ROLE_WORLD_SIZE=%u", a->world_size);
}

/* The signals that a worker that asks takes as a request to stop: batch systems send them to workers, too. */
static void set_stop_signals(struct strings *s, const struct options *o)
{
    char text[256] = "";
    size_t n = 0;

    for (int i = 1; i <= 64; i++) {
        const char *name = (options_ending(o) >> (i - 1) & 1) != 0 ? cdi_signal_abbrev(i) : NULL;

        if (name != NULL && n < sizeof text)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n > 0 ? "," : "", name);
    }
    if (n > 0)
        strings_set(s, CDI_STOP_SIGNALS_ENV "=%s", text);
}

static void set_job(struct strings *s, const struct plan *p, const struct plan_rank *r)
{
    const struct cdi_msg_assign *a = r->assign;

    strings_set(s, "MASTER_ADDR=%s", a->master_addr);
    strings_set(s, "MASTER_PORT=%u", a->master_port);
    strings_set(s, "TORCHELASTIC_RESTART_COUNT=%u", a->restart_count);
    strings_set(s, "TORCHELASTIC_MAX_RESTARTS=%u", p->max_restarts);
    strings_set(s, "TORCHELASTIC_RUN_ID=%s", p->run_id);
    strings_set(s, "TORCHELASTIC_USE_AGENT_STORE=True");
    strings_set(s, "TORCHELASTIC_ERROR_FILE=%s", r->error_file);
    strings_set(s, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", p->options->signals_to_handle);
    set_stop_signals(s, p->options);
    if (!strings_have(s, "TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        strings_set(s, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    if (p->n_procs > 1 && !strings_have(s, "OMP_NUM_THREADS"))
        strings_set(s, "OMP_NUM_THREADS=1");
    /* A worker that dies of SIGSEGV or SIGABRT then prints its Python stack, which the report shows. */
    if (plan_runs_python(p) && !strings_have(s, "PYTHONFAULTHANDLER"))
        strings_set(s, "PYTHONFAULTHANDLER=1");
    strings_set(s, "CDDP_FLIGHT=%s", r->flight);
    if (p->auth_token_file != NULL)
        strings_set(s, CDI_SECRET_ENV "=%s", p->auth_token_file);
}

/*
 * Variables of flags that name an output of this run. A cddprun that a worker starts would write to the same one. (All
 * other variables of flags are inherited, as under torchrun.)
 */
static const char *const outputs[] = {"CDDP_TRACE=", "PET_REPORT=", "PET_STATUS_FD="};

static bool is_output(const char *variable)
{
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        if (strncmp(variable, outputs[i], strlen(outputs[i])) == 0)
            return true;
    return false;
}

/* Does --export pass on the value that this variable has? */
static bool is_exported(const struct options *o, const char *variable)
{
    const size_t n = strcspn(variable, "=");

    for (size_t i = 0; i < o->n_exports; i++)
        if (strncmp(o->exports[i], variable, n) == 0 && o->exports[i][n] == '\0')
            return true;
    return false;
}

char **plan_env(const struct plan *p, const struct plan_rank *r, char *const *base)
{
    struct strings s = {0};

    while (base[s.cap] != NULL)
        s.cap++;
    s.cap += 32 + p->options->n_exports; /* our variables and the final NULL */
    s.v = calloc(s.cap, sizeof *s.v);
    if (s.v == NULL)
        return NULL;
    for (size_t i = 0; base[i] != NULL; i++)
        if (!is_output(base[i]) || is_exported(p->options, base[i]))
            strings_add(&s, strdup(base[i]));
    set_crash_stack(&s, p->options);
    if (p->options->data_ports != NULL)
        strings_set(&s, "CDDP_DATA_PORTS=%s", p->options->data_ports);
    set_exports(&s, p->options);
    set_ranks(&s, p, r);
    set_job(&s, p, r);
    return strings_end(&s);
}

/* ------------------------------------------------------------------------------------------------- arguments ---- */

static char *substitute(const char *arg, uint32_t local_rank)
{
    const size_t macro = strlen(LOCAL_RANK_MACRO);
    struct cdi_buf out;
    const char *p = arg, *hit;
    cddp_status st = CDDP_OK;

    cdi_buf_init(&out, 0);
    while (st == CDDP_OK && (hit = strstr(p, LOCAL_RANK_MACRO)) != NULL) {
        bool quoted = hit > p && hit[-1] == '$';

        st = cdi_buf_append(&out, p, (size_t)(hit - p) - quoted);
        if (st == CDDP_OK)
            st = quoted ? cdi_buf_append(&out, hit, macro) : cdi_buf_printf(&out, "%u", local_rank);
        p = hit + macro;
    }
    if (st == CDDP_OK)
        st = cdi_buf_append(&out, p, strlen(p) + 1);
    if (st != CDDP_OK) {
        cdi_buf_release(&out);
        return NULL;
    }
    /* Nothing was consumed, so the text starts at the allocation. */
    return (char *)out.mem;
}

char **plan_args(const struct plan *p, uint32_t local_rank)
{
    struct strings s = {0};

    while (p->command[s.cap] != NULL)
        s.cap++;
    s.cap += 2 + sizeof p->interpreter / sizeof p->interpreter[0];
    s.v = calloc(s.cap, sizeof *s.v);
    if (s.v == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof p->interpreter / sizeof p->interpreter[0] && p->interpreter[i] != NULL; i++)
        strings_add(&s, strdup(p->interpreter[i]));
    for (size_t i = 0; p->command[i] != NULL; i++)
        strings_add(&s, i == 0 ? strdup(p->command[i]) : substitute(p->command[i], local_rank));
    return strings_end(&s);
}
