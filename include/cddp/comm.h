/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks join a job, what they know about it, and how they form groups. */
#ifndef CDDP_COMM_H
#define CDDP_COMM_H

#include <cddp/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------- communicator ---- */

/* A group of ranks that reduce together. Each function states which threads may call it. */
typedef struct cddp_comm cddp_comm;

/* Where the ranks of a job meet, and the job's secret, as plain bytes: the program passes it to all ranks. */
typedef struct cddp_unique_id {
    unsigned char bytes[256];
} cddp_unique_id;

/*
 * Starts a store in this process for one cddp_init of all ranks of a job, and writes into *id how to find it: the
 * addresses of this host (those of $CDDP_SOCKET_IFNAME where it is set) and a random secret, which every rank must
 * prove to know. Anybody who has the bytes can join. The store ends with the communicator that this process makes with
 * *id, once the other ranks have left; a process that makes none keeps it until it exits. Any thread; no communication.
 * Returns CDDP_OK; CDDP_E_INVALID; CDDP_E_SYSTEM; CDDP_E_NOMEM.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_unique_id_create(cddp_unique_id *id);

/* cddp_init_options.flags. */
enum {
    /* Rank 0 hosts the store, in a thread of the library, at host and port, which are the same on all ranks. */
    CDDP_INIT_HOST_STORE = 1
};

typedef struct cddp_init_options {
    size_t size;         /* sizeof(cddp_init_options) */
    const char *backend; /* "auto", "cpu", "nccl" or "mpi"; NULL: $CDDP_BACKEND, else "auto": a GPU if there is one */
    const char *device;  /* "cuda:3", of those that CUDA_VISIBLE_DEVICES leaves; NULL: by LOCAL_RANK. nccl only */
    int join_timeout_ms; /* until every rank is present; 0: $CDDP_JOIN_TIMEOUT seconds, else 300 s */
    int timeout_ms;      /* of every wait for a peer inside a collective; 0: $CDDP_TIMEOUT seconds, else 600 s */
    const char *name;    /* of the communicator, copied, 47 bytes at most, or CDDP_E_INVALID; NULL: "world". Any other
                            name appears in error messages and in NCCL's traces */
    uint32_t flags;      /* CDDP_INIT_... above */
    int world_size;      /* 0: all comes from the environment; then rank, host, port and id are 0, too */
    int rank;            /* from 0 to world_size - 1 */
    int port;            /* with host: where a store is that runs already, or that rank 0 hosts (flags) */
    const char *host;
    const cddp_unique_id *id;      /* in place of host and port */
    const void *mpi_comm;          /* backend "mpi": an MPI_Comm *; NULL: MPI_COMM_WORLD. Its ranks are the job's */
    int (*interrupted)(void *arg); /* NULL, or called about ten times a second while cddp_init blocks: see there */
    void *arg;
} cddp_init_options;

