/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the command line and of cddprun's environment, as the parser (parse.h) has read them. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "common/error.h"
#include "common/time_limits.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OPTIONS_MAX_PROCS 4096
#define OPTIONS_MAX_NODES 100000
#define OPTIONS_NODES_AUTO 0 /* max_nodes: as many as the scheduler's step has */
#define OPTIONS_MAX_EXPORTS 256
#define OPTIONS_EXPORT_ALL "ALL"
#define OPTIONS_REMOTE_ENV "CDDP_REMOTE"   /* set where --hosts has started this cddprun by ssh */
#define OPTIONS_REMOTE_TERMINAL "terminal" /* its value if the user's stdout is a terminal */

enum options_what { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION, OPTIONS_WHERE, OPTIONS_TOP, OPTIONS_MAKE_TOKEN };
enum options_nproc { OPTIONS_NPROC_COUNT, OPTIONS_NPROC_CPU, OPTIONS_NPROC_GPU, OPTIONS_NPROC_AUTO };
enum options_on_failure { OPTIONS_STOP, OPTIONS_WAIT };
enum options_on_off { OPTIONS_ON, OPTIONS_OFF };
enum options_on_hang { OPTIONS_HANG_REPORT, OPTIONS_HANG_RESTART, OPTIONS_HANG_STOP };
enum options_preflight {
    OPTIONS_PREFLIGHT_STOP,
    OPTIONS_PREFLIGHT_ONLY,
    OPTIONS_PREFLIGHT_EXCLUDE,
    OPTIONS_PREFLIGHT_OFF
};
enum options_stdin { OPTIONS_STDIN_NONE, OPTIONS_STDIN_FIRST, OPTIONS_STDIN_ALL };
enum options_pty { OPTIONS_PTY_AUTO, OPTIONS_PTY_ALWAYS, OPTIONS_PTY_NEVER };

struct options {
    enum options_what what;
    enum options_nproc nproc_kind;
    int64_t nproc; /* if nproc_kind is COUNT */
    bool nproc_given;
    int64_t world_size;           /* workers of all nodes; -1: not given */
    int64_t min_nodes, max_nodes; /* max_nodes may be OPTIONS_NODES_AUTO; struct endpoint has the number */
    bool nnodes_given;
    int64_t spares;
    const char *topology;   /* NULL: not given */
    const char *data_ports; /* A-B; NULL: not given */
    int preflight;          /* enum options_preflight */
    int64_t max_restarts;
    const char *no_restart_codes; /* a set of exit statuses; NULL: not given */
    int64_t master_port;          /* -1: not given */
    int64_t node_rank;            /* -1: not given */
    bool standalone;
    bool virtual_local_rank;
    int numa_binding; /* enum bind_mode */
    bool report_bindings;
    bool dry_run;
    int on_failure;                                                    /* enum options_on_failure */
    int crash_stack;                                                   /* enum options_on_off */
    int on_hang;                                                       /* enum options_on_hang */
    int64_t hang_warning_ms, hang_timeout_ms;                          /* 0: off */
    const char *master_addr;                                           /* NULL: not given */
    const char *run_id;                                                /* NULL: not given */
    const char *rdzv_backend, *rdzv_endpoint, *rdzv_conf, *local_addr; /* NULL: not given */
    const char *auth_token_file;                                       /* NULL: not given */
    const char *make_token;                                            /* NULL: not given; then `what` is MAKE_TOKEN */
    const char *hosts, *hostfile;                                      /* NULL: not given */
    const char *ssh_args;                                              /* NULL: not given */
    const char *where;                                                 /* NULL: not given; then `what` is WHERE */
    bool remote;              /* started by ssh, for another cddprun's --hosts */
    bool remote_terminal;     /* that cddprun's stdout is a terminal */
    const char *rank_order;   /* a file of hosts; NULL: not given */
    char from_variables[256]; /* "PET_NNODES=2 PET_NODE_RANK=0": the variables about several nodes, cut; or "" */
    const char *role;
    const char *exports[OPTIONS_MAX_EXPORTS]; /* NAME=VALUE, NAME of a variable that is set, or OPTIONS_EXPORT_ALL */
    size_t n_exports;

    /* Python; at most one of module and no_python. */
    bool module;             /* the program is a module's name */
    bool run_path;           /* the program is a script, whatever its name */
    bool no_python;          /* the program runs directly, whatever its name */
    const char *python_exec; /* PYTHON_EXEC; NULL: not set, or empty */

    /* The end of the job. */
    int64_t shutdown_timeout_ms; /* from the flag or TORCH_ELASTIC_SHUTDOWN_TIMEOUT; -1: not given */
    int64_t monitor_interval_ms; /* accepted and ignored */
    const char *signals_to_handle;
    uint64_t signals;         /* the same: bit n-1 for signal n */
    const char *stop_signals; /* NULL: not given */
    uint64_t stop_set;        /* the same: bit n-1 for signal n */
    int64_t stop_exit_code;   /* the exit status after a stop on which all ranks agreed */

    /* Output; rankmap.h reads these texts. */
    const char *log_dir;                                             /* NULL: not given */
    const char *redirects, *tee;                                     /* maps */
    const char *local_ranks_filter;                                  /* a set; NULL: all */
    const char *duplicate_stdout_filters, *duplicate_stderr_filters; /* NULL: not given */
    const char *logs_specs;                                          /* always NULL: refused */
    int event_log_handler, start_method;                             /* only the first word of each is accepted */
    int pty;                                                         /* enum options_pty */
    int64_t status_fd;                                               /* -1: not given */
    const char *trace;                                               /* NULL: not given */
    int64_t trace_max_mib;
    int64_t interactive; /* a rank; -1: not given */
    int stdin_to;        /* enum options_stdin */
    const char *report;  /* a file; NULL: not given */
    bool progress;
    const char *top;             /* an endpoint; NULL: not given; then `what` is TOP */
    const char *log_line_prefix; /* TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, or NULL */
    const char *error_file;      /* TORCHELASTIC_ERROR_FILE of cddprun itself, or NULL */

    const char *env_master_addr, *env_master_port; /* MASTER_ADDR, MASTER_PORT; NULL: not set, or empty */
    const char *log_level;                         /* LOGLEVEL; NULL: not set */
    const char *cuda_visible_devices;              /* NULL: not set; "" hides every GPU */
    const char *tmpdir;                            /* never NULL */
    char **command;                                /* the program and its arguments, ending with NULL; inside argv */
    int n_flag_words;                              /* words of argv before it, without its own name */
};

/* Returns the signals that end the job or request a stop: bit n-1 for signal n. */
static inline uint64_t options_ending(const struct options *o)
{
    return o->signals | o->stop_set;
}

/* Returns one of the signals that end the job: SIGTERM, or the first where the user's list lacks it. */
static inline int options_end_signal(const struct options *o)
{
    return (o->signals >> (SIGTERM - 1) & 1) != 0 ? SIGTERM : ffsll((long long)o->signals);
}

/* Returns the time from a signal that ends the job to SIGKILL: everything that waits for workers to end uses it. */
static inline int64_t options_grace_ms(const struct options *o)
{
    return o->shutdown_timeout_ms >= 0 ? o->shutdown_timeout_ms : 1000 * CDI_LIMIT_GRACE_S;
}

/* Returns the value of an environment variable, or NULL. */
typedef const char *(*options_getenv)(const char *name, void *arg);

#endif
