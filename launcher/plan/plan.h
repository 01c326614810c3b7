/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What will be run: options and machine in, per-rank command and environment out. Pure; the random run id and the
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
    bool wait_on_failure; /* a worker's failure leaves the others alone */
    struct endpoint endpoint;
    char run_id[256];
    const char *role;
    const char *host;                /* what messages call this machine */
    const struct cdi_secret *secret; /* NULL: none */
    const char *auth_token_file;     /* where the workers find it; NULL: nowhere */
    struct bind_worker *bind;        /* where each of n_procs workers runs; NULL: nobody was asked to be bound */
    const struct options *options;   /* where the rest of what was asked for stands */
    const char *interpreter[3];      /* words in front of the command: Python and its flags; NULL: no more */
    char **command;
};

/*
 * random_id names the run of one node where no flag does; several would not draw the same. o must outlive the plan,
 * whose strings stay those of o and m. *out is written on success only. CDDP_E_NOT_FOUND: --nproc_per_node=gpu on a
 * machine that shows none. CDDP_E_INVALID: --world_size cannot be had with these nodes, or --interactive names no rank.
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
 * The environment of one worker: base (NULL-terminated) with --export's and torchrun's variables set. OMP_NUM_THREADS
 * and TORCH_NCCL_ASYNC_ERROR_HANDLING keep the value they have. Free with plan_free_strings. NULL: no memory.
 */
char **plan_env(const struct plan *p, const struct plan_rank *r, char *const *base);
/* The program that is executed: Python where the command is a Python program's. */
const char *plan_program(const struct plan *p);
/*
 * The command, behind its interpreter, with ${local_rank} replaced in the arguments; $${local_rank} stays as
 * ${local_rank}. NULL: no memory.
 */
char **plan_args(const struct plan *p, uint32_t local_rank);
void plan_free_strings(char **strings);

#endif