/*
 * Joins the job described by the environment ("env://"): RANK and WORLD_SIZE, or their counterparts from Open MPI,
 * MPICH or a Slurm step; MASTER_ADDR and MASTER_PORT; and, where set, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK and
 * GROUP_WORLD_SIZE (otherwise the ranks find out which of them share a host). Without any of them the program is a
 * world of one. Unless TORCHELASTIC_USE_AGENT_STORE is "True" rank 0 hosts the job's store, in a thread of the library.
 * With CDDP_AUTH_TOKEN_FILE, a file of mode 0600, ranks and store prove to each other that they know the job's secret.
 *
 * With opt->world_size the program itself gives its rank, its job, and where the ranks meet: at a store that runs
 * already (cddp-rendezvous, PyTorch's TCPStore, that of the launcher), at one that rank 0 hosts, or by an id. The ranks
 * find out which of them share a host. A world of one needs no meeting point. Such jobs disturb neither one another nor
 * the job of the environment. At one store opt->name tells them apart. A process may be in several at a time, one rank
 * in each.
 *
 * The backend is the same on every rank. "cpu" works on host memory. "nccl" works on one NVIDIA GPU per rank, and
 * parameters and gradients are memory of that GPU. Its primary context is current in the calling thread afterwards,
 * unless another context was current before, which stays. cddp_init sets variables of NCCL that are not set
 * (docs/environment.md has the list): no other thread may call getenv meanwhile.
 * "mpi" works on host memory over an MPI, whose launcher has to have started the program; it begins MPI unless the
 * program has, and the sums have the bits of "cpu". Its ranks are those of MPI_COMM_WORLD, or of opt->mpi_comm, an
 * intracommunicator of the program's, which must be there until cddp_init returns. A program that has begun MPI for
 * less than MPI_THREAD_MULTIPLE gets no overlap, and at less than MPI_THREAD_SERIALIZED it calls libcddp from MPI's
 * main thread only. "auto" is "nccl" where this libcddp has its NCCL module and the driver finds a GPU, else "cpu".
 * Ranks that share a GPU by mistake get an error; CDDP_SHARE_GPU=1 allows it.
 *
 * Blocks until every rank has joined or the join timeout has passed; the error then names the ranks that are missing.
 * opt may be NULL. *out is written on success only and is released by cddp_finalize().
 *
 * interrupted(arg) is called by the thread that has called cddp_init, and by no other. As soon as it returns other than
 * 0 cddp_init gives up, and returns CDDP_E_ABORTED; other ranks that were waiting for this one get the same status, and
 * its number. It must not call libcddp, throw, or leave by longjmp. It is not called while a name is resolved, MPI is
 * begun (MPI_Init), or a GPU is opened.
 *
 * A process is in a job once at a time: after all ranks have called cddp_finalize, they may join again, as often as
 * they like (but not by the same id). Call it from one thread, before others change the environment.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (a variable is missing or out of range, or opt is bad); CDDP_E_EXISTS (another
 * process has the same rank, this one has joined and not finalized, or the port is taken); CDDP_E_DENIED (the secret);
 * CDDP_E_LIMIT (the rendezvous takes no more connections: the error message names the limit to raise); CDDP_E_PEER (a
 * rank died or exited, or the process that hosts the store); CDDP_E_ABORTED (the launcher has ended this round, or a
 * program has given up by `interrupted`, this one or another rank's); CDDP_E_TIMEOUT; CDDP_E_CLOSED (the rendezvous
 * ended); CDDP_E_IO (no connection; of an id: after 30 s if nobody listens at its addresses any more); CDDP_E_PROTOCOL
 * (the server there is not a store); CDDP_E_UNSUPPORTED (ranks declared to share a host do not share one);
 * CDDP_E_VERSION (launcher, module and ranks are of different versions); CDDP_E_NOT_FOUND (the address does not
 * resolve: after 30 s if the name service knows no such name, else after the join timeout; or something that the
 * backend needs is missing: the error message names it); CDDP_E_MISMATCH (some ranks have a GPU and some have none, or
 * two share one); CDDP_E_SYSTEM; CDDP_E_NOMEM.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_init(cddp_comm **out, const cddp_init_options *opt);

/*
 * Leaves the job and frees comm; NULL is allowed. Reducers, optimizers and parts of comm may be destroyed before or
 * afterwards, in any order: their memory, that of gradients too, stays until then, and calls that need comm return
 * CDDP_E_STATE. Parts of comm are left with it, and are still to be finalized. On a GPU NCCL's memory is free when the
 * peers of this host have left as well; the process waits for that at its end, for 2 s at most. Does not wait for
 * peers, so a rank may leave as soon as its own last collective has returned, or its last ticket was waited for; except
 * that a rank 0 that hosts the store waits until the others have left, for timeout_ms at most (2 s after an error or an
 * abort). Returns the communicator's sticky error, the unreported error of a checkpoint in the background, or CDDP_OK.
 * Call it once, from one thread, while no other call on comm runs.
 */
CDDP_API cddp_status cddp_finalize(cddp_comm *comm);

/*
 * Returns the communicator's sticky error, or CDDP_OK; *info (NULL: not wanted) gets the same with its causes. Neither
 * blocks nor communicates. It also finds what the next call that waits would find: an abort by a peer, the death of a
 * rank of which the launcher or the kernel has told, an error of the GPU. News of other nodes' ranks takes as long as a
 * message. With the "mpi" backend peers are heard of only by the launcher or in a call that waits. In a part, too,
 * `rank` is the one in the world. Any thread. Returns also CDDP_E_INVALID (comm is NULL).
 */
CDDP_API cddp_status cddp_comm_error(cddp_comm *comm, cddp_error_info *info);

/*
 * Returns this process's rank, from 0 to the world's size - 1. This function and those below never fail: for NULL they
 * return -1, 0, NULL or "". Any thread.
 */
