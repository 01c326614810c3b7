/* SPDX-License-Identifier: Apache-2.0 */
/* The table of flags and the parser that it drives. */
#include "launcher/options.h"

#include "common/env.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_LEN 48

enum kind {
    KIND_SWITCH,  /* bool; PET_* is 0 or 1 */
    KIND_NUMBER,  /* int64_t in [min, max] */
    KIND_TEXT,    /* const char *, not empty */
    KIND_NPROC,   /* N, cpu, gpu, auto */
    KIND_NNODES,  /* N or MIN:MAX */
    KIND_STOP,    /* bool: "stop" or "wait" */
    KIND_HELP,    /* what = OPTIONS_HELP */
    KIND_VERSION, /* what = OPTIONS_VERSION */
};

struct flag {
    const char *name; /* with underscores */
    const char *env;  /* NULL: none */
    enum kind kind;
    size_t offset;
    int64_t min, max;
    const char *fallback; /* read like a value from the command line; NULL: none */
    const char *value;    /* how --help calls the value */
    const char *help;
};

#define AT(member) offsetof(struct options, member)

/* clang-format off */
static const struct flag flags[] = {
    {"nproc_per_node", "PET_NPROC_PER_NODE", KIND_NPROC, AT(nproc), 1, OPTIONS_MAX_PROCS, "1", "N|cpu|gpu|auto",
     "workers on this machine: a number, one per usable core, one per GPU, or GPUs if there are any, else cores"},
    {"standalone", "PET_STANDALONE", KIND_SWITCH, AT(standalone), 0, 1, "0", NULL,
     "one machine, any free port; jobs side by side do not disturb each other"},
    {"nnodes", "PET_NNODES", KIND_NNODES, AT(min_nodes), 1, OPTIONS_MAX_NODES, "1", "N",
     "machines; one cddprun is started on each, with the same flags but for --node_rank and --nproc_per_node"},
    {"node_rank", "PET_NODE_RANK", KIND_NUMBER, AT(node_rank), 0, OPTIONS_MAX_NODES - 1, NULL, "N",
     "which of them this is, from 0 (default: as they come)"},
    {"master_addr", "PET_MASTER_ADDR", KIND_TEXT, AT(master_addr), 0, 0, NULL, "ADDRESS",
     "where the job's store listens: an address of node 0 (default 127.0.0.1 for one machine; else MASTER_ADDR)"},
    {"master_port", "PET_MASTER_PORT", KIND_NUMBER, AT(master_port), 0, 65535, NULL, "PORT",
     "its port (default: any free one for one machine; else MASTER_PORT, or 29500)"},
    {"rdzv_endpoint", "PET_RDZV_ENDPOINT", KIND_TEXT, AT(rdzv_endpoint), 0, 0, NULL, "HOST[:PORT]",
     "the same in one word; whoever can bind that address hosts, if there are no node ranks (default port 29400)"},
    {"rdzv_backend", "PET_RDZV_BACKEND", KIND_TEXT, AT(rdzv_backend), 0, 0, NULL, "static|c10d",
     "accepted: both mean the rendezvous that cddprun brings itself"},
    {"rdzv_conf", "PET_RDZV_CONF", KIND_TEXT, AT(rdzv_conf), 0, 0, NULL, "K=V,...",
     "join_timeout=S: until all nodes must be there (600; timeout is the same); lease=S: a silent node counts as there "
     "for so long (15; the host's counts); is_host=0|1: who hosts; rank=N"},
    {"local_addr", "PET_LOCAL_ADDR", KIND_TEXT, AT(local_addr), 0, 0, NULL, "ADDRESS",
     "what messages call this machine (default: its host name)"},
    {"max_restarts", "PET_MAX_RESTARTS", KIND_NUMBER, AT(max_restarts), 0, 1000000, "0", "N",
     "how often all workers are started again after one has failed"},
    {"on_failure", "PET_ON_FAILURE", KIND_STOP, AT(wait_on_failure), 0, 0, "stop", "stop|wait",
     "what becomes of the other workers when one has failed: stop ends them, wait leaves them alone"},
    {"rdzv_id", "PET_RDZV_ID", KIND_TEXT, AT(run_id), 0, 0, NULL, "NAME",
     "the job's name, TORCHELASTIC_RUN_ID of the workers (default: a random one; of several machines: none)"},
    {"auth_token_file", "CDDP_AUTH_TOKEN_FILE", KIND_TEXT, AT(auth_token_file), 0, 0, NULL, "FILE",
     "the job's secret, which agents and libcddp prove to the rendezvous; --standalone makes one by itself"},
    {"role", "PET_ROLE", KIND_TEXT, AT(role), 0, 0, "default", "NAME",
     "ROLE_NAME of the workers"},
    {"no_python", "PET_NO_PYTHON", KIND_SWITCH, AT(no_python), 0, 1, "0", NULL,
     "accepted and without effect: PROGRAM is always run directly"},
    {"version", NULL, KIND_VERSION, 0, 0, 0, NULL, NULL, "print the version"},
    {"help", NULL, KIND_HELP, 0, 0, 0, NULL, NULL, "print this text"},
};
/* clang-format on */
#define N_FLAGS (sizeof flags / sizeof flags[0])

