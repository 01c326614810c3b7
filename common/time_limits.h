/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time limits that a job's user may notice, in seconds. docs/stopping.md shows them, as tests/lint/time_limits.py
 * reads them here. In front of each: "who waits | what for | what sets it".
 */
#ifndef CDI_TIME_LIMITS_H
#define CDI_TIME_LIMITS_H

#define CDI_LIMIT_TEXT_(value) #value
#define CDI_LIMIT_TEXT(limit) CDI_LIMIT_TEXT_(limit) /* "30", for the default of a flag */

/* cddprun | for workers to end, from the first signal to SIGKILL, whenever they are stopped | `--shutdown_timeout` */
#define CDI_LIMIT_GRACE_S 30
/* cddprun, its guard | for a process to end after SIGKILL; after that the kernel or a debugger holds it | - */
#define CDI_LIMIT_KILLED_S 30
/* cddprun that hosts the rendezvous | for the workers of other nodes, besides the grace period, after a signal | - */
#define CDI_LIMIT_OTHER_NODES_S 5
/* cddprun with `--hosts` | for the other hosts to end after the failure of one, besides the grace period | - */
#define CDI_LIMIT_OTHER_HOSTS_S 15
/* cddprun with `--hosts` | for every host to end after a signal, besides the grace period | - */
#define CDI_LIMIT_ALL_HOSTS_S 60
/* cddprun | for a reader of its output that does not read, after a signal | - */
#define CDI_LIMIT_READER_S 2
/* a worker that crashes | for its agent to read its stack | `--crash_stack=off` */
#define CDI_LIMIT_CRASH_STACK_S 2
/* cddprun | for enough nodes to join | `--rdzv_conf=join_timeout=S` */
#define CDI_LIMIT_JOIN_S 600
/* the rendezvous | for more nodes once there are MIN | `--rdzv_conf=last_call_timeout=S` */
#define CDI_LIMIT_LAST_CALL_S 3
/* the rendezvous | for a message of a node; the node itself kills its workers after two thirds | `--rdzv_conf=lease=S`
 */
#define CDI_LIMIT_LEASE_S 15
/* the rendezvous | for the last connections of a finished job | `--rdzv_conf=close_timeout=S` */
#define CDI_LIMIT_CLOSE_S 60
/* the servers of a store | for a connection to send its request and its auth token | - */
#define CDI_LIMIT_OPENING_S 5
/* cddprun | for progress of ranks in a collective, before it prints where all ranks are | `--hang_warning` */
#define CDI_LIMIT_HANG_WARNING_S 30
/* cddprun | the same, before `--on_hang` decides | `--hang_timeout` */
#define CDI_LIMIT_HANG_S 600
/* `cddp_init` | for all ranks | `CDDP_JOIN_TIMEOUT`, `cddp_init_options.join_timeout_ms` */
#define CDI_LIMIT_INIT_S 300
/* each collective | for its slowest rank | `CDDP_TIMEOUT`, `cddp_init_options.timeout_ms` */
#define CDI_LIMIT_COLLECTIVE_S 600
/* each call of `cddp_store_*` | for the server, or for a key | `cddp_store_options.timeout_ms` */
#define CDI_LIMIT_STORE_S 300
/* a client of the store | for the name service to know the host | - */
#define CDI_LIMIT_NAME_S 30
/* `cddp_finalize` | for the store to take note that this rank leaves | - */
#define CDI_LIMIT_GOODBYE_S 2
/* `cddprun --preflight` | for the verdict about all nodes | - */
#define CDI_LIMIT_VERDICT_S 75

#endif
