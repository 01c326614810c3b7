/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: one table of flags (options.c) makes the parser, the defaults, the PET_* variables and --help.
 * Pure: argv and a getter for the environment in, values out. With common/env.c the only place that knows getenv.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define OPTIONS_MAX_PROCS 4096
#define OPTIONS_MAX_NODES 100000

enum options_what { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION };
enum options_nproc { OPTIONS_NPROC_COUNT, OPTIONS_NPROC_CPU, OPTIONS_NPROC_GPU, OPTIONS_NPROC_AUTO };

struct options {
    enum options_what what;
    enum options_nproc nproc_kind;
    int64_t nproc; /* where nproc_kind is COUNT */
    int64_t min_nodes, max_nodes;
    bool nnodes_given;
    int64_t max_restarts;
    int64_t master_port; /* -1: not given */
    int64_t node_rank;   /* -1: not given */
    bool standalone;
    bool wait_on_failure;
    bool no_python;          /* accepted for torchrun's sake: cddprun never puts Python in front */
    const char *master_addr; /* NULL: not given */
    const char *run_id;      /* NULL: not given */
    const char *rdzv_backend, *rdzv_endpoint, *rdzv_conf, *local_addr; /* NULL: not given */
    const char *auth_token_file;                                       /* NULL: not given */
    const char *role;
    const char *env_master_addr, *env_master_port; /* MASTER_ADDR, MASTER_PORT; NULL: not set, or empty */
    const char *log_level;                         /* LOGLEVEL; NULL: not set */
    const char *cuda_visible_devices;              /* NULL: not set; "" hides every GPU */
    const char *tmpdir;                            /* never NULL */
    char **command;                                /* the program and its arguments, ending with NULL; inside argv */
};

/* The value of an environment variable or NULL. */
typedef const char *(*options_getenv)(const char *name, void *arg);

/* getenv(3) itself, for main. */
const char *options_real_env(const char *name, void *arg);

/*
 * Read argv[1..]: flags in either spelling (--a-b, --a_b), as --flag value or --flag=value, or shortened as long as
 * only one flag begins that way; `--` or the first word that is no flag ends them, and the rest is the worker's
 * command. A flag that is not given has the value of its PET_* variable, else its default. The strings stay argv's
 * and the environment's. *out is written on success only. CDDP_E_INVALID with a sentence that names the flag (or
 * variable) and the value; CDDP_E_UNSUPPORTED for a flag or value that only torchrun knows.
 */
cddp_status options_parse(struct options *out, int argc, char **argv, options_getenv env, void *arg,
                          struct cdi_error *err);

/* A sentence is one line, whatever a word in it holds: no newline, nothing that moves a terminal's cursor. */
void options_one_line(struct cdi_error *err);

/* What --help shows. */
void options_usage(FILE *to);

#endif