CDDP_API int cddp_rank(const cddp_comm *comm);
CDDP_API int cddp_world_size(const cddp_comm *comm); /* the number of ranks */
/* Returns the rank in the world (the communicator of cddp_init) of this rank of comm; -1 if comm has no such rank. */
CDDP_API int cddp_world_rank(const cddp_comm *comm, int rank);
CDDP_API int cddp_local_rank(const cddp_comm *comm);           /* this rank among those of its node, from 0 */
CDDP_API int cddp_local_world_size(const cddp_comm *comm);     /* the number of ranks on this node */
CDDP_API int cddp_node_rank(const cddp_comm *comm);            /* this node's number, from 0 */
CDDP_API const char *cddp_backend_name(const cddp_comm *comm); /* "cpu", "nccl" or "mpi" */
/* Returns how often the job was restarted: TORCHELASTIC_RESTART_COUNT; 0 without a launcher. */
CDDP_API int cddp_restart_count(const cddp_comm *comm);
/*
 * Returns 1, on all ranks of all nodes, after cddprun was asked to end the job (by SIGTERM, Ctrl-C or a batch system),
 * or a node of an elastic job has left or joined. Returns 0 before that, and without cddprun. Any thread; cheap.
 *
 * cddprun sends the worker SIGTERM (or the signal that it got) as well, so a program that uses this function ignores
 * SIGTERM, SIGINT, SIGHUP and SIGQUIT. Ranks see the 1 at different moments, and collectives work on until
 * --shutdown_timeout is over. So the ranks agree between two steps, save, and leave with status 0:
 *
 *     int32_t stop = cddp_stop_requested(comm);
 *     status = cddp_all_reduce(comm, &stop, &stop, 1, CDDP_INT32, CDDP_MAX);
 *     if (status == CDDP_OK && stop)
 *         return save_and_leave();
 *
 * Where a worker has failed or a node is lost, collectives fail at once with CDDP_E_PEER, and nothing can be agreed.
 */
CDDP_API int cddp_stop_requested(const cddp_comm *comm);

/*
 * Asks whether to stop: sets *stop to 1 on all ranks of comm in the same call, or to 0 on all of them. A collective,
 * called between two steps, best on the communicator of cddp_init. The answer is 1 after cddprun was asked to end the
 * job (cddp_stop_requested), after a signal of CDDP_STOP_SIGNALS to the rank itself, or after cddp_request_stop, on any
 * rank. It then stays 1, without communication. The ranks save together, and leave with status 0, within
 * --shutdown_timeout of the order:
 *
 *     int stop;
 *     status = cddp_should_stop(comm, &stop);
 *     if (status == CDDP_OK && stop)
 *         return save_and_leave();
 *
 * From its first call on, the program needs no signal handler. cddprun sends the rank no signal for an orderly stop,
 * and a signal of CDDP_STOP_SIGNALS (under cddprun those of --signals_to_handle and --stop_signals, otherwise TERM)
 * does not end the process, unless the program had another action than the default one. The default action returns with
 * cddp_finalize, and when a failure has ended the round. Before the first call such a signal ends the process, as it
 * does in a program that never asks.
 *
 * Called once per step of a reducer, it costs little: the question travels with the step, and on a GPU the answer is
 * that of the step before, so that the host does not wait for the device. Otherwise it is an all-reduce of 8 bytes. It
 * is never part of a CUDA graph: during a capture and between replays it is that all-reduce, which waits for the work
 * before it. Call it from one thread at a time. Returns CDDP_OK; CDDP_E_INVALID (comm or stop is NULL, or
 * CDDP_STOP_SIGNALS is not a list of signals); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_should_stop(cddp_comm *comm, int *stop);

/*
 * Requests that all ranks stop: cddp_should_stop soon returns 1 on every rank, here in the next call but one at the
 * latest. It does not communicate, and ends no wait. The job's end then counts as intended, and no time limit begins.
 * comm may be a part; the request is then that of the communicator of cddp_init. Any thread, also in a signal handler.
 * Returns CDDP_OK, CDDP_E_INVALID (comm is NULL) or CDDP_E_STATE (comm is over).
 */
CDDP_API cddp_status cddp_request_stop(cddp_comm *comm);

typedef struct cddp_split_options {
    size_t size;         /* sizeof(cddp_split_options) */
    uint32_t flags;      /* 0 */
    int timeout_ms;      /* of every wait for a peer inside a collective; 0: as comm's */
    const char *name;    /* "dp", "tp": as cddp_init_options.name; NULL: none */
    const char *backend; /* NULL: comm's; "cpu": a communicator for host memory, beside one for GPUs or over MPI */
} cddp_split_options;

