/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/daemon/options.h"
#include "common/cli_docs.h"
#include "common/env.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_LEN 48
#define JOBS_MAX 65535

/* Parses a value into *o. Returns false if it is invalid. value is NULL for a flag without one. */
typedef bool reader(struct daemon_options *o, const char *value);

static bool daemon_read_number(const char **text, long min, long max, long *out)
{
    char *end;
    long n;

    if (**text < '0' || **text > '9')
        return false;
    n = strtol(*text, &end, 10); /* LONG_MAX if out of range */
    *text = end;
    *out = n;
    return n >= min && n <= max;
}

static bool read_bind(struct daemon_options *o, const char *value)
{
    o->bind = value;
    return value[0] != '\0';
}

static bool read_port(struct daemon_options *o, const char *value)
{
    long port;

    if (!daemon_read_number(&value, 0, UINT16_MAX, &port) || *value != '\0')
        return false;
    o->port = (uint16_t)port;
    return true;
}

static bool read_job_ports(struct daemon_options *o, const char *value)
{
    long first, last;

    if (!daemon_read_number(&value, 1, UINT16_MAX, &first) || *value++ != '-' ||
        !daemon_read_number(&value, first, UINT16_MAX, &last) || *value != '\0')
        return false;
    o->first_job_port = (uint16_t)first;
    o->last_job_port = (uint16_t)last;
    return true;
}

static bool read_auth_token_file(struct daemon_options *o, const char *value)
{
    o->auth_token_file = value;
    return value[0] != '\0';
}

static bool read_access(const char *value, enum rdzv_access *out)
{
    static const char *const names[] = {
        [RDZV_ACCESS_AUTO] = "auto", [RDZV_ACCESS_NEVER] = "never", [RDZV_ACCESS_ANY] = "any"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(value, names[i]) != 0)
            continue;
        *out = (enum rdzv_access)i;
        return true;
    }
    return false;
}

static bool read_plain_store(struct daemon_options *o, const char *value)
{
    return read_access(value, &o->plain_store);
}

static bool read_http(struct daemon_options *o, const char *value)
{
    return read_access(value, &o->http);
}

static bool read_size(const char *value, int64_t max, size_t *out)
{
    int64_t n;

    if (!cdi_parse_size(value, max, &n))
        return false;
    *out = (size_t)n;
    return true;
}

static bool read_store_memory(struct daemon_options *o, const char *value)
{
    return read_size(value, INT64_MAX, &o->store.bytes);
}

static bool read_max_key(struct daemon_options *o, const char *value)
{
    return read_size(value, CDI_C10D_KEY_MAX, &o->store.key);
}

static bool read_max_value(struct daemon_options *o, const char *value)
{
    return read_size(value, CDI_C10D_VALUE_MAX, &o->store.value);
}

static bool read_max_waits(struct daemon_options *o, const char *value)
{
    long n;

    if (!daemon_read_number(&value, 1, LONG_MAX, &n) || *value != '\0')
        return false;
    o->store.waits = (size_t)n;
    return true;
}

static bool read_max_connections(struct daemon_options *o, const char *value)
{
    long n;

    if (!daemon_read_number(&value, 1, LONG_MAX, &n) || *value != '\0')
        return false;
    o->max_connections = (size_t)n;
    return true;
}

static bool read_buffer_memory(struct daemon_options *o, const char *value)
{
    return read_size(value, INT64_MAX, &o->max_buffered);
}

static bool read_max_jobs(struct daemon_options *o, const char *value)
{
    long n;

    if (!daemon_read_number(&value, 1, JOBS_MAX, &n) || *value != '\0')
        return false;
    o->max_jobs = (uint32_t)n;
    return true;
}

static bool read_help(struct daemon_options *o, const char *value)
{
    (void)value;
    o->what = DAEMON_HELP;
    return true;
}

static bool read_version(struct daemon_options *o, const char *value)
{
    (void)value;
    o->what = DAEMON_VERSION;
    return true;
}

static const struct flag {
    const char *name;  /* with underscores */
    const char *value; /* its name in --help; NULL: no value */
    reader *read;
    const char *wants; /* for the error message about a wrong value */
    const char *help;
} flags[] = {
    {"bind", "ADDRESS", read_bind, "a name or an address",
     "listen on this host name or address; * listens on all addresses (default *)"},
    {"port", "PORT", read_port, "a port, 0 to 65535",
     "shared port, to which the agents of all jobs connect (default 29400; 0: any free port)"},
    {"job_ports", "A-B", read_job_ports, "a range such as 29500-29599",
     "range of ports; each job gets one of them as its MASTER_PORT (default: any free port)"},
    {"auth_token_file", "PATH", read_auth_token_file, "a path",
     "file with the auth token that agents and workers must prove (default: $CDDP_AUTH_TOKEN_FILE, or no "
     "authentication)"},
    {"plain_store", "auto|never|any", read_plain_store, "auto, never or any",
     "if there is an auth token, accept PyTorch's store protocol, which cannot prove it (auto: from this node and "
     "joined "
     "nodes)"},
    {"http", "auto|never|any", read_http, "auto, never or any",
     "if there is an auth token, serve the HTTP pages about jobs (auto: to this node and joined nodes; /healthz: "
     "always)"},
    {"max_jobs", "N", read_max_jobs, "a number, 1 to 65535", "most jobs at once (default 64)"},
    {"max_connections", "N", read_max_connections, "a number, 1 or more",
     "most open connections, for all jobs (default: limited by file descriptors only)"},
    {"store_memory", "SIZE", read_store_memory, "a number of bytes, such as 512M",
     "most memory for the keys, values and waits of a job (default 1G)"},
    {"buffer_memory", "SIZE", read_buffer_memory, "a number of bytes, such as 512M",
     "most memory for incomplete requests and replies of all connections (default 1G)"},
    {"max_key", "SIZE", read_max_key, "a number of bytes up to 8192", "longest key in the store (default 8192)"},
    {"max_value", "SIZE", read_max_value, "a number of bytes up to 8M", "longest value in the store (default 8M)"},
    {"max_waits", "N", read_max_waits, "a number, 1 or more",
     "most pending waits in the store of a job (default 1048576)"},
    {"help", NULL, read_help, "", "print this help"},
    {"version", NULL, read_version, "", "print the version"},
};
#define N_FLAGS (sizeof flags / sizeof flags[0])