/* torchrun has these and this version has not: saying so helps more than "unknown". */
static const char *const torchrun_only[] = {
    "monitor_interval",
    "start_method",
    "event_log_handler",
    "module",
    "run_path",
    "log_dir",
    "redirects",
    "tee",
    "local_ranks_filter",
    "logs_specs",
    "numa_binding",
    "signals_to_handle",
    "shutdown_timeout",
    "virtual_local_rank",
    "duplicate_stdout_filters",
    "health_check_port",
    "duplicate_stderr_filters",
};
#define N_TORCHRUN_ONLY (sizeof torchrun_only / sizeof torchrun_only[0])

const char *options_real_env(const char *name, void *arg)
{
    (void)arg;
    return getenv(name);
}

/* ---------------------------------------------------------------------------------------------------- values ---- */

static cddp_status set_nproc(struct options *o, const struct flag *f, const char *text, const char *from,
                             struct cdi_error *err)
{
    static const struct {
        const char *word;
        enum options_nproc kind;
    } words[] = {{"cpu", OPTIONS_NPROC_CPU}, {"gpu", OPTIONS_NPROC_GPU}, {"auto", OPTIONS_NPROC_AUTO}};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i].word) == 0) {
            o->nproc_kind = words[i].kind;
            return CDDP_OK;
        }
    }
    if (!cdi_parse_int(text, f->min, f->max, &o->nproc))
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s '%.64s' is neither a whole number from %" PRId64 " to %" PRId64 " nor cpu, gpu or auto",
                        from, text, f->min, f->max);
    o->nproc_kind = OPTIONS_NPROC_COUNT;
    return CDDP_OK;
}

static cddp_status set_nnodes(struct options *o, const struct flag *f, const char *text, const char *from,
                              struct cdi_error *err)
{
    char low[16];
    const char *colon = strchr(text, ':');
    size_t n = colon == NULL ? strlen(text) : (size_t)(colon - text);

    (void)snprintf(low, sizeof low, "%.*s", n < sizeof low ? (int)n : 0, text);
    if (!cdi_parse_int(low, f->min, f->max, &o->min_nodes) ||
        !cdi_parse_int(colon == NULL ? low : colon + 1, f->min, f->max, &o->max_nodes) || o->max_nodes < o->min_nodes)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is neither a number of machines nor MIN:MAX", from, text);
    o->nnodes_given = true;
    if (o->max_nodes != o->min_nodes)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "%s '%.64s': this version of cddprun cannot change the number of machines; give one number",
                        from, text);
    return CDDP_OK;
}

static cddp_status set_number(struct options *o, const struct flag *f, const char *text, const char *from,
                              struct cdi_error *err)
{
    int64_t v;

    if (!cdi_parse_int(text, f->min, f->max, &v))
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is not a whole number from %" PRId64 " to %" PRId64, from,
                        text, f->min, f->max);
    memcpy((char *)o + f->offset, &v, sizeof v);
    return CDDP_OK;
}

static cddp_status set_switch(struct options *o, const struct flag *f, const char *text, const char *from,
                              struct cdi_error *err)
{
    bool on = strcmp(text, "1") == 0;

