/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --hosts a:8,b:8: the list, and the command that ssh runs on each host. Pure. ssh.c starts the commands; remote_end.c
 * runs on the hosts.
 */
#ifndef HOSTS_H
#define HOSTS_H

#include "common/buf.h"
#include "launcher/cli/options.h"

#define HOSTS_MAX 4096

struct host {
    char name[256];  /* as ssh takes it: user@name too */
    int64_t n_procs; /* 0: the value of --nproc_per_node */
};

struct hosts {
    struct host *v; /* malloc'd */
    uint32_t n;
};

/*
 * Parses HOST[:N],HOST[:N]... ([v6]:N for IPv6). CDDP_E_INVALID with an error message, also if another flag of o
 * contradicts --hosts; CDDP_E_LIMIT, CDDP_E_NOMEM. Free out->v.
 */
cddp_status hosts_parse(struct hosts *out, const struct options *o, struct cdi_error *err);

/* The part of the command that is the same for all hosts of a job. */
struct hosts_job {
    const struct hosts *hosts;
    char *const *flags; /* the user's, without cddprun and PROGRAM */
    int n_flags;
    char *const *command; /* PROGRAM ARGS, NULL */
    char *const *env;     /* variables for the remote cddprun, NULL */
    bool terminal;        /* cddprun's stdout is a terminal */
    const char *program;  /* cddprun's path, the same everywhere */
    const char *directory;
    const char *master_addr;
    uint16_t master_port;
};

/* Writes a line for sh, which changes to the directory and runs cddprun as node `node`, and a NUL. CDDP_E_NOMEM. */
cddp_status hosts_command(struct cdi_buf *out, const struct hosts_job *job, uint32_t node);
/* Returns the address of a host: "user@a" -> "a". */
const char *hosts_address(const struct host *h);

/* Frames that ssh.c sends to remote_end.c over ssh's stdin. End of file means: end the job. */
#define HOSTS_SIGNAL 's' /* and its number */
#define HOSTS_DATA 'd'   /* and a little-endian u16 of bytes that follow: for stdin of rank 0 */
#define HOSTS_END 'e'    /* no more data */
#define HOSTS_DATA_MAX 4096

#endif