/* Finds a flag by its name, with underscores or dashes. */
static const struct flag *daemon_find_flag(const char *name, size_t len)
{
    char plain[NAME_MAX_LEN];

    if (len >= sizeof plain)
        return NULL;
    for (size_t i = 0; i < len; i++)
        plain[i] = name[i];
    plain[len] = '\0';
    for (char *c = plain; *c != '\0'; c++)
        if (*c == '-')
            *c = '_';
    for (size_t i = 0; i < N_FLAGS; i++)
        if (strcmp(flags[i].name, plain) == 0)
            return &flags[i];
    return NULL;
}

/* Parses the flag in argv[*at], and its value, which may be the next argument. */
static cddp_status daemon_read_flag(struct daemon_options *o, int argc, char *const argv[], int *at,
                                    struct cdi_error *err)
{
    const char *arg = argv[*at], *name = arg + 2, *value = NULL;
    const char *equals = strchr(arg, '=');
    const struct flag *f = NULL;

    if (strcmp(arg, "-h") == 0)
        name = "help", equals = NULL;
    else if (strncmp(arg, "--", 2) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "unexpected argument '%.200s'; see --help", arg);
    f = daemon_find_flag(name, equals == NULL ? strlen(name) : (size_t)(equals - name));
    if (f == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "unknown flag %.200s; see --help", arg);
    if (equals != NULL)
        value = equals + 1;
    else if (f->value != NULL && *at + 1 < argc)
        value = argv[++*at];
    if (f->value == NULL && value != NULL)
        return cdi_fail(err, CDDP_E_INVALID, "--%s takes no value", f->name);
    if (f->value != NULL && value == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "--%s needs a value: %s", f->name, f->wants);
    if (!f->read(o, value))
        return cdi_fail(err, CDDP_E_INVALID, "--%s is '%.200s'; it must be %s", f->name, value, f->wants);
    return CDDP_OK;
}

cddp_status daemon_options_parse(struct daemon_options *out, int argc, char *const argv[], struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    *out = (struct daemon_options){.bind = "*", .port = 29400, .max_jobs = 64};
    for (int i = 1; st == CDDP_OK && i < argc && out->what == DAEMON_RUN; i++)
        st = daemon_read_flag(out, argc, argv, &i, err);
    return st;
}

static const char about[] = "Rendezvous server for the nodes of several jobs. Run cddprun "
                            "--rdzv_endpoint=HOST:PORT --rdzv_id=JOB on each node.";
static const char signals[] =
    "Prints 'listening ADDRESS:PORT' when it is ready, and notifies systemd. SIGTERM: rejects new jobs and exits after "
    "the "
    "last one; a second SIGTERM, or SIGINT: exits at once. SIGHUP: reloads the auth token file.";
static const char pages[] =
    "HTTP on the same port: / shows the jobs, /status the same as JSON, /metrics is for Prometheus, and /healthz "
    "returns 'ok'.";

void daemon_options_usage(FILE *to)
{
    (void)fputs("usage: cddp-rendezvous [flags]\n\n", to);
    cdi_wrap(to, about, 0);
    cdi_wrap(to, signals, 0);
    cdi_wrap(to, pages, 0);
    (void)fputc('\n', to);
    for (size_t i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];

        (void)fprintf(to, "  --%s%s%s\n        ", f->name, f->value == NULL ? "" : "=",
                      f->value == NULL ? "" : f->value);
        cdi_wrap(to, f->help, 8);
    }
}

void daemon_options_man(FILE *to)
{
    (void)fputs(".SH NAME\ncddp\\-rendezvous \\- rendezvous server for the nodes of several jobs\n"
                ".SH SYNOPSIS\n.B cddp\\-rendezvous\n[\\fIflags\\fR]\n.SH DESCRIPTION\n",
                to);
    cdi_roff(to, about);
    (void)fputs(".PP\n", to);
    cdi_roff(to, signals);
    (void)fputs(".PP\n", to);
    cdi_roff(to, pages);
    (void)fputs(".SH OPTIONS\n", to);
    for (size_t i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];

        (void)fprintf(to, ".TP\n.B \\-\\-%s%s%s\n", f->name, f->value == NULL ? "" : "=",
                      f->value == NULL ? "" : f->value);
        cdi_roff(to, f->help);
    }
    (void)fputs(".SH SEE ALSO\n.BR cddprun (1),\n.BR systemd.service (5)\n", to);
}

void daemon_options_bash(FILE *to)
{
    cdi_bash_begin(to, "cddp-rendezvous");
    for (size_t i = 0; i < N_FLAGS; i++)
        if (flags[i].value != NULL && strchr(flags[i].value, '|') != NULL)
            cdi_bash_words(to, flags[i].name, flags[i].value);
    cdi_bash_flags(to);
    for (size_t i = 0; i < N_FLAGS; i++)
        cdi_bash_flag(to, flags[i].name, flags[i].value != NULL);
    cdi_bash_end(to, "cddp-rendezvous");
}