    if (!on && strcmp(text, "0") != 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is neither 0 nor 1", from, text);
    memcpy((char *)o + f->offset, &on, sizeof on);
    return CDDP_OK;
}

/* `from` names the flag or the variable for the sentence. */
static cddp_status set_value(struct options *o, const struct flag *f, const char *text, const char *from,
                             struct cdi_error *err)
{
    switch (f->kind) {
    case KIND_SWITCH:
        return set_switch(o, f, text, from, err);
    case KIND_NUMBER:
        return set_number(o, f, text, from, err);
    case KIND_TEXT:
        if (*text == '\0' || strlen(text) > 255)
            return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is %s", from, text,
                            *text == '\0' ? "empty" : "longer than 255 bytes");
        memcpy((char *)o + f->offset, &text, sizeof text);
        return CDDP_OK;
    case KIND_NPROC:
        return set_nproc(o, f, text, from, err);
    case KIND_NNODES:
        return set_nnodes(o, f, text, from, err);
    case KIND_STOP:
        if (strcmp(text, "stop") != 0 && strcmp(text, "wait") != 0)
            return cdi_fail(err, CDDP_E_INVALID, "%s '%.64s' is neither stop nor wait", from, text);
        o->wait_on_failure = strcmp(text, "wait") == 0;
        return CDDP_OK;
    case KIND_HELP:
        o->what = OPTIONS_HELP;
        return CDDP_OK;
    case KIND_VERSION:
        o->what = OPTIONS_VERSION;
        return CDDP_OK;
    }
    return CDDP_E_INVALID;
}

static bool takes_value(const struct flag *f)
{
    return f->kind == KIND_NUMBER || f->kind == KIND_TEXT || f->kind == KIND_NPROC || f->kind == KIND_NNODES ||
           f->kind == KIND_STOP;
}

/* ----------------------------------------------------------------------------------------------------- names ---- */

/* "--nproc-per-node=2" -> "nproc_per_node"; false if it is too long for any flag. */
static bool flag_name(const char *word, char *name)
{
    size_t n = strcspn(word + 2, "=");

    if (n >= NAME_MAX_LEN)
        return false;
    for (size_t i = 0; i < n; i++)
        name[i] = (char)(word[2 + i] == '-' ? '_' : word[2 + i]);
    name[n] = '\0';
    return true;
}

static bool is_torchrun_only(const char *name)
{
    for (size_t i = 0; i < N_TORCHRUN_ONLY; i++)
        if (strcmp(torchrun_only[i], name) == 0)
            return true;
    return false;
}

/* The flag of this name, or the only one (torchrun's further ones included) that begins with it. */
static const struct flag *find_flag(const char *name)
{
    const struct flag *found = NULL;
    size_t n_found = 0, len = strlen(name);

    for (size_t i = 0; i < N_FLAGS; i++) {
        if (strcmp(flags[i].name, name) == 0)
            return &flags[i];
        if (len > 0 && strncmp(flags[i].name, name, len) == 0) {
            found = &flags[i];
            n_found++;
        }
    }
    for (size_t i = 0; i < N_TORCHRUN_ONLY; i++)
        if (strncmp(torchrun_only[i], name, len) == 0)
            n_found++;
    return n_found == 1 ? found : NULL;
}

/* Levenshtein's distance of two short names. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_LEN + 1], n = strlen(b);

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static cddp_status unknown_flag(const char *word, const char *name, struct cdi_error *err)
{
    const struct flag *nearest = NULL;
    size_t best = NAME_MAX_LEN;

    if (name != NULL && is_torchrun_only(name))
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "--%s is a flag of torchrun that this version of cddprun does not have; see cddprun --help",
                        name);
    for (size_t i = 0; name != NULL && i < N_FLAGS; i++) {
        size_t d = distance(name, flags[i].name);

        if (d < best) {
            best = d;
            nearest = &flags[i];
        }
    }
    if (nearest != NULL && best <= 1 + strlen(nearest->name) / 3)
        return cdi_fail(err, CDDP_E_INVALID, "unknown flag '%.64s'; did you mean --%s?", word, nearest->name);
    return cdi_fail(err, CDDP_E_INVALID, "unknown flag '%.64s'; see cddprun --help", word);
}

/* --------------------------------------------------------------------------------------------------- parsing ---- */

static const char *not_empty(const char *text)
{
    return text != NULL && *text != '\0' ? text : NULL;
}

static cddp_status read_environment(struct options *o, options_getenv env, void *arg, struct cdi_error *err)
{
    cddp_status st;

    for (size_t i = 0; i < N_FLAGS; i++) {
        const char *value = flags[i].env == NULL ? NULL : env(flags[i].env, arg);

        if (value == NULL)
            continue;
        st = set_value(o, &flags[i], value, flags[i].env, err);
        if (st != CDDP_OK)
            return st;
    }
    o->env_master_addr = not_empty(env("MASTER_ADDR", arg));
    o->env_master_port = not_empty(env("MASTER_PORT", arg));
    o->log_level = env("LOGLEVEL", arg);
    o->cuda_visible_devices = env("CUDA_VISIBLE_DEVICES", arg);
    o->tmpdir = env("TMPDIR", arg);
    if (o->tmpdir == NULL || *o->tmpdir == '\0')
        o->tmpdir = "/tmp";
    return CDDP_OK;
}