/*
 * Splits comm: ranks that give the same color (>= 0) get a new communicator, a part of comm, whose ranks are ordered by
 * key, then by their rank in comm. A collective of all ranks of comm. A negative color: this rank is in no part, and
 * *out is NULL. cddp_rank and cddp_world_size count within the part, and so do error messages, which add the job's rank
 * where one has died; local and node ranks, and the rank of cddp_error_info, are those of the job. A part has its own
 * reducers and its own errors: a rank that fails in one part does not end the others. cddprun shows collectives of
 * eight parts at once.
 *
 * With NCCL, ranks start the operations of all communicators that use a GPU in one order: two ranks that have two
 * communicators in common start operations on both in the same order, in whichever threads, and a step of a reducer is
 * operations, too. Otherwise they may hang, until the timeout. libcddp puts operations on the GPU in the order in which
 * the process starts them, over all of its communicators. An operation that connects ranks for the first time delays
 * those after it; if its communicator fails, these go on.
 *
 * opt may be NULL; all ranks of a part want the same backend. Release it with cddp_finalize, before comm or after it.
 * Call it from one thread at a time. Returns CDDP_OK; CDDP_E_INVALID (also an unknown backend); CDDP_E_UNSUPPORTED
 * (unknown members of *opt); CDDP_E_MISMATCH (ranks of one color want different backends: all ranks of that color get
 * it); CDDP_E_NOMEM; CDDP_E_LIMIT (split from one another too often); or what a collective or cddp_init may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_comm_split(cddp_comm **out, cddp_comm *comm, int color, int key,
                                                    const cddp_split_options *opt);

/*
 * Creates a communicator of n ranks of comm, in the order of the list. Only these ranks call it, with the same list and
 * the same tag. The other ranks take no part, and comm's collectives may be under way; the members meet in the store,
 * and wait for one another for the join timeout of comm at most. The result is a part as those of cddp_comm_split are.
 * A process may call it in several threads at once, for groups that overlap, too, with a tag for each; the same list
 * and tag may be used again, one call after the other. comm may be a part.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (no such rank, one twice, or not this one's; bad opt); CDDP_E_UNSUPPORTED (unknown
 * members of *opt); CDDP_E_MISMATCH (a member that this rank waits for waits with another list, or wants another
 * backend: the members of both get it); CDDP_E_TIMEOUT (a member is missing: the error message names it); CDDP_E_PEER
 * (a member died, as far as comm knows); CDDP_E_ABORTED (comm was aborted meanwhile; or as cddp_init); CDDP_E_NOMEM; or
 * what cddp_init may return for a backend that cannot connect.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_comm_create_group(cddp_comm **out, cddp_comm *comm, const int *ranks, size_t n,
                                                           int tag, const cddp_split_options *opt);

typedef enum cddp_scope { CDDP_SCOPE_JOB = 0, CDDP_SCOPE_NODE = 1, CDDP_ENUM_32(CDDP_SCOPE) } cddp_scope;

/*
 * Lets one rank go first, and then the others: for a file that one rank downloads or builds, and the others find.
 *
 *     cddp_leader_first_begin(comm, CDDP_SCOPE_NODE, &first);
 *     why = there_is(file) || download(file) ? NULL : "no route to the host";
 *     cddp_leader_first_end(comm, first, why);
 *
 * cddp_leader_first_begin returns at once, with *first = 1, on rank 0, or on the lowest rank of each node; on the
 * others, with *first = 0, once every first rank has called cddp_leader_first_end; or with CDDP_E_REMOTE and an error
 * message that names the rank and says why, if one of them has failed. *first is written on success only. A collective
 * with cddp_leader_first_end: every rank calls both, and no other collective in between; but not the second one if the
 * first one has failed. It waits for the communicator's timeout at most. One thread. Returns CDDP_OK; CDDP_E_INVALID;
 * CDDP_E_REMOTE (a first rank failed: every rank gets this status and may go on); CDDP_E_NOMEM; or what a collective
 * may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_leader_first_begin(cddp_comm *comm, cddp_scope of, int *first);
/*
 * Ends this rank's turn. `first` is the value from cddp_leader_first_begin. failure: NULL, or why a first rank has
 * failed (all ranks get its first 255 bytes; "" counts as a failure); that of other ranks is ignored. On a first rank
 * it returns what cddp_leader_first_begin returns on the others: CDDP_E_REMOTE also for its own failure. On the others
 * it returns CDDP_OK at once.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_leader_first_end(cddp_comm *comm, int first, const char *failure);

/*
 * Aborts: every wait on comm, in this process and in its peers, soon returns CDDP_E_ABORTED. Any thread, any number of
 * times, also during a collective. `why` (may be NULL) becomes part of the peers' error message. cddp_finalize waits
 * for calls that began before it; a call that begins after it is an error, as with every function.
 */
CDDP_API void cddp_abort(cddp_comm *comm, const char *why);

#ifdef __cplusplus
}
#endif

#endif
