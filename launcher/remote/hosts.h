/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --hosts a:8,b:8 and --hostfile: the list, and the script for each host. Pure. ssh.c starts the hosts; remote_end.c
 * runs on them.
 */
#ifndef HOSTS_H
#define HOSTS_H

#include "common/buf.h"
#include "launcher/cli/options.h"

#define HOSTS_MAX 4096

struct host {
    char name[256];  /* as ssh takes it: user@name too */
    int64_t n_procs; /* 0: the value of --nproc_per_node */
    bool has_slots;  /* slots=N */
};

struct hosts {
    struct host *v; /* malloc'd */
    uint32_t n;
};

/*
 * Parses --hosts, HOST[:N],HOST[:N]... ([v6]:N for IPv6), or file, the text of --hostfile: a line HOST [slots=N] or
 * HOST:N for each, where a repeated HOST without slots is one more worker. CDDP_E_INVALID with an error message, also
 * if another flag of o contradicts --hosts; CDDP_E_LIMIT, CDDP_E_NOMEM. Free out->v.
 */
cddp_status hosts_parse(struct hosts *out, const struct options *o, const char *file, struct cdi_error *err);

/* The part of the script that is the same for all hosts of a job. */
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

/*
 * Writes a line for sh, which changes to the directory and runs cddprun as node `node`. sh reads it from its stdin, so
 * that its length has no limit but the kernel's for arguments, and any login shell can start sh. CDDP_E_NOMEM.
 */
cddp_status hosts_script(struct cdi_buf *out, const struct hosts_job *job, uint32_t node);
/* Returns the address of a host: "user@a" -> "a". */
const char *hosts_address(const struct host *h);

/*
 * What ssh.c and remote_end.c send to each other through ssh: after the script for sh, ssh.c is silent until
 * remote_end.c has written HOSTS_HELLO. The stdout of a login shell may have written something before it. From then on
 * both send frames (protocol/frame.h). The end of file on remote_end.c's stdin means: end the job.
 */
#define HOSTS_HELLO "\0cddprun --hosts 1\n"
#define HOSTS_HELLO_LEN (sizeof HOSTS_HELLO - 1)
/* Bytes of INPUT on the way: SIGNAL must not wait until rank 0 has read more. */
#define HOSTS_WINDOW 0x40000
#define HOSTS_DATA_MAX 4096 /* bytes of an INPUT */

enum hosts_frame {
    HOSTS_SIGNAL,    /* u8: its number */
    HOSTS_INPUT,     /* bytes for the job's stdin; none: its end */
    HOSTS_INPUT_GOT, /* from remote_end.c, u32 little-endian: so many of these bytes are written */
    HOSTS_OUTPUT,    /* from remote_end.c: bytes of stdout */
    HOSTS_STATUS,    /* from remote_end.c, u8: the exit status; the last frame */
};

#endif