/* The flag at argv[*i]; *i moves on to its last word. */
static cddp_status read_flag(struct options *o, char **argv, int argc, int *i, struct cdi_error *err)
{
    const char *word = argv[*i], *value = strchr(word, '=');
    char name[NAME_MAX_LEN], from[NAME_MAX_LEN + 2];
    bool named = flag_name(word, name);
    const struct flag *f = named ? find_flag(name) : NULL;

    if (f == NULL)
        return unknown_flag(word, named ? name : NULL, err);
    (void)snprintf(from, sizeof from, "--%s", f->name);
    if (!takes_value(f)) {
        if (value != NULL)
            return cdi_fail(err, CDDP_E_INVALID, "%s takes no value, but was given '%.64s'", from, value + 1);
        return set_value(o, f, "1", from, err);
    }
    if (value != NULL)
        return set_value(o, f, value + 1, from, err);
    if (*i + 1 >= argc)
        return cdi_fail(err, CDDP_E_INVALID, "%s needs a value (%s)", from, f->value);
    *i += 1;
    return set_value(o, f, argv[*i], from, err);
}

void options_one_line(struct cdi_error *err)
{
    for (char *p = err == NULL ? NULL : err->msg; p != NULL && *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
}

cddp_status options_parse(struct options *out, int argc, char **argv, options_getenv env, void *arg,
                          struct cdi_error *err)
{
    struct options o = {.what = OPTIONS_RUN, .master_port = -1, .node_rank = -1};
    cddp_status st = CDDP_OK;
    int i;

    for (size_t k = 0; k < N_FLAGS && st == CDDP_OK; k++)
        if (flags[k].fallback != NULL)
            st = set_value(&o, &flags[k], flags[k].fallback, flags[k].name, err);
    o.nnodes_given = false;
    if (st == CDDP_OK)
        st = read_environment(&o, env, arg, err);
    for (i = 1; i < argc && st == CDDP_OK && o.what == OPTIONS_RUN; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if (strcmp(argv[i], "-h") == 0)
            o.what = OPTIONS_HELP;
        else if (strncmp(argv[i], "--", 2) == 0)
            st = read_flag(&o, argv, argc, &i, err);
        else if (argv[i][0] == '-' && argv[i][1] != '\0')
            st = unknown_flag(argv[i], NULL, err);
        else
            break;
    }
    if (st != CDDP_OK) {
        options_one_line(err);
        return st;
    }
    if (o.what == OPTIONS_RUN && (i >= argc || *argv[i] == '\0'))
        return cdi_fail(err, CDDP_E_INVALID,
                        "no program to run; usage: cddprun [flags] PROGRAM [ARGS]; see cddprun --help");
    o.command = argv + i;
    *out = o;
    return CDDP_OK;
}

void options_usage(FILE *to)
{
    fputs("Run a program as several ranks of one job.\n\n"
          "  cddprun --nproc_per_node=2 ./train              two workers on this machine\n"
          "  cddprun --nproc_per_node=gpu ./train --lr 0.1   one per GPU; what follows ./train is its own\n"
          "  cddprun --nproc_per_node=2 --max_restarts=3 ./train   start again when a worker fails\n"
          "  cddprun --nnodes=2 --node_rank=0 --master_addr=node1 ./train   on node1; on the other: --node_rank=1\n\n"
          "usage: cddprun [flags] PROGRAM [ARGS]\n\n"
          "Each worker finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and torchrun's other variables in\n"
          "its environment; ${local_rank} in ARGS becomes its local rank. The exit status is that of the first worker\n"
          "that failed, or 128 + the signal that killed it. --a-b and --a_b are the same flag.\n\n",
          to);
    for (size_t i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];

        fprintf(to, "  --%s%s%s%s%s\n        %s\n", f->name, f->value != NULL ? "=" : "",
                f->value != NULL ? f->value : "", f->env != NULL ? "   or " : "", f->env != NULL ? f->env : "",
                f->help);
    }
    fputs("\nInside a step of a Slurm job (srun --ntasks-per-node=1 cddprun ...) the nodes, their ranks and where they "
          "meet are\ntaken from Slurm, unless flags say otherwise.\n",
          to);
    fputs("\nLOGLEVEL (debug, info, warning, error) sets how much cddprun says itself.\n", to);
}
