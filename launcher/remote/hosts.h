/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --hosts a:8,b:8: the list, and the command that ssh runs on each of them. Pure. near.c starts the commands, far.c is
 * their other end.
 */
#ifndef HOSTS_H
#define HOSTS_H

#include "common/buf.h"
#include "launcher/cli/options.h"

#define HOSTS_MAX 4096

struct host {
    char name[256];  /* as ssh takes it: user@name too */
    int64_t n_procs; /* 0: as --nproc_per_node says */
};

struct hosts {
    struct host *v; /* malloc'd */
    uint32_t n;
};

/*
 * HOST[:N],HOST[:N]... ([v6]:N for IPv6). CDDP_E_INVALID with a sentence, also where another flag of o says something
 * else about the nodes; CDDP_E_LIMIT, CDDP_E_NOMEM. Free out->v.
 */
cddp_status hosts_parse(struct hosts *out, const struct options *o, struct cdi_error *err);

/* What stays the same for all hosts of a job. */
struct hosts_job {
    const struct hosts *hosts;
    char *const *flags; /* the user's, without cddprun and PROGRAM */
    int n_flags;
    char *const *command; /* PROGRAM ARGS, NULL */
    char *const *env;     /* settings for the far cddprun, NULL */
    bool terminal;        /* our stdout is one */
    const char *program;  /* cddprun's path, the same everywhere */
    const char *directory;
    const char *master_addr;
    uint16_t master_port;
};

/* A line for sh: go to the directory and run cddprun as node `node`. out has a NUL at its end. CDDP_E_NOMEM. */
cddp_status hosts_command(struct cdi_buf *out, const struct hosts_job *job, uint32_t node);
/* "user@a" -> "a". */
const char *hosts_address(const struct host *h);

/* What the near end says to the far one, over ssh's stdin. End of file is: end the job. */
#define HOSTS_SIGNAL 's' /* and its number */
#define HOSTS_DATA 'd'   /* and a little-endian u16 of bytes that follow: for stdin of rank 0 */
#define HOSTS_END 'e'    /* no more of them */
#define HOSTS_DATA_MAX 4096

#endif
