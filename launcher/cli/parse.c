/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the flag of each word of the command line and of each variable; flag_values.c reads the values. */
#include "launcher/cli/parse.h"

#include "common/env.h"
#include "launcher/cli/flag_values.h"
#include "launcher/cli/rankmap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *options_real_env(const char *name, void *arg)
{
    (void)arg;
    return getenv(name);
}

/* ----------------------------------------------------------------------------------------------------- names ---- */

/* "nproc-per-node=2", after its dashes, -> "nproc_per_node"; false if it is too long for any flag. */
static bool flag_name(const char *text, char *name)
{
    size_t n = strcspn(text, "=");

    if (n >= FLAG_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        name[i] = (char)(text[i] == '-' ? '_' : text[i]);
    name[n] = '\0';
    return true;
}

/* Counts the flags whose names begin with `name`, and finds one of them. */
static size_t count_beginning(const char *name, bool torchrun_only, const struct flag **one)
{
    size_t n = 0, len = strlen(name);

    for (size_t i = 0; i < n_flags; i++) {
        if (strncmp(flags[i].name, name, len) == 0 && !(torchrun_only && flags[i].ours)) {
            *one = &flags[i];
            n++;
        }
    }
    return n;
}

/* The flag of this name, or the only one that begins with it; flags of torchrun take precedence over cddprun's own. */
static const struct flag *find_flag(const char *name)
{
    const struct flag *one = NULL;

    for (size_t i = 0; i < n_flags; i++)
        if (strcmp(flags[i].name, name) == 0)
            return &flags[i];
    if (*name == '\0')
        return NULL;
    return count_beginning(name, true, &one) == 1 || count_beginning(name, false, &one) == 1 ? one : NULL;
}

/* Levenshtein's distance of two short names. */
static size_t distance(const char *a, const char *b)
{
    size_t row[FLAG_NAME_MAX + 1], n = strlen(b);

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

/* "--max could be --max_restarts or --..." */
static cddp_status ambiguous_flag(const char *name, struct cdi_error *err)
{
    char names[200] = "";
    size_t len = strlen(name), n = 0;

    for (size_t i = 0; i < n_flags && n < sizeof names; i++)
        if (strncmp(flags[i].name, name, len) == 0)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s--%s", n == 0 ? "" : ", ", flags[i].name);
    return cdi_fail(err, CDDP_E_INVALID, "--%s is ambiguous: %s; write more of its name", name, names);
}

/* Flags of other launchers, which their users may type. */
static const struct {
    const char *name, *instead;
} foreign_flags[] = {
    {"machinefile", "use --hostfile, with a line HOST slots=N for each host"},
    {"oversubscribe", "not needed: --nproc_per_node starts any number of workers, regardless of cores; remove it"},
    {"allow_run_as_root", "not needed: cddprun runs as any user; remove it"},
    {"bind_to", "use --numa_binding to bind workers to cores"},
    {"map_by", "use --nproc_per_node to place workers, and --numa_binding to bind them to cores"},
    {"use_env", "not needed: workers always find LOCAL_RANK in their environment; remove it"},
    {"nprocs", "use --nproc_per_node"},
    {"num_processes", "use --world_size (-n) for all nodes together, or --nproc_per_node for each node"},
    {"num_gpus", "use --nproc_per_node; its value gpu means one worker for each GPU"},
    {"num_nodes", "use --nnodes"},
    {"num_machines", "use --nnodes"},
    {"machine_rank", "use --node_rank"},
    {"main_process_ip", "use --master_addr"},
    {"main_process_port", "use --master_port"},
    {"ntasks", "use --world_size (-n)"},
    {"ntasks_per_node", "use --nproc_per_node (-ppn)"},
    {"nodes", "use --nnodes"},
    {"cpus_per_task", "use --numa_binding to bind workers to cores"},
    {"mca", "it configures Open MPI, which cddprun does not use; remove it and its two values"},
};

/* The same for flags with one dash, where the case of a letter matters. */
static const struct {
    const char *name, *instead;
} foreign_shorts[] = {
    {"H", "--hosts a:8,b:8 starts the job there by ssh"},
    {"N", "use -ppn for the number of workers on each node, and --nnodes for the number of nodes"},
    {"c", "use -n for the number of workers, and --numa_binding to bind them to cores"},
    {"mca", "it configures Open MPI, which cddprun does not use; remove it and its two values"},
    {"hostfile", "use --hostfile, with two dashes"},
    {"v", "use LOGLEVEL=info for more messages, and --version for the version"},
    {"V", "use --version"},
};

static const char *instead_of_foreign(const char *word, const char *name)
{
    for (size_t i = 0; word[1] != '-' && i < sizeof foreign_shorts / sizeof foreign_shorts[0]; i++)
        if (strcmp(foreign_shorts[i].name, name) == 0)
            return foreign_shorts[i].instead;
    for (size_t i = 0; word[1] == '-' && i < sizeof foreign_flags / sizeof foreign_flags[0]; i++)
        if (strcmp(foreign_flags[i].name, name) == 0)
            return foreign_flags[i].instead;
    return NULL;
}

/* name: NULL if the word cannot be the name of a flag. */
static cddp_status unknown_flag(const char *word, const char *name, struct cdi_error *err)
{
    const struct flag *nearest = NULL, *one;
    size_t best = FLAG_NAME_MAX;

    if (name != NULL && instead_of_foreign(word, name) != NULL)
        return cdi_fail(err, CDDP_E_INVALID, "unknown flag '%.64s': %s", word, instead_of_foreign(word, name));
    if (word[1] != '-' && word[2] == '\0') /* a letter is similar to too many names */
        name = NULL;
    if (name != NULL && *name != '\0' && count_beginning(name, false, &one) > 1)
        return ambiguous_flag(name, err);
    for (size_t i = 0; name != NULL && i < n_flags; i++) {
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

static bool is_long_name(const char *name)
{
    for (size_t i = 0; i < n_flags; i++)
        if (strcmp(flags[i].name, name) == 0)
            return true;
    return false;
}

static bool parse_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "-r=3", "-r3", "-r", "-ppn", "-np2": the flag, and where its value begins in the word (NULL: in the next one). */
static const struct flag *find_short(const char *word, const char **value)
{
    size_t len = strcspn(word + 1, "=");
    char name[FLAG_NAME_MAX];

    for (size_t i = 0; i < n_flags; i++) {
        if (flag_is_short(&flags[i], word + 1, len)) {
            *value = word[1 + len] == '=' ? word + 2 + len : NULL;
            return &flags[i];
        }
    }
    if (flag_name(word + 1, name) && is_long_name(name)) /* -nproc_per_node=2: a dash is missing */
        return NULL;
    for (size_t i = 0; i < n_flags; i++) {
        for (len = 3; len >= 1; len--) { /* -np2, but not -n with p2; of one letter any value */
            if (!flag_takes_value(&flags[i]) || strnlen(word + 1, len) < len ||
                !flag_is_short(&flags[i], word + 1, len) || (len > 1 && !parse_is_digit(word[1 + len])))
                continue;
            *value = word + 1 + len;
            return &flags[i];
        }
    }
    return NULL;
}

/* --------------------------------------------------------------------------------------------------- parsing ---- */

static const char *not_empty(const char *text)
{
    return text != NULL && *text != '\0' ? text : NULL;
}

static cddp_status set_defaults(struct options *o, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    *o = (struct options){.what = OPTIONS_RUN};
    for (size_t i = 0; i < n_flags && st == CDDP_OK; i++) {
        const struct flag *f = &flags[i];
        int64_t none = -1;

        if (f->fallback != NULL)
            st = value_set(o, f, f->fallback, f->name, err);
        else if (f->kind == FLAG_NUMBER || f->kind == FLAG_SECONDS)
            memcpy((char *)o + f->offset, &none, sizeof none);
    }
    o->nnodes_given = false;
    o->nproc_given = false;
    return st;
}

/* Sets a value from the user; fails if the flag is refused. */
static cddp_status set_given(struct options *o, const struct flag *f, const char *text, const char *from,
                             struct cdi_error *err)
{
    cddp_status st = value_set(o, f, text, from, err);

    return st == CDDP_OK ? value_refused(f, text, from, err) : st;
}

static cddp_status read_shutdown_timeout(struct options *o, options_getenv env, void *arg, struct cdi_error *err)
{
    const char *text = not_empty(env("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", arg));
    const struct flag *f = find_flag("shutdown_timeout");

    return text == NULL ? CDDP_OK : set_given(o, f, text, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", err);
}

static void note_variable(struct options *o, const char *name, const char *value)
{
    size_t n = strlen(o->from_variables);

    (void)snprintf(o->from_variables + n, sizeof o->from_variables - n, "%s%s=%s", n > 0 ? " " : "", name, value);
}

static cddp_status read_environment(struct options *o, options_getenv env, void *arg, struct cdi_error *err)
{
    char name[FLAG_NAME_MAX + 4];
    const char *remote;
    cddp_status st = read_shutdown_timeout(o, env, arg, err);

    for (size_t i = 0; i < n_flags && st == CDDP_OK; i++) {
        const char *value = *flag_env(&flags[i], name) == '\0' ? NULL : env(name, arg);

        if (value != NULL)
            st = set_given(o, &flags[i], value, name, err);
        if (value != NULL && *value != '\0' && flags[i].group == GROUP_NODES)
            note_variable(o, name, value);
    }
    o->env_master_addr = not_empty(env("MASTER_ADDR", arg));
    o->env_master_port = not_empty(env("MASTER_PORT", arg));
    remote = env(OPTIONS_REMOTE_ENV, arg);
    o->remote = remote != NULL;
    o->remote_terminal = remote != NULL && strcmp(remote, OPTIONS_REMOTE_TERMINAL) == 0;
    o->python_exec = not_empty(env("PYTHON_EXEC", arg));
    o->log_line_prefix = env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", arg);
    o->error_file = not_empty(env("TORCHELASTIC_ERROR_FILE", arg));
    o->log_level = env("LOGLEVEL", arg);
    o->cuda_visible_devices = env("CUDA_VISIBLE_DEVICES", arg);
    o->tmpdir = not_empty(env("TMPDIR", arg));
    if (o->tmpdir == NULL)
        o->tmpdir = "/tmp";
    return st;
}

/* The flag at argv[*i], long or short; *i moves on to its last word. */
static cddp_status parse_read_flag(struct options *o, char **argv, int argc, int *i, struct cdi_error *err)
{
    const char *word = argv[*i], *value = NULL;
    bool is_long = word[1] == '-', named;
    char name[FLAG_NAME_MAX], from[FLAG_NAME_MAX + 2];
    const struct flag *f;

    named = flag_name(word + (is_long ? 2 : 1), name);
    if (is_long) {
        f = named ? find_flag(name) : NULL;
        value = strchr(word, '=');
        value = value == NULL ? NULL : value + 1;
    } else {
        f = find_short(word, &value);
    }
    if (f == NULL)
        return unknown_flag(word, named ? name : NULL, err);
    (void)snprintf(from, sizeof from, "--%s", f->name);
    if (!flag_takes_value(f)) {
        if (value != NULL)
            return cdi_fail(err, CDDP_E_INVALID, "%s takes no value, but was given '%.64s'", from, value);
        return set_given(o, f, "1", from, err);
    }
    if (value == NULL)
        value = f->alone;
    if (value == NULL) {
        if (*i + 1 >= argc)
            return cdi_fail(err, CDDP_E_INVALID, "%s needs a value (%s)", from, f->value);
        *i += 1;
        value = argv[*i];
    }
    return set_given(o, f, value, from, err);
}

/* ---------------------------------------------------------------------------------------------- contradictions ---- */

static cddp_status check_python(const struct options *o, struct cdi_error *err)
{
    if (o->module && o->no_python)
        return cdi_fail(err, CDDP_E_INVALID,
                        "--module runs PROGRAM by Python and --no_python without; remove one of them");
    if (o->module && o->run_path)
        return cdi_fail(err, CDDP_E_INVALID,
                        "with --module PROGRAM is a module, with --run_path a file; remove one of them");
    return CDDP_OK;
}

/* Sets the number of nodes from -n and -ppn; if it was given, too, it must agree. */
static cddp_status apply_world_size(struct options *o, struct cdi_error *err)
{
    int64_t n = o->world_size;

    if (n < 0 || !o->nproc_given || o->nproc_kind != OPTIONS_NPROC_COUNT)
        return CDDP_OK;
    if (o->nnodes_given && (o->min_nodes != o->max_nodes || o->nproc * o->max_nodes != n))
        return cdi_fail(err, CDDP_E_INVALID,
                        "--world_size %" PRId64 " contradicts --nnodes and --nproc_per_node %" PRId64
                        "; remove one of them",
                        n, o->nproc);
    if (n % o->nproc != 0 || n / o->nproc > OPTIONS_MAX_NODES)
        return cdi_fail(err, CDDP_E_INVALID,
                        "--world_size %" PRId64 " cannot be divided into nodes with --nproc_per_node %" PRId64, n,
                        o->nproc);
    o->min_nodes = n / o->nproc;
    o->max_nodes = o->min_nodes;
    o->nnodes_given = true;
    return CDDP_OK;
}

static cddp_status check_exports(const struct options *o, options_getenv env, void *arg, struct cdi_error *err)
{
    for (size_t i = 0; i < o->n_exports; i++)
        if (strchr(o->exports[i], '=') == NULL && strcmp(o->exports[i], OPTIONS_EXPORT_ALL) != 0 &&
            env(o->exports[i], arg) == NULL)
            return cdi_fail(err, CDDP_E_INVALID,
                            "--export '%.64s': no such variable is set; give a value (%.64s=VALUE)", o->exports[i],
                            o->exports[i]);
    return CDDP_OK;
}

/* torchrun puts such files into /tmp, where they stay forever, unnoticed. */
static cddp_status check_logs(const struct options *o, struct cdi_error *err)
{
    const char *flag = NULL;

    if (rankmap_any(o->redirects))
        flag = "redirects";
    else if (o->duplicate_stdout_filters != NULL)
        flag = "duplicate_stdout_filters";
    else if (o->duplicate_stderr_filters != NULL)
        flag = "duplicate_stderr_filters";
    if (flag == NULL || o->log_dir != NULL)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, "--%s writes files, but no directory is given; add --log_dir", flag);
}

static cddp_status check_preflight(const struct options *o, struct cdi_error *err)
{
    if (o->preflight == OPTIONS_PREFLIGHT_EXCLUDE && o->spares == 0 && o->min_nodes == o->max_nodes)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "--preflight=exclude needs a node that can take the place of a bad one; add --spares=N, or give "
            "--nnodes=MIN:MAX");
    return CDDP_OK;
}

static cddp_status check_all(struct options *o, options_getenv env, void *arg, struct cdi_error *err)
{
    cddp_status st = check_python(o, err);

    if (st == CDDP_OK)
        st = apply_world_size(o, err);
    if (st == CDDP_OK)
        st = check_exports(o, env, arg, err);
    if (st == CDDP_OK)
        st = check_logs(o, err);
    if (st == CDDP_OK)
        st = check_preflight(o, err);
    if (st == CDDP_OK && o->interactive >= 0 && o->stdin_to != OPTIONS_STDIN_FIRST)
        st = cdi_fail(err, CDDP_E_INVALID, "--interactive gives stdin to one rank; remove --stdin");
    if (st == CDDP_OK && o->world_size >= 0 && (o->max_nodes != o->min_nodes || o->spares > 0))
        st = cdi_fail(err, CDDP_E_INVALID,
                      "--world_size %" PRId64
                      " fixes the number of workers, but with --nnodes=MIN:MAX or --spares it may change; give "
                      "--nproc_per_node instead",
                      o->world_size);
    return st;
}

void options_one_line(struct cdi_error *err)
{
    for (char *p = err == NULL ? NULL : err->msg; p != NULL && *p != '\0'; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
}

/* Reads the flags up to the program; *at is its index. */
static cddp_status read_words(struct options *o, int argc, char **argv, int *at, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    int i;

    for (i = 1; i < argc && st == CDDP_OK && o->what == OPTIONS_RUN; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if (argv[i][0] != '-' || argv[i][1] == '\0')
            break;
        st = parse_read_flag(o, argv, argc, &i, err);
    }
    *at = i;
    return st;
}

/* Flags that start nothing. program: NULL if there is none. */
static cddp_status choose_what(struct options *o, const char *program, struct cdi_error *err)
{
    const struct {
        const char *value, *does;
        enum options_what what;
    } modes[] = {{o->top, "--top shows running jobs", OPTIONS_TOP},
                 {o->where, "--where asks about a running job", OPTIONS_WHERE},
                 {o->make_token, "--make_token writes a file and ends", OPTIONS_MAKE_TOKEN}};

    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (modes[i].value == NULL)
            continue;
        o->what = modes[i].what;
        if (program != NULL)
            return cdi_fail(err, CDDP_E_INVALID, "%s; remove the program '%.200s'", modes[i].does, program);
        return CDDP_OK;
    }
    return CDDP_OK;
}

cddp_status options_parse(struct options *out, int argc, char **argv, options_getenv env, void *arg,
                          struct cdi_error *err)
{
    static char itself[] = "/proc/self/exe", *no_program[] = {itself, NULL}; /* --preflight=only starts none */
    struct options o;
    bool needs_program;
    int i = 1;
    cddp_status st = set_defaults(&o, err);

    if (st == CDDP_OK)
        st = read_environment(&o, env, arg, err);
    if (st == CDDP_OK)
        st = read_words(&o, argc, argv, &i, err);
    if (o.remote)
        o.hosts = o.hostfile = NULL; /* this node is one of them */
    if (st == CDDP_OK && o.what == OPTIONS_RUN)
        st = check_all(&o, env, arg, err);
    if (st == CDDP_OK && o.what == OPTIONS_RUN)
        st = choose_what(&o, i < argc ? argv[i] : NULL, err);
    needs_program = o.what == OPTIONS_RUN && o.preflight != OPTIONS_PREFLIGHT_ONLY;
    if (st == CDDP_OK && needs_program && (i >= argc || *argv[i] == '\0'))
        st = cdi_fail(err, CDDP_E_INVALID,
                      "no program to run; usage: cddprun [flags] PROGRAM [ARGS]; see cddprun --help");
    if (st != CDDP_OK) {
        options_one_line(err);
        return st;
    }
    o.n_flag_words = i - 1;
    o.command = i < argc || needs_program ? argv + i : no_program;
    *out = o;
    return CDDP_OK;
}
