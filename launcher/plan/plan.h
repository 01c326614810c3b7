/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of this node: options and machine in, per-rank command and environment out. Pure; the random run id and the
 * directory are the caller's.
 */
#ifndef PLAN_H
#define PLAN_H

#include "launcher/plan/binding.h"
#include "launcher/plan/endpoint.h"
#include "launcher/plan/machine.h"
#include "protocol/auth.h"
#include "protocol/message.h"

struct plan {
    uint32_t n_procs; /* workers on this node */
    uint32_t min_nodes, max_nodes;
    uint32_t max_restarts;
    bool wait_on_failure; /* a worker's failure does not stop the others */
    struct endpoint endpoint;
    char run_id[256];
    const char *role;
    const char *host;                /* this node's name in messages */
    const struct cdi_secret *secret; /* NULL: none */
    const char *auth_token_file;     /* the workers read it from here; NULL: no auth token */
    struct bind_worker *bind;        /* the cores of each of n_procs workers; NULL: none is bound */
    const struct options *options;   /* all other values that the user gave */
    const char *interpreter[3];      /* words before the command: Python and its flags; NULL: no more */
    char **command;
};

/*
 * Makes the plan. random_id names the run of a single node without --rdzv_id; several nodes would not draw the same
 * one. o and m must outlive the plan, which uses their strings. *out is written on success only. CDDP_E_NOT_FOUND:
 * --nproc_per_node=gpu without a visible GPU. CDDP_E_INVALID: --world_size does not fit these nodes, or --interactive
 * is out of range.
 */
cddp_status plan_make(struct plan *out, const struct options *o, const struct endpoint *endpoint,
                      const struct machine *m, const char *random_id, struct cdi_error *err);

/* One worker's share of an assignment. */
struct plan_rank {
    const struct cdi_msg_assign *assign; /* with master_addr and master_port filled in */
    uint32_t local_rank;
    const char *error_file; /* TORCHELASTIC_ERROR_FILE */
    const char *flight;     /* CDDP_FLIGHT */
};

/*
 * Returns the environment of one worker: base (NULL-terminated) with --export's and torchrun's variables set.
 * OMP_NUM_THREADS, TORCH_NCCL_ASYNC_ERROR_HANDLING and PYTHONFAULTHANDLER keep their values. CDDP_TRACE, PET_REPORT and
 * PET_STATUS_FD are left out, unless --export names them. Free it with plan_free_strings. NULL: out of memory.
 */
char **plan_env(const struct plan *p, const struct plan_rank *r, char *const *base);
/* Returns whether the workers run Python: as the interpreter of the program, or as the program itself. */
bool plan_runs_python(const struct plan *p);
/* Returns the program to execute: Python, or the command itself. */
const char *plan_program(const struct plan *p);
/* Returns the name of the workers' program for messages. --preflight=only has none but its checks. */
const char *plan_shown_program(const struct plan *p);
/*
 * Returns the command, after its interpreter, with ${local_rank} replaced in the arguments; $${local_rank} becomes
 * ${local_rank}. Free it with plan_free_strings. NULL: out of memory.
 */
char **plan_args(const struct plan *p, uint32_t local_rank);
void plan_free_strings(char **strings);

#endif
