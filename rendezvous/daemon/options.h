/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of cddp-rendezvous: one table of flags for the parser, --help, the man page and the bash completion.
 * Pure.
 */
#ifndef RDZV_DAEMON_OPTIONS_H
#define RDZV_DAEMON_OPTIONS_H

#include "rendezvous/server.h"

#include <stdio.h>

enum daemon_what { DAEMON_RUN, DAEMON_HELP, DAEMON_VERSION };

/* Strings point into argv. */
struct daemon_options {
    enum daemon_what what;
    const char *bind;
    uint16_t port;
    uint16_t first_job_port, last_job_port; /* 0: any free port for each job */
    const char *auth_token_file;            /* NULL: not given */
    enum rdzv_access plain_store;
    enum rdzv_access http;
    uint32_t max_jobs;
    size_t max_connections; /* 0: limited by descriptors only */
    size_t max_buffered;
    struct cdi_kv_limits store;
};

/*
 * Parses the command line, up to --help or --version. Returns CDDP_OK, or CDDP_E_INVALID (the message names the flag).
 */
cddp_status daemon_options_parse(struct daemon_options *out, int argc, char *const argv[], struct cdi_error *err);
void daemon_options_usage(FILE *to); /* prints --help */
void daemon_options_man(FILE *to);   /* prints the man page, cddp-rendezvous(8), below its title */
void daemon_options_bash(FILE *to);  /* prints a file for bash-completion */

#endif
