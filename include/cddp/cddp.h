/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcddp: data-parallel training for C, C++ and CUDA programs. This is the only file that a user must read.
 *
 * A program is started once per rank (by cddprun, torchrun, mpirun, srun, or by hand), joins its peers with
 * cddp_init(), hands its parameters to cddp_ddp_create(), and from then on says which gradients are ready; gradients
 * are averaged over all ranks in buckets while the backward pass still runs:
 *
 *     cddp_comm *comm;
 *     cddp_ddp *ddp;
 *     if (cddp_init(&comm, NULL) != CDDP_OK || cddp_ddp_create(&ddp, comm, params, n_params, NULL) != CDDP_OK)
 *         return fprintf(stderr, "%s\n", cddp_last_error()), 1;
 *     for (each step) {
 *         for (i = n_params; i-- > 0;) {            // backward pass, last layer first
 *             write cddp_ddp_grad(ddp, i);
 *             cddp_ddp_grad_ready(ddp, i);
 *         }
 *         if (cddp_ddp_wait(ddp) != CDDP_OK)        // every gradient is now the mean over all ranks
 *             return fprintf(stderr, "%s\n", cddp_last_error()), 1;
 *         optimizer step on cddp_ddp_grad(ddp, i);
 *     }
 *     cddp_ddp_destroy(ddp);
 *     cddp_finalize(comm);
 *
 * Errors. Functions return CDDP_OK (0) or a negative status; cddp_last_error() then holds one full sentence for the
 * calling thread, and cddp_last_error_info() its number and which rank has caused it. Errors of a communicator are
 * sticky: after one, every later call on it (and on its reducers) returns that error. After which statuses it goes on
 * status.h says, and cddp_comm_error() at any time. The library never exits, never prints, never installs a signal
 * handler; except that with CDDP_DEBUG=1 in the environment it prints warnings about likely mistakes to stderr
 * (gradients of the first step that are all zero, or the same on every rank; parameters that never change; gradients in
 * `grad` that are written too late). That is for the CPU, and takes the memory of the gradients once more during the
 * first step.
 *
 * Processes. What a process has joined, opened or created with libcddp is its own. A child made by fork() may hold
 * copies of it (a data loader, a program that calls exec), and may exit as it likes. What it calls on them disturbs
 * nobody: functions that return a status return CDDP_E_STATE at once, with a message that names both processes;
 * cddp_ddp_grad() returns NULL; functions that return nothing do nothing. Questions such as cddp_rank() are answered. A
 * child may call cddp_init() for a job of its own. A child made by vfork() shares its parent's memory, and cannot be
 * told apart by functions that are called often: it calls none.
 *
 * Collectives. Every rank calls the same collectives in the same order with the same count, type and operation. A rank
 * that differs is told so, and so are its peers (CDDP_E_MISMATCH, naming both), instead of hanging.
 *
 * Structs. Each create function takes an options struct, or NULL for the defaults. Every struct that a caller fills in
 * begins with `size`, which the caller sets to sizeof the struct, in each element of an array. Every other member that
 * is zero means the default. Structs grow at the end in later versions, and change in no other way. So a program runs
 * with a library that is older or newer than its header. Members past the caller's size count as zero. If the caller's
 * struct is larger than the library's, the bytes that the library does not know must be zero. Otherwise the function
 * returns CDDP_E_UNSUPPORTED, and the error message gives the offset of the first of them. A size that was not set is
 * CDDP_E_INVALID. A struct that the library fills in has its size set by the caller, too. It is written up to the
 * smaller of both sizes, so a program zeroes it before.
 *
 * Enumerations are 32 bits wide, also with -fshort-enums, and get new enumerators: a switch over one has a default.
 *
 * The promise. Functions, constants, and members of structs stay as they are from one version to the next, where
 * pointers and long have 64 bits (LP64). The texts of error messages, defaults and limits are no part of it.
 */
#ifndef CDDP_H
#define CDDP_H

#include <cddp/status.h>
#include <cddp/version.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The element types. Their numbers are NCCL's plus one, so that 0 is no type and a forgotten one is an error; types
 * that NCCL does not have begin at 64. A bool is a CDDP_UINT8 with CDDP_MAX for "any" and CDDP_MIN for "all". A complex
 * number is two floating-point elements: give twice the count. MINLOC and MAXLOC are two calls: the MIN or MAX of the
 * value, then the MIN of the index, for which the other ranks give the largest one.
 *
 * Every collective and message moves every type. Reductions are those of cddp_redop; of 8-bit floats the GPU's only.
 */
typedef enum cddp_dtype {
    CDDP_DTYPE_NONE = 0,
    CDDP_INT8 = 1,
    CDDP_UINT8 = 2,
    CDDP_INT32 = 3,
    CDDP_UINT32 = 4,
    CDDP_INT64 = 5,
    CDDP_UINT64 = 6,
    CDDP_FLOAT16 = 7, /* IEEE 754 binary16; how it is summed: see cddp_redop */
    CDDP_FLOAT32 = 8,
    CDDP_FLOAT64 = 9,
    CDDP_BFLOAT16 = 10, /* the upper half of a float32; how it is summed: see cddp_redop */
    CDDP_FLOAT8_E4M3 = 11,
    CDDP_FLOAT8_E5M2 = 12,
    CDDP_INT16 = 64,
    CDDP_UINT16 = 65,
    CDDP_ENUM_32(CDDP_DTYPE)
} cddp_dtype;

/*
 * Reductions. Their numbers are NCCL's; those that NCCL does not have begin at 64. AVG, of floating-point types only,
 * is the sum multiplied by 1/world size. BAND, BOR and BXOR, of integers only, are "and", "or" and "exclusive or" of
 * each bit. Sums and products of integers wrap around. NaN in MIN and MAX: on the host a NaN wins; on a GPU the result
 * is not specified.
 *
 * A reduction that a backend cannot do is CDDP_E_UNSUPPORTED on every rank, before anything is sent. On the host that
 * is every reduction of FLOAT8_E4M3 and FLOAT8_E5M2. On a GPU it is every reduction of INT16 and UINT16, BAND, BOR and
 * BXOR of any type, and AVG of 8-bit floats; their other reductions need NCCL 2.24 and compute capability 9.0 on every
 * rank.
 *
 * On the host sums are made in rank order, those of float16 and bfloat16 in float32, and each result is rounded once.
 * On a GPU the order is NCCL's, and so is the type: its ring and tree add float16 and bfloat16 in these types
 * themselves, and round at every rank; only NVLink switches and symmetric windows add them in float32. There the mean
 * of float16 is multiplied before the sum, so that gradients do not overflow; of the other types after it. Gradients of
 * 16 bits can be summed in float32 everywhere: cddp_ddp_options.comm_dtype.
 */
typedef enum cddp_redop {
    CDDP_SUM = 0,
    CDDP_PROD = 1,
    CDDP_MAX = 2,
    CDDP_MIN = 3,
    CDDP_AVG = 4,
    CDDP_BAND = 64,
    CDDP_BOR = 65,
    CDDP_BXOR = 66,
    CDDP_ENUM_32(CDDP_REDOP)
} cddp_redop;

/* Bytes per element; 0 for a value that is no type. Any thread. */
CDDP_API size_t cddp_dtype_size(cddp_dtype dtype);

/* The text of a status, as "timed out". Static storage, never NULL. Any thread. */
CDDP_API const char *cddp_strerror(cddp_status status);
/* The name of a status, as "CDDP_E_TIMEOUT". Static storage, never NULL. Any thread. */
CDDP_API const char *cddp_status_name(cddp_status status);
/*
 * The full sentence of the calling thread's last failed libcddp call ("" if none failed yet). It stays valid until the
 * same thread's next failing call.
 */
CDDP_API const char *cddp_last_error(void);
/* An error as values, beside its text. */
typedef struct cddp_error_info {
    size_t size;          /* sizeof(cddp_error_info), set by the caller: the library writes that many bytes at most */
    cddp_status status;   /* CDDP_OK: there is none */
    int32_t rank;         /* the rank, in the world, that caused it: it died, aborted, came late, or failed in what it
                             did for all; of two that differ the higher one; -1: unknown, or none */
    int32_t os_error;     /* errno; 0: none */
    int32_t device_error; /* CUDA's or NCCL's code; 0: none */
    char message[1024];   /* as cddp_last_error() has it; "" if there is none */
} cddp_error_info;

/* Stores the calling thread's last error, that of cddp_last_error(), in *info. Never fails; NULL is ignored. */
CDDP_API void cddp_last_error_info(cddp_error_info *info);
/* The library's own version, "0.1.0" (CDDP_VERSION is that of the header). Any thread. */
CDDP_API const char *cddp_version(void);

/* ---------------------------------------------------------------------------------------------- communicator ---- */

/* A group of ranks that reduce together. Thread-safety: each function says. */
typedef struct cddp_comm cddp_comm;

/* Where the ranks of a job meet, and its secret, as plain bytes: the program hands it to all of them. */
typedef struct cddp_unique_id {
    unsigned char bytes[256];
} cddp_unique_id;

/*
 * Start a store in this process for one cddp_init of all ranks of a job, and write into *id how to find it: the
 * addresses of this host (those of $CDDP_SOCKET_IFNAME where it is set) and a random secret, which every rank proves.
 * So whoever has the bytes can join. The store ends with the communicator that this process makes with *id, once the
 * other ranks have left; a process that makes none keeps it until it exits. Any thread; no communication. Returns
 * CDDP_OK; CDDP_E_INVALID; CDDP_E_SYSTEM; CDDP_E_NOMEM.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_unique_id_create(cddp_unique_id *id);

/* cddp_init_options.flags. */
enum {
    /* Rank 0 hosts the store, in a thread of the library, at host and port, of which all ranks say the same. */
    CDDP_INIT_HOST_STORE = 1
};

typedef struct cddp_init_options {
    size_t size;         /* sizeof(cddp_init_options) */
    const char *backend; /* "auto", "cpu", "nccl" or "mpi"; NULL: $CDDP_BACKEND, else "auto": a GPU if there is one */
    const char *device;  /* "cuda:3", of those that CUDA_VISIBLE_DEVICES leaves; NULL: by LOCAL_RANK. nccl only */
    int join_timeout_ms; /* until every rank is present; 0: $CDDP_JOIN_TIMEOUT seconds, else 300 s */
    int timeout_ms;      /* of every wait for a peer inside a collective; 0: $CDDP_TIMEOUT seconds, else 600 s */
    const char *name;    /* of the communicator, copied, 47 bytes of it at most; NULL: "world", which is not mentioned.
                            Others are, in its error messages and as the name that NCCL's traces show */
    uint32_t flags;      /* CDDP_INIT_... above */
    int world_size;      /* 0: the environment says all; then rank, host, port and id are 0, too */
    int rank;            /* from 0 to world_size - 1 */
    int port;            /* with host: where a store is that runs already, or that rank 0 hosts (flags) */
    const char *host;
    const cddp_unique_id *id;      /* in place of host and port */
    const void *mpi_comm;          /* backend "mpi": an MPI_Comm *; NULL: MPI_COMM_WORLD. Its ranks are the job's */
    int (*interrupted)(void *arg); /* NULL, or called about ten times a second while cddp_init blocks: see there */
    void *arg;
} cddp_init_options;

/*
 * Join the job described by the environment ("env://"): RANK and WORLD_SIZE, else what Open MPI, MPICH or a Slurm step
 * says instead; MASTER_ADDR and MASTER_PORT; and, where set, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK and
 * GROUP_WORLD_SIZE (where not, the ranks find out which of them share a host). Without any of them the program is a
 * world of one. Unless TORCHELASTIC_USE_AGENT_STORE is "True" rank 0 hosts the job's store, in a thread of the library.
 * With CDDP_AUTH_TOKEN_FILE, a file of mode 0600, the job's secret is proved, and demanded of the store.
 *
 * With opt->world_size the program says itself which rank of which job it is, and where the ranks meet: at a store that
 * runs already (cddp-rendezvous, PyTorch's TCPStore, that of the launcher), at one that rank 0 hosts, or by an id.
 * Which of them share a host, the ranks find out. A world of one needs no meeting point. Such jobs disturb neither one
 * another nor that of the environment, also at one store, where they are told apart by opt->name: a process may be in
 * several at a time, one rank in each.
 *
 * The backend is the same on every rank. "cpu" works on host memory. "nccl" works on one NVIDIA GPU per rank: its
 * primary context is current in the calling thread afterwards, and parameters and gradients are memory of that GPU.
 * "mpi" works on host memory over an MPI, whose launcher has to have started the program; it begins MPI unless the
 * program has, and the sums have the bits of "cpu". Its ranks are those of MPI_COMM_WORLD, or of opt->mpi_comm, an
 * intracommunicator of the program's, which must be there until cddp_init returns. A program that has begun MPI for
 * less than MPI_THREAD_MULTIPLE gets no overlap, and at less than MPI_THREAD_SERIALIZED it calls libcddp from MPI's
 * main thread only. "auto" is "nccl" where this libcddp has its NCCL module and the driver finds a GPU, else "cpu".
 * Ranks that share a GPU by mistake are told so; with CDDP_SHARE_GPU=1 they may.
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
 * Returns CDDP_OK; CDDP_E_INVALID (a variable is missing or out of range, or opt is bad); CDDP_E_EXISTS (another
 * process has the same rank, this one has joined and not finalized, or the port is taken); CDDP_E_DENIED (the secret);
 * CDDP_E_LIMIT (the rendezvous takes no more connections: the sentence says which limit to raise); CDDP_E_PEER
 * (a rank died, or the process that hosts the store); CDDP_E_ABORTED (the launcher has ended this round, or a
 * program has given up by `interrupted`, this one or another rank's);
 * CDDP_E_TIMEOUT; CDDP_E_CLOSED (the rendezvous ended); CDDP_E_IO (no connection); CDDP_E_PROTOCOL (what listens there
 * is no store); CDDP_E_UNSUPPORTED (ranks that are said to share a host do not); CDDP_E_VERSION (launcher, module and
 * ranks are of different versions);
 * CDDP_E_NOT_FOUND (the address does not resolve: after 30 s if the name service knows no such name, else after the
 * join timeout; or what the backend needs is missing: the sentence says what); CDDP_E_MISMATCH (some ranks have a GPU
 * and some have none, or two share one); CDDP_E_SYSTEM; CDDP_E_NOMEM.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_init(cddp_comm **out, const cddp_init_options *opt);

/*
 * Leave the job and free comm; NULL is allowed. Reducers, optimizers and parts of comm may be destroyed before or
 * afterwards, in any order: their memory, that of gradients too, stays until then, and calls that need comm return
 * CDDP_E_STATE. Parts of comm are left with it, and are still to be finalized. Does not wait for peers, so a rank may
 * leave as soon as its own last collective has returned; except that a rank 0 that hosts the store waits
 * until the others have left, for timeout_ms at most (2 s after an error or an abort). Returns the communicator's
 * sticky error, that of a checkpoint in the background that nobody was told of, or CDDP_OK. Call it once, from one
 * thread, while no other call on comm runs.
 */
CDDP_API cddp_status cddp_finalize(cddp_comm *comm);

/*
 * Returns the communicator's sticky error, or CDDP_OK; *info (NULL: not wanted) gets the same with its causes. Neither
 * blocks nor communicates. It also finds what the next call that waits would find: an abort by a peer, the death of a
 * rank of which the launcher or the kernel has told, an error of the GPU. Ranks of other nodes are heard of as soon as
 * their word has come, and with the "mpi" backend peers only by the launcher or in a call that waits. In a part
 * `rank` counts in the world, too. Any thread. Returns also CDDP_E_INVALID (comm is NULL).
 */
CDDP_API cddp_status cddp_comm_error(cddp_comm *comm, cddp_error_info *info);

/*
 * Who this process is: its rank, from 0 to the world's size - 1. This and those below never fail: of NULL they say -1,
 * 0, NULL or "". Any thread.
 */
CDDP_API int cddp_rank(const cddp_comm *comm);
CDDP_API int cddp_world_size(const cddp_comm *comm); /* how many ranks there are */
/* The rank in the world (what cddp_init made) of this rank of comm; -1 where there is no such rank. */
CDDP_API int cddp_world_rank(const cddp_comm *comm, int rank);
CDDP_API int cddp_local_rank(const cddp_comm *comm);           /* this rank among those of its node, from 0 */
CDDP_API int cddp_local_world_size(const cddp_comm *comm);     /* how many ranks there are on this node */
CDDP_API int cddp_node_rank(const cddp_comm *comm);            /* which node this is, from 0 */
CDDP_API const char *cddp_backend_name(const cddp_comm *comm); /* what reduces: "cpu", "nccl", "mpi" */
/* How often this job was restarted before this life of it: TORCHELASTIC_RESTART_COUNT, 0 without a launcher. */
CDDP_API int cddp_restart_count(const cddp_comm *comm);
/*
 * Tells whether this worker is to stop: 1 from the moment at which cddprun is told to end the job (SIGTERM, Ctrl-C, a
 * batch system), or a node of an elastic job leaves or comes; on all ranks of all nodes. 0 before that, and without
 * cddprun. Any thread; cheap.
 *
 * cddprun sends the worker SIGTERM (or the signal that it got) as well, so a program that looks here ignores SIGTERM,
 * SIGINT, SIGHUP and SIGQUIT. Ranks see the 1 at different moments, and collectives work on until --shutdown_timeout is
 * over. So the ranks agree between two steps, save, and leave with status 0:
 *
 *     int32_t stop = cddp_stop_requested(comm);
 *     status = cddp_all_reduce(comm, &stop, &stop, 1, CDDP_INT32, CDDP_MAX);
 *     if (status == CDDP_OK && stop)
 *         return save_and_leave();
 *
 * Where a worker has failed or a node is lost, collectives fail at once with CDDP_E_PEER, and nothing can be agreed.
 */
CDDP_API int cddp_stop_requested(const cddp_comm *comm);

/* Where a communicator's memory and work are. */
typedef struct cddp_device_info {
    size_t size;           /* sizeof(cddp_device_info), set by the caller */
    int device;            /* CUDA's number of the GPU in this process; -1: the CPU */
    int numa_node;         /* that the GPU is near to; -1: unknown */
    uint64_t memory_bytes; /* of the GPU; 0: the CPU */
    char name[96];         /* "NVIDIA H200"; "cpu" */
    char pci[32];          /* "0000:17:00.0"; "" for the CPU */
} cddp_device_info;

/* Tell where comm works, in *info. Returns CDDP_OK; CDDP_E_INVALID (info, or its size). Any thread. */
CDDP_API cddp_status cddp_get_device_info(cddp_comm *comm, cddp_device_info *info);

/* For cddp_alloc and cddp_register. 0: memory of this rank only. */
enum {
    /*
     * Memory of all ranks: every rank makes the same call, with the same size, and in the same order among its
     * collectives. Where the backend is "cpu", the ranks of a node share it, and reduce it in place without a copy.
     */
    CDDP_MEM_COLLECTIVE = 1,
    CDDP_MEM_HOST = 2 /* memory of the host, pinned where there is a GPU, so that copies to and from it are faster */
};

/*
 * Memory for parameters and gradients where the backend works: on its GPU, else on the host; 64-byte aligned, not
 * cleared. A program that uses these and nothing else of CUDA runs on both. flags: 0, or CDDP_MEM_... above.
 *
 * In memory with CDDP_MEM_COLLECTIVE reducers work without a copy (cddp_param.grad), and so do cddp_all_reduce,
 * cddp_all_gather and cddp_reduce_scatter in place, if all ranks of a node pass the same place of it. They may pass
 * different places, or other memory, and get the same result, at the price of copies. The call is a collective then.
 *
 * *out is written on success only and is released by cddp_free before cddp_finalize; with CDDP_MEM_COLLECTIVE after the
 * reducers that use it. Returns CDDP_OK; CDDP_E_INVALID (unknown flags); CDDP_E_NOMEM; CDDP_E_SYSTEM; with
 * CDDP_MEM_COLLECTIVE also CDDP_E_MISMATCH (ranks give different sizes or flags), CDDP_E_UNSUPPORTED (with
 * CDDP_MEM_HOST, where the backend works on a GPU), or what a collective may return. After an error no rank has the
 * memory. Any thread; with CDDP_MEM_COLLECTIVE one thread at a time.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_alloc(cddp_comm *comm, size_t bytes, uint32_t flags, void **out);
/* Give memory of cddp_alloc back, which nothing uses any more; NULL is allowed. This rank's own affair. Any thread. */
CDDP_API void cddp_free(cddp_comm *comm, void *p);
/*
 * Tell libcddp of the program's own `bytes` bytes at p, so that reducers work on gradients in it without a copy
 * (cddp_param.grad). flags is CDDP_MEM_COLLECTIVE: every rank calls it, as cddp_alloc with that flag. The memory is
 * where the backend works, and does not overlap other registered memory or that of cddp_alloc. It stays the caller's,
 * and must stay until cddp_unregister.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (p, bytes, flags, memory that overlaps, or not of the backend's kind);
 * CDDP_E_UNSUPPORTED (flags 0, which would gain nothing; or the backend is "cpu" and a node has several ranks, which
 * cannot share the caller's own memory: cddp_alloc has what they can); CDDP_E_MISMATCH; CDDP_E_NOMEM; or what a
 * collective may return. After an error it is registered on no rank, and gradients in it are copied. One thread at a
 * time.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_register(cddp_comm *comm, void *p, size_t bytes, uint32_t flags);
/*
 * The memory at p, as it was registered, is no longer used: to be called after the reducers that use it were destroyed,
 * and before the memory is freed. What is still registered ends with comm. This rank's own affair. Returns CDDP_OK or
 * CDDP_E_INVALID (nothing registered begins at p). Any thread.
 */
CDDP_API cddp_status cddp_unregister(cddp_comm *comm, void *p);
/*
 * Copy `bytes` bytes between any two of host memory and the GPU's. It comes after the collectives and reducer steps
 * that were begun before, and is done on return; streams of the program's own that use the memory must have been waited
 * for. CDDP_OK, CDDP_E_INVALID, CDDP_E_SYSTEM, or what a collective may return. Any thread.
 *
 * Here and in collectives, memory of another GPU than this rank's is CDDP_E_INVALID, and the sentence names both:
 * usually cudaSetDevice was not called. So is memory of a context of the GPU's that is not the primary one, which the
 * CUDA runtime uses. Managed memory is taken as the GPU's. What malloc gave is host memory on every machine, also where
 * the GPU could reach it (HMM, Grace): NCCL does not take it, so collectives on it pass through pinned memory, and a
 * reducer refuses it.
 */
CDDP_API cddp_status cddp_copy(cddp_comm *comm, void *to, const void *from, size_t bytes);

/*
 * Blocking collectives over host memory, or over the GPU's where the backend is "nccl" (work that writes it must have
 * been waited for; host memory is then copied there and back). They may be called from any thread, but the order of all
 * collectives (those of reducers included) must be the same on every rank. They return CDDP_OK; CDDP_E_INVALID (a bad
 * argument; nothing was communicated); CDDP_E_UNSUPPORTED (a reduction that the backend does not do, see cddp_redop;
 * likewise); CDDP_E_MISMATCH (ranks called different collectives); CDDP_E_PEER (a rank died; the sentence names it);
 * CDDP_E_TIMEOUT (the sentence names who did not come); CDDP_E_ABORTED; CDDP_E_NOMEM. A count of 0 is allowed.
 */

/*
 * out[i] = op over all ranks of in[i], the same bits on every rank. On the CPU sums are made in rank order,
 * ((r0+r1)+r2)+..., on a GPU in NCCL's. in and out hold `count` elements and are the same (in place) or do not overlap.
 */
CDDP_API cddp_status cddp_all_reduce(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                     cddp_redop op);
/* buf[0..count) of rank `root` is copied to buf on every rank. */
CDDP_API cddp_status cddp_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root);
/*
 * out[r * count .. (r+1) * count) = in[0..count) of rank r. out holds world size * count elements; in may be this
 * rank's own part of out (in place).
 */
CDDP_API cddp_status cddp_all_gather(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype);
/* The same, of uneven size: rank r gives counts[r] elements (counts is equal on all ranks), which lie behind one
 * another. */
CDDP_API cddp_status cddp_all_gatherv(cddp_comm *comm, const void *in, void *out, const size_t *counts,
                                      cddp_dtype dtype);
/* As cddp_all_reduce, but out is written on rank `root` only; elsewhere it may be NULL. */
CDDP_API cddp_status cddp_reduce(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                 cddp_redop op, int root);
/*
 * Block r of the reduction goes to rank r: in holds world size * count elements, out holds count. In place: out is this
 * rank's block of in, whose other blocks stay as they were.
 */
CDDP_API cddp_status cddp_reduce_scatter(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                         cddp_redop op);
/*
 * Block s of in goes to rank s, block r of out comes from rank r. in and out hold world size * count elements and do
 * not overlap.
 */
CDDP_API cddp_status cddp_all_to_all(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype);
/*
 * A message of `count` elements from one rank to another, which calls the other function with the same count and type.
 * Messages of one rank to another arrive in the order of sending. cddp_send returns when buf may be used again, which
 * may be only after the other rank has begun to receive: two ranks that exchange messages must not both send first
 * (where the backend is "cpu", CDDP_E_MISMATCH).
 */
CDDP_API cddp_status cddp_send(cddp_comm *comm, const void *buf, size_t count, cddp_dtype dtype, int to);
CDDP_API cddp_status cddp_recv(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int from);
/* Returns once every rank has called it. */
CDDP_API cddp_status cddp_barrier(cddp_comm *comm);

/*
 * What an operation of cddp_coll_args does: what the function of its name does, or one of these.
 * GATHER: out[r * count .. (r+1) * count) of rank `root` = in[0..count) of rank r. Elsewhere out is not used. In place:
 * root's in is its own part of out.
 * SCATTER: out[0..count) of rank r = in[r * count .. (r+1) * count) of rank `root`. Elsewhere in is not used. In place:
 * root's out is its own part of in.
 * ALL_TO_ALLV: rank r gives in_counts[s] elements to rank s, which has that number as its out_counts[r]. in and out do
 * not overlap.
 * REDUCE_SCATTERV: in_counts[r] elements of the reduction go to out of rank r. in_counts is equal on all ranks. In
 * place: out is this rank's part of in, whose other parts stay as they were.
 */
typedef enum cddp_coll {
    CDDP_COLL_ALL_REDUCE = 1,
    CDDP_COLL_BROADCAST = 2,
    CDDP_COLL_ALL_GATHER = 3,
    CDDP_COLL_BARRIER = 4,
    CDDP_COLL_REDUCE = 5,
    CDDP_COLL_ALL_GATHERV = 6,
    CDDP_COLL_REDUCE_SCATTER = 7,
    CDDP_COLL_ALL_TO_ALL = 8,
    CDDP_COLL_SEND = 9,
    CDDP_COLL_RECV = 10,
    CDDP_COLL_GATHER = 11,
    CDDP_COLL_SCATTER = 12,
    CDDP_COLL_ALL_TO_ALLV = 13,
    CDDP_COLL_REDUCE_SCATTERV = 14,
    CDDP_ENUM_32(CDDP_COLL)
} cddp_coll;

/*
 * One operation. Members that it does not use are zero. Counts and offsets have one entry for each rank, in elements,
 * and are copied: they may lie on the caller's stack. Parts lie one after another where there are no offsets, and parts
 * of `out` do not overlap. Offsets may differ from rank to rank; but a rank gives an ALL_GATHERV out_offsets where the
 * others do.
 */
typedef struct cddp_coll_args {
    size_t size; /* sizeof(cddp_coll_args), in each of an array */
    cddp_coll coll;
    cddp_dtype dtype;
    cddp_redop op;
    int32_t root;   /* of SEND and RECV the other rank */
    const void *in; /* of BROADCAST, on the root: what goes to out of all ranks; NULL: it is in out already */
    void *out;
    size_t count;              /* not of the four with counts: */
    const size_t *in_counts;   /* ALL_TO_ALLV, REDUCE_SCATTERV */
    const size_t *in_offsets;  /* the same; NULL: one after another */
    const size_t *out_counts;  /* ALL_GATHERV, ALL_TO_ALLV */
    const size_t *out_offsets; /* the same; NULL: one after another */
    uint32_t flags;            /* 0 */
    uint32_t zero;             /* 0 */
} cddp_coll_args;

/*
 * Begin n operations as one group, and return at once. A communicator is a queue: groups run one after another, in the
 * order in which they were begun, on the communication thread (on a GPU: stream). *ticket is for cddp_coll_test and
 * cddp_coll_wait; ticket may be NULL, since each ticket also stands for all groups before it. n may be 0: nothing is
 * begun, and the ticket is 0, which is always done. args is copied; memory that in and out name must stay until the
 * group is done. On a GPU the group begins after what had been waited for when cddp_coll_start was called. Any thread.
 *
 * A group has either collectives, the same ones in the same order on every rank, or sends and receives. Within a group
 * operations run in any order, so none uses what another one writes. Sends and receives of a group do not block each
 * other: ranks exchange messages in one group each, and name them in any order. Several messages from one rank to
 * another match in the order of the array. A rank may send to itself, if the same group receives it. What ranks
 * exchange at the same time belongs into one group on each of them: a rank that takes its messages one by one may wait
 * for one that waits for another of them.
 *
 * Arguments are checked for all operations before anything is begun. Returns CDDP_OK; CDDP_E_INVALID (nothing was
 * begun, as with the next three; the error message names the operation); CDDP_E_UNSUPPORTED (a member of a later
 * version; a reduction that the backend does not do, see cddp_redop; or it has no groups); CDDP_E_NOMEM; CDDP_E_LIMIT
 * (65536 are waiting to be run: wait for some); or the sticky error. What goes wrong later cddp_coll_wait tells; among
 * it is CDDP_E_MISMATCH, where ranks disagree about a collective, or two ranks about the count or the type of a message
 * ("cpu" and "mpi").
 */
CDDP_API cddp_status cddp_coll_start(cddp_comm *comm, const cddp_coll_args *args, size_t n, uint64_t *ticket);
/*
 * Tells whether the group with this ticket, and all that were begun before it on comm, are done: CDDP_OK; or
 * CDDP_IN_PROGRESS, which is no error. Does not block; except that a process without a communication thread (an MPI
 * below MPI_THREAD_MULTIPLE, or no thread to be had) does the work in this call. Any thread, any number of times.
 * Returns also CDDP_E_INVALID (no such ticket), CDDP_E_UNSUPPORTED (the backend cannot tell), or what a collective may
 * return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_coll_test(cddp_comm *comm, uint64_t ticket);
/*
 * Block until the group with this ticket, and all that were begun before it on comm, are done. Any thread, any
 * number of times. Returns CDDP_OK, CDDP_E_INVALID (no such ticket), or what a collective may return.
 */
CDDP_API cddp_status cddp_coll_wait(cddp_comm *comm, uint64_t ticket);
/*
 * cddp_coll_start and cddp_coll_wait in one call, which costs less: the calling thread does the work. Any thread.
 * Returns what the two return.
 */
CDDP_API cddp_status cddp_coll_run(cddp_comm *comm, const cddp_coll_args *args, size_t n);
/*
 * Begin a group in the order of a stream: on a GPU it begins after the work that is on `stream` (a cudaStream_t; NULL
 * is CUDA's legacy stream), and what comes on the stream later finds the results. All its memory is the GPU's. Does not
 * wait for the GPU or for peers; cddp_comm_error and later calls tell what goes wrong. If the stream captures a graph,
 * the group becomes a part of it, and its memory must stay as long as the graph; only here NCCL may wait for peers, who
 * capture the same. On the host stream is not used, and the group is done on return. Any thread. Returns what
 * cddp_coll_start returns, on the host also what cddp_coll_wait does; CDDP_E_INVALID (memory of the host, on a GPU);
 * CDDP_E_UNSUPPORTED (that capture has failed; the legacy stream waits for one) and CDDP_E_STATE (another graph is
 * being captured with this communicator in it): nothing was begun.
 */
CDDP_API cddp_status cddp_coll_enqueue(cddp_comm *comm, const cddp_coll_args *args, size_t n, void *stream);

typedef struct cddp_split_options {
    size_t size;         /* sizeof(cddp_split_options) */
    uint32_t flags;      /* 0 */
    int timeout_ms;      /* of every wait for a peer inside a collective; 0: as comm's */
    const char *name;    /* "dp", "tp": as cddp_init_options.name; NULL: none */
    const char *backend; /* NULL: comm's; "cpu": a communicator for host memory, beside one for GPUs or over MPI */
} cddp_split_options;

/*
 * Make a communicator of its own for the ranks that give the same color (>= 0): a part of comm, whose ranks are ordered
 * by key, then by their rank in comm. A collective of all ranks of comm. A negative color: this rank is in no part, and
 * *out is NULL. What cddp_rank and cddp_world_size say counts in the part; local and node ranks are those of comm. A
 * part has reducers of its own and its errors are its own: a rank that fails in one part does not end the others.
 * opt may be NULL; all ranks of a part want the same backend. Release it with cddp_finalize, before comm or after it.
 * Call it from one thread at a time. Returns CDDP_OK; CDDP_E_INVALID (also an unknown backend); CDDP_E_UNSUPPORTED
 * (unknown members of *opt); CDDP_E_MISMATCH (ranks of one color want different backends: all ranks of that color get
 * it); CDDP_E_NOMEM; CDDP_E_LIMIT (split from one another too often); or what a collective or cddp_init may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_comm_split(cddp_comm **out, cddp_comm *comm, int color, int key,
                                                    const cddp_split_options *opt);

/*
 * Make a communicator of n ranks of comm, in the order of the list, which they alone call: with the same list and the
 * same tag. The other ranks take no part in it, and comm's collectives may be under way; the members meet in the store,
 * and wait for one another for the join timeout of comm at most. What is said of parts of cddp_comm_split holds. A
 * process may call it in several threads at once, for groups that overlap, too, with a tag for each; the same list and
 * tag may be used again, one call after the other. comm may be a part.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (no such rank, one twice, or not this one's; bad opt); CDDP_E_UNSUPPORTED (unknown
 * members of *opt); CDDP_E_MISMATCH (a member that this rank waits for waits with another list, or wants another
 * backend: the members of both get it); CDDP_E_TIMEOUT (a member did not come: the error message names it);
 * CDDP_E_PEER and CDDP_E_ABORTED (as cddp_init); CDDP_E_NOMEM; or what cddp_init may return for a backend that cannot
 * connect.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_comm_create_group(cddp_comm **out, cddp_comm *comm, const int *ranks, size_t n,
                                                           int tag, const cddp_split_options *opt);

typedef enum cddp_scope { CDDP_SCOPE_JOB = 0, CDDP_SCOPE_NODE = 1, CDDP_ENUM_32(CDDP_SCOPE) } cddp_scope;

/*
 * Let one rank go first, and then the others: so that a file is downloaded or built once, and found by the rest.
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
 * This rank is done. `first` is what cddp_leader_first_begin said. failure: NULL, or why a first rank has failed (its
 * first 255 bytes are told to all; "" is a failure, too); of the others it is not looked at. On a first rank it returns
 * what cddp_leader_first_begin returns on the others: CDDP_E_REMOTE also for its own failure. On the others it returns
 * CDDP_OK at once.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_leader_first_end(cddp_comm *comm, int first, const char *failure);

/*
 * Make every wait on comm, in this process and in its peers, return CDDP_E_ABORTED soon. Any thread, any number of
 * times, also during a collective. `why` (may be NULL) becomes part of the peers' sentence. cddp_finalize waits for
 * calls that began before it; a call that begins after it is an error, as with every function.
 */
CDDP_API void cddp_abort(cddp_comm *comm, const char *why);

/* --------------------------------------------------------------------------------------------------- reducer ---- */

typedef struct cddp_param {
    size_t size;           /* sizeof(cddp_param), in each of an array */
    const char *name;      /* for messages and checks */
    void *data;            /* the parameter, on the backend's device */
    size_t count;          /* elements, of the parameter and of its gradient */
    cddp_dtype dtype;      /* of data: CDDP_FLOAT32, ... */
    cddp_dtype grad_dtype; /* of the gradient; 0: dtype. Also CDDP_FLOAT32, where dtype has 16 bits */
    void *grad;            /* NULL: in the arena; else the user's own memory: reduced where it lies, or copied in and
                              out (see cddp_ddp_create) */
    const size_t *shape;   /* optional, n_dims long; its product is count */
    size_t n_dims;         /* at most 64 */
    uint32_t flags;        /* 0 */
    uint32_t zero;         /* 0 */
} cddp_param;

typedef struct cddp_ddp_options {
    size_t size;               /* sizeof(cddp_ddp_options) */
    uint32_t flags;            /* CDDP_DDP_... below */
    cddp_dtype comm_dtype;     /* CDDP_FLOAT16, CDDP_BFLOAT16: float32 gradients are sent in that type. CDDP_FLOAT32:
                                  those of 16 bits are sent and summed as float32, and rounded once, after the sum.
                                  Others, and all with 0: as they are */
    size_t bucket_bytes;       /* a bucket closes when it reaches this; 0: 25 MiB. 0 with CDDP_DDP_TUNE */
    size_t first_bucket_bytes; /* the same for the first one, so that communication starts early; 0: 1 MiB */
    size_t last_bucket_bytes;  /* the first parameters' gradients, which come last, get a bucket of their own that
                                  closes here, so that little is left to wait for at the end of a step; 0: they do not */
    void *stream;              /* GPU: the compute stream, a cudaStream_t; NULL is the legacy one, which waits for all
                                  blocking ones; cudaStreamPerThread is refused. Unused on the CPU */
    const cddp_param *buffers; /* n_buffers of them, for cddp_ddp_sync_buffers: any types, and no `grad` */
    size_t n_buffers;          /* 0: none */
    const char *name;          /* of the model, for error messages, as "generator"; copied. NULL: none */
} cddp_ddp_options;

/* cddp_ddp_options.flags. */
enum {
    /* Do not broadcast rank 0's parameters at creation: every rank has already loaded the same ones. */
    CDDP_DDP_NO_BROADCAST = 1,
    /*
     * Gradients become the sum over all ranks, not the mean: the optimizer multiplies by cddp_ddp_grad_scale(). For
     * where the mean would cost a pass over the gradients (on a GPU, where nothing else passes over them: no
     * `comm_dtype`, gradients in the arena), or is wanted in higher precision.
     */
    CDDP_DDP_SUM = 2,
    /*
     * Not every gradient comes in every step: cddp_ddp_wait() counts those as zeros that were not said to be ready. The
     * ranks tell each other what they used, in one small collective per step. A gradient that no rank used keeps its
     * old value, so that the optimizer can leave that parameter alone; one that only some ranks used gets the mean over
     * all. On a GPU the device decides by what the ranks told each other, and the host waits for nothing; but with an
     * optimizer (cddp_optim_create) or PowerSGD, which have to know, it waits in every step.
     */
    CDDP_DDP_FIND_UNUSED = 4,
    /*
     * The same gradients come in every step, each as often as in the first one (a parameter that is used several times
     * is said to be ready several times, and counts with the last). What is unused is found in the first step, which
     * therefore does not overlap with communication; a later step that differs is an error that names the gradient. On
     * a GPU the host waits for no step but the first, and for that at the end of the second; with an optimizer or
     * PowerSGD, which have to know what is unused, at its own end.
     */
    CDDP_DDP_STATIC_GRAPH = 8,
    /* Ranks may have different numbers of steps: cddp_ddp_join(). Every rank's flags say so. */
    CDDP_DDP_JOIN = 16,
    /* With it: the mean is over the ranks that still train, and not over all. */
    CDDP_DDP_JOIN_ACTIVE = 32,
    /*
     * A gradient larger than bucket_bytes is cut into several buckets of about equal size, of bucket_bytes at most
     * (rounded up to 64 bytes), which hold nothing else. Results do not change by it, on the CPU not by a bit.
     */
    CDDP_DDP_SPLIT = 64,
    /*
     * With CDDP_DDP_JOIN: a rank that has no more samples while others still train is an error, for all: cddp_ddp_wait
     * and cddp_ddp_join of that step return CDDP_E_STATE and an error message with its rank; the reducer, but not the
     * communicator, then keeps that error. On a GPU the host waits for every step.
     */
    CDDP_DDP_JOIN_STRICT = 128,
    /*
     * With CDDP_DDP_FIND_UNUSED or CDDP_DDP_STATIC_GRAPH: a bucket of which no rank used any gradient is not reduced,
     * as with PyTorch's skip_all_reduce_unused_params. A bucket that nobody used in the step before has no turn: others
     * do not wait for it, and if some rank uses it after all (from which PyTorch hangs), it is reduced at the end of
     * the step. Results do not change by it. On a GPU it is the host that starts collectives, so it has to know which
     * buckets somebody uses: it waits for each step when the first gradient of the next one is ready; where buckets
     * were not used in the step before, at the end of the step itself. Not with communication hooks or PowerSGD.
     */
    CDDP_DDP_SKIP_UNUSED = 256,
    /*
     * The first steps find out which size of buckets is best here. first_bucket_bytes times 1, 4, 10, 25, 50 and 100
     * (1 to 100 MiB), as far as they cut this model differently, take turns from the third step on, seven steps each.
     * The one with the smallest median of rank 0's times, from a step's first gradient to the end of its cddp_ddp_wait,
     * stays, on all ranks. Results do not change by it, on the CPU not by a bit. While it lasts (45 steps at most)
     * bucket counts change from step to step; on a GPU the host waits for these steps. Not with cddp_optim_create.
     */
    CDDP_DDP_TUNE = 512
};

/* The reducer: averages the gradients of one model over all ranks, in buckets, while they are being made. */
typedef struct cddp_ddp cddp_ddp;

/*
 * Create a reducer for n_params parameters, given in forward order. A collective: every rank calls it.
 *
 * First the names, types and shapes are compared between ranks: if any differs, every rank gets CDDP_E_MISMATCH and a
 * sentence that names the first such parameter and two ranks that disagree. Then rank 0's parameter values are
 * broadcast into every rank's `data`. Then one arena for all gradients is made and zeroed. With the "nccl" backend
 * `data` and `grad` are memory of the GPU, and the broadcast comes after the work that is on the compute stream. What
 * is said here of parameters' `data` holds for those of buffers.
 *
 * Gradients in the user's own memory (cddp_param.grad) are reduced where they lie, as fast as in the arena, if it is
 * memory of all ranks (cddp_alloc with CDDP_MEM_COLLECTIVE, cddp_register) and every rank has them at the same places
 * of it. The order of the parameters does not matter. What lies side by side in a bucket is reduced together; small
 * gradients (less than 64 KiB together) without such neighbours are copied into the arena and out of it. So is all
 * else: other memory, gradients that share memory, or that are sent in another type (comm_dtype), and those of a
 * reducer with a hook, PowerSGD or an optimizer. Results do not change by it, on the CPU not by a bit.
 *
 * params is copied, names and shapes too; the memory behind `data` and `grad` stays the caller's and must outlive ddp.
 * opt may be NULL. *out is written on success only; release it with cddp_ddp_destroy(), before cddp_finalize() or after
 * it. Returns CDDP_OK, CDDP_E_INVALID (no parameter, a missing name or data, an integer type, count 0, a shape whose
 * product is not count, memory of the wrong kind, bad opt, a CDDP_DEBUG that is not 0 or 1), CDDP_E_MISMATCH,
 * CDDP_E_NOMEM (this machine or a peer cannot hold the arena), or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_create(cddp_ddp **out, cddp_comm *comm, const cddp_param *params,
                                                    size_t n_params, const cddp_ddp_options *opt);

/*
 * Where parameter i's gradient lives: `count` elements, 64-byte aligned, zeroed at creation and never afterwards; or
 * the caller's own memory, where `grad` was given, which is not cleared. The address never changes during the life of
 * ddp. The backward pass writes it, every step anew. NULL if i is out of range. Any thread.
 */
CDDP_API void *cddp_ddp_grad(cddp_ddp *ddp, size_t i);

/*
 * Parameter i's gradient of this step is complete: the caller must neither read nor write it until cddp_ddp_wait().
 * When the last gradient of a bucket is ready, and every earlier bucket was launched, the bucket's all-reduce starts on
 * the communication thread, or on the communication stream of the GPU, behind what the compute stream has been given
 * until then. On the CPU the last bucket of a step is left to the thread that calls cddp_ddp_wait(), which saves the
 * hand-over; but the communication thread takes it if nobody waits within 50 us, so what a rank does before its
 * cddp_ddp_wait() does not hold up its peers. (Where steps take less than a millisecond, the first late wait may hold
 * them up for about 1 ms.) Never blocks on peers. Any thread, several at once.
 *
 * A step may become part of a CUDA graph. Where the streams that it is given are being captured (in any mode, by any
 * thread), cddp_ddp_grad_ready, cddp_ddp_grad_ready_on, cddp_ddp_wait_param and cddp_ddp_wait put all of the step's
 * communication into the graph, on a stream that is forked from theirs and joined again by cddp_ddp_wait. Each launch
 * then reduces what is in the gradients at that time, with the bits of a step that is not captured, and without a call
 * of libcddp.
 * - The capture begins between two steps, and after the first two, which settle the order of the buckets
 * (CDDP_DDP_TUNE: after those that cddp_ddp_bucket_cap() wants); it may hold several steps, and ends after a
 * cddp_ddp_wait(). A step in it may wait for peers to capture theirs, while NCCL makes for the graph what it needs.
 * - All ranks capture the same, and a launch of the graph is a collective: all launch it as often, and in the same
 *   order among their other collectives (which NCCL_GRAPH_MIXING_SUPPORT=0 forbids).
 * - Refused, with CDDP_E_UNSUPPORTED (or CDDP_E_STATE, where the time is wrong), are communication hooks, PowerSGD,
 *   cddp_optim_step, norms and clipping, cddp_ddp_sync_buffers, and reducers with CDDP_DDP_FIND_UNUSED,
 *   CDDP_DDP_SKIP_UNUSED, CDDP_DDP_STATIC_GRAPH or CDDP_DDP_JOIN. A refused call does nothing, and breaks neither the
 *   capture nor the reducer; nor does misuse within a capture. (But where a capture begins in the middle of a step that
 *   is not captured, cddp_ddp_grad_ready makes CDDP_E_UNSUPPORTED the sticky error.) If the capture fails, or is ended
 *   before the step is, the reducer goes on as if the step had not begun.
 * - If a rank dies or stays away, a launch that waits for it ends in the timeout; what was in the gradients is lost,
 * the next call of libcddp returns the error, and the graph is of no more use.
 * - A graph, and all that was instantiated of it, is destroyed before cddp_ddp_destroy(). NCCL's communicator cannot
 * end before; where it has to, its memory stays.
 *
 * Returns CDDP_OK, CDDP_E_INVALID (no such parameter), CDDP_E_STATE (already ready in this step), or the sticky error;
 * where the stream is being captured also CDDP_E_UNSUPPORTED and CDDP_E_STATE as above. Outside a capture
 * CDDP_E_INVALID and CDDP_E_STATE become the sticky error: this rank cannot end the step, and its peers hear why.
 */
CDDP_API cddp_status cddp_ddp_grad_ready(cddp_ddp *ddp, size_t i);

/*
 * The same for a gradient that is made on another stream of the GPU: communication waits for what `stream` has been
 * given until the bucket starts, and so the stream must live until cddp_ddp_wait(). On the CPU the stream is not used,
 * since the backend, and not NULL, tells host from device: the gradient must be there, as for cddp_ddp_grad_ready().
 * Also CDDP_E_INVALID: cudaStreamPerThread, which is another stream in the thread that starts the bucket.
 */
CDDP_API cddp_status cddp_ddp_grad_ready_on(cddp_ddp *ddp, size_t i, void *stream);

/*
 * Parameter i's gradient alone is the mean over all ranks: so that an optimizer can begin with the first buckets while
 * the last ones are under way. On the CPU it blocks; on a GPU it makes the compute stream wait, and not the host. Every
 * gradient of the bucket must have been ready, and those of the buckets before. cddp_ddp_wait() is still to be called.
 * Any thread. Returns CDDP_OK; CDDP_E_INVALID (no such parameter); CDDP_E_STATE (its bucket has not started: nothing is
 * broken, it may be asked again); or what a collective may return.
 */
CDDP_API cddp_status cddp_ddp_wait_param(cddp_ddp *ddp, size_t i);

/*
 * Every gradient of this step is the mean over all ranks; then the next step may begin. On the CPU it blocks until that
 * is so. On a GPU it makes the compute stream wait, and never the host: work that is launched there afterwards finds
 * the means; an error that comes later is returned by the next call. Call it once per step, from one thread, after the
 * last cddp_ddp_grad_ready(). Of a captured step it is the last call (see cddp_ddp_grad_ready).
 * Returns CDDP_OK; CDDP_E_STATE (gradients are missing: the sentence names them; the error is sticky, since peers now
 * wait for them. Or another thread is in this function: then the call does nothing); or what a collective may return,
 * also for calls of this step whose status was not looked at.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_wait(cddp_ddp *ddp);

/*
 * The buffers of cddp_ddp_options become rank 0's on every rank: running statistics, and what else a model has beside
 * its parameters. Call it before the first forward pass of a step; or never, and each rank keeps its own. A collective
 * (small buffers travel together), on the CPU a blocking one; on a GPU the compute stream waits for it, and not the
 * host.
 *
 * With CDDP_DDP_JOIN they become those of the highest rank that still trains, as in PyTorch (which takes one tiny
 * collective more, that blocks on a GPU, too): then, if there are buffers, it must be called once at the start of every
 * step; and cddp_ddp_join hands them out at its end together with the parameters. Without buffers it does nothing.
 *
 * From one thread, between two steps. Returns CDDP_OK; CDDP_E_INVALID (ddp is NULL); CDDP_E_STATE (in the middle of a
 * step, or with CDDP_DDP_JOIN twice in a step; it is sticky); or what a collective may return.
 */
CDDP_API cddp_status cddp_ddp_sync_buffers(cddp_ddp *ddp);

/*
 * This rank has no more samples (of this epoch): take part, with zeros, in the steps of those who have, until nobody
 * has; then whoever trained longest (of several, the highest rank) gives its parameters to all, and a new epoch may
 * begin. Every rank calls it, also those that end last. It mirrors the reducer's own collectives only: others that a
 * program makes in each step are its own matter. Needs CDDP_DDP_JOIN. A rank that sums (CDDP_DDP_SUM) divides as
 * always. Blocks, on a GPU too. Call it between two steps, from one thread. Returns CDDP_OK; CDDP_E_INVALID;
 * CDDP_E_STATE (no CDDP_DDP_JOIN, or in the middle of a step); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_join(cddp_ddp *ddp);

/* A full bucket, as a communication hook sees it. */
typedef struct cddp_bucket {
    size_t size;  /* sizeof(cddp_bucket) of the library */
    size_t index; /* in the order of their launch, the same on every rank */
    int is_last;
    cddp_dtype dtype;
    void *data;           /* this rank's gradients, in the arena; they lie behind one another, each 64-byte aligned */
    size_t count;         /* elements from the first gradient to the last; the padding between them is zeros */
    const size_t *params; /* whose gradients they are, by number; valid during the call */
    size_t n_params;
    size_t offset; /* data begins at this element of the first gradient: 0, but where CDDP_DDP_SPLIT has cut it */
    void *stream;  /* GPU: the communication stream, a cudaStream_t; NULL on the CPU */
} cddp_bucket;

/*
 * What is done in place of the all-reduce of each bucket. Both return CDDP_OK, or a status that ends the job. They must
 * not call functions of the reducer, which return CDDP_E_STATE then.
 *
 * On a GPU neither of them finds anything done, and neither has to wait: `data` is memory of the GPU, and
 * bucket->stream is the stream on which libcddp's collectives run. Behind what is on it when begin is called the
 * gradients are complete, and behind what is on it when end is called that is done which begin has begun. A hook puts
 * its kernels and copies on that stream, or on one of its own that waits for it, by an event, and that it waits for
 * before the function returns; collectives by cddp_coll_start, on memory of the GPU (cddp_alloc). All of it runs in the
 * order in which it was put there, so what begin puts behind a cddp_coll_start finds its result. cddp_ddp_wait, and
 * cddp_ddp_wait_param, make the compute stream wait for all of it. Neither a cddp_coll_wait nor a ticket is needed for
 * that; and memory that the hook uses may be freed once ddp was destroyed or the compute stream was waited for.
 *
 * The GPU is the calling thread's current device while a function of the hook runs. What waits for the GPU (blocking
 * collectives, cddp_coll_wait, cddp_copy, cudaStreamSynchronize) is allowed in end, at the price that the host waits in
 * that step. A hook does not keep the stream's handle for later, and does not destroy or capture it.
 */
typedef struct cddp_hook {
    size_t size; /* sizeof(cddp_hook) */
    /*
     * The bucket is full: begin what is to be done, by cddp_coll_start on comm. *ticket is 0, and becomes what
     * cddp_coll_start gave last. Called in the order of the buckets, the same on every rank, by the thread that said
     * that the last gradient was ready; it should not wait for peers.
     */
    cddp_status (*begin)(void *arg, cddp_comm *comm, const cddp_bucket *bucket, uint64_t *ticket);
    /*
     * What was begun is done (on a GPU: see above): leave in bucket->data what the gradients are to be, usually their
     * mean. In the order of the buckets, by the thread that waits; it may use collectives, as all ranks come to the
     * same bucket. NULL: nothing.
     */
    cddp_status (*end)(void *arg, cddp_comm *comm, const cddp_bucket *bucket);
    void *arg; /* for both; the caller's, and must outlive the reducer */
} cddp_hook;

/*
 * Communicate by a hook from now on; hook is copied, NULL goes back to the all-reduce. Every rank does the same,
 * between the same two steps; a collective where gradients were reduced where they lie, which are copied from now on.
 * Returns CDDP_OK; CDDP_E_INVALID (a bad hook, a reducer that compresses or skips);
 * CDDP_E_STATE (in the middle of a step, or bucket sizes are still being tried); CDDP_E_NOMEM. One thread. It ends
 * PowerSGD, too.
 */
CDDP_API cddp_status cddp_ddp_set_hook(cddp_ddp *ddp, const cddp_hook *hook);

typedef struct cddp_powersgd_options {
    size_t size;         /* sizeof(cddp_powersgd_options) */
    size_t matrix_rank;  /* columns of P and of Q, at most: more approximate better, and cost more; 0: 1 */
    uint64_t start_step; /* that many steps are averaged as they are before; 0: 1000 */
    /* Compress what has more than this many times the elements of its P and Q; 0: 2. Below 1: also what grows. */
    double min_compression_rate;
    double orthogonalization_epsilon; /* is added to a column's length before the division by it */
    uint32_t seed;                    /* of the first Qs */
    uint32_t flags;                   /* CDDP_POWERSGD_... below */
} cddp_powersgd_options;

/* cddp_powersgd_options.flags. */
enum {
    /* Do not add to the gradients of a step what the one before has left out. */
    CDDP_POWERSGD_NO_ERROR_FEEDBACK = 1,
    /* Begin with a random Q in each step, not with that of the step before. On a GPU the host, which draws it, waits.
     */
    CDDP_POWERSGD_NO_WARM_START = 2
};

/*
 * Communicate by PowerSGD from now on, PyTorch's powerSGD_hook (T. Vogels and others, "PowerSGD: Practical Low-Rank
 * Gradient Compression for Distributed Optimization", NeurIPS 2019, arXiv:1905.13727): a gradient of n x m elements (n:
 * the first size of its shape, m: the rest) becomes P Q^T of n x rank and m x rank, all that is sent, in two
 * collectives for each bucket; what that leaves out is added to the same rank's gradient of the next step. Gradients
 * without a shape, small ones, and those of 16 bits are averaged as they are. Numbers are those of PyTorch within
 * rounding, from the same seed; all ranks get the same bits. Differences: a column of zeros, or one that depends on
 * those before it, stays zeros, and the next step begins with the first, random Q again, where PyTorch makes NaNs or
 * noise of it; a NaN or an infinity does not stay in what is left out; start_step may be 1.
 *
 * On a GPU all of it is work of the communication stream, to the CPU's bits where the means are, and the host waits for
 * nothing; but with CDDP_DDP_FIND_UNUSED it waits in every step.
 *
 * It takes as much memory again as the gradients that it compresses. It begins with nothing left out; what a run needs
 * to go on after a checkpoint is loaded (CDDP_ITEM_DDP). cddp_ddp_wait_param() cannot be used with it. opt may
 * be NULL. A collective, between two steps: every rank calls it, with equal options. cddp_ddp_set_hook(ddp, NULL) ends
 * it. One thread. Returns CDDP_OK; CDDP_E_INVALID (bad options, a reducer that compresses, sums, splits or skips);
 * CDDP_E_MISMATCH (ranks have different options); CDDP_E_STATE (in the middle of a step, or bucket sizes are still
 * being tried); CDDP_E_NOMEM; or what a collective may return. If it fails on one rank it fails on all, and nothing has
 * changed.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_set_powersgd(cddp_ddp *ddp, const cddp_powersgd_options *opt);

/*
 * The norm of all gradients together, as if they were one vector, in *norm: norm_type 2 (Euclidean) or INFINITY (the
 * largest magnitude). Call it between cddp_ddp_wait() and the next step, from one thread, on every rank: each rank sums
 * a part, and one number is reduced, so all ranks get the same bits. With CDDP_DDP_JOIN, whose ranks may have no step
 * to call it in, each rank sums everything, and nothing is communicated. Sums are made in float64. With CDDP_DDP_SUM it
 * is the norm of the mean. A gradient that no rank used counts as it is. A NaN gives NaN, else an infinity gives
 * infinity. Blocks, on a GPU too, since *norm is the host's. *norm is written on success only.
 *
 * With an optimizer (cddp_optim_create), which makes an end of the gradients, call it after the last
 * cddp_ddp_grad_ready() and before cddp_optim_step(): it waits for all gradients of the step, each rank sums its share
 * of them, and a gradient that no rank used does not count. The sum's order then depends on the buckets, too.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (NULL, norm_type); CDDP_E_STATE (in the middle of a step; with an optimizer:
 * gradients are missing, and the error is sticky, as that of cddp_ddp_wait()); CDDP_E_NOMEM; or what a collective may
 * return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_grad_norm(cddp_ddp *ddp, double norm_type, double *norm);

/*
 * Make that norm at most max_norm (>= 0), as torch.nn.utils.clip_grad_norm_: gradients are multiplied by
 * max_norm / (norm + 1e-6) where that is below 1. *norm (may be NULL) is the norm from before. If it is not finite, the
 * gradients become zeros and NaNs by the same formula, or, with error_if_nonfinite, CDDP_E_NONFINITE is returned on
 * every rank and they stay as they are. Otherwise as cddp_ddp_grad_norm. On a GPU norm and factor are made there, and
 * the compute stream waits for the product; the host waits only where it has to know: norm is not NULL, or
 * error_if_nonfinite is not 0.
 *
 *     cddp_ddp_wait(ddp);   cddp_ddp_clip_grad_norm(ddp, 1.0, 2, 1, NULL);   an optimizer of your own
 *     cddp_ddp_clip_grad_norm(ddp, 1.0, 2, 1, NULL);   cddp_optim_step(optim, NULL);   // with cddp_optim_create
 *
 * The second line's parameters differ from the first one's by the rounding of the norm's sum in float64, which in
 * float32 is seldom seen at all. After CDDP_E_NONFINITE cddp_optim_skip() ends the step.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_clip_grad_norm(cddp_ddp *ddp, double max_norm, double norm_type,
                                                            int error_if_nonfinite, double *norm);

/* What the optimizer has to multiply the gradients by: 1, or 1/world size with CDDP_DDP_SUM. */
CDDP_API double cddp_ddp_grad_scale(const cddp_ddp *ddp);
/*
 * bucket_bytes as it is in force: what the options said, or 25 MiB; with CDDP_DDP_TUNE what was chosen, and 0 until
 * then. From the thread that calls cddp_ddp_wait, as the next two.
 */
CDDP_API size_t cddp_ddp_bucket_cap(const cddp_ddp *ddp);
/* Number of buckets, and the size in bytes of bucket b (0 if there is none), in the order of their launch. */
CDDP_API size_t cddp_ddp_bucket_count(const cddp_ddp *ddp);
CDDP_API size_t cddp_ddp_bucket_bytes(const cddp_ddp *ddp, size_t b);

/*
 * Frees everything; NULL is allowed. It is this rank's own affair: no peer has to call it, and none is waited for. What
 * is in flight goes on without the reducer, and the memory that it needs is freed by cddp_finalize. On a GPU, and with
 * gradients that are reduced where they lie, that is the caller's memory: it waits until buckets that have started are
 * done. After an error it returns at once. Peers that count on
 * the rest of a step hear, in their next wait, that this rank has left.
 *
 * On a GPU whose gradients lie in a symmetric window (NCCL 2.29.7 and newer) their memory stays until all ranks have
 * destroyed the reducer and the next one is made, or until cddp_finalize().
 */
CDDP_API void cddp_ddp_destroy(cddp_ddp *ddp);

/* ------------------------------------------------------------------------------------------------- optimizer ---- */

/*
 * An optimizer whose state is divided among the ranks (ZeRO, stage 1): of each bucket a rank receives the mean of its
 * own share of the gradients only, updates that share of the parameters, for which alone it keeps momentum and
 * averages, and the ranks exchange the new values. Parameters become what every rank would have made of them alone, bit
 * for bit, with 1/world size of the state and of the arithmetic. What is compressed (`comm_dtype`, PowerSGD) or sent by
 * a hook becomes whole means on every rank, of which each updates its share; other buckets are scattered. A step is
 *
 *     write cddp_ddp_grad(ddp, i); cddp_ddp_grad_ready(ddp, i);     // as ever, for each parameter
 *     cddp_optim_step(optim, NULL);                                 // in place of cddp_ddp_wait and an optimizer
 */
typedef struct cddp_optim cddp_optim;

/* The rules, as PyTorch's torch.optim.SGD, Adam and AdamW have them; 0 is none, so that a forgotten one is an error. */
typedef enum cddp_optim_kind {
    CDDP_OPTIM_SGD = 1,
    CDDP_OPTIM_ADAM = 2,
    CDDP_OPTIM_ADAMW = 3,
    CDDP_ENUM_32(CDDP_OPTIM)
} cddp_optim_kind;

/* cddp_optim_group.flags. */
enum {
    /* The group's parameters, their state and its steps stay as they are. Their gradients count in norms. */
    CDDP_OPTIM_GROUP_FROZEN = 1
};

/*
 * Parameters with a learning rate and a weight decay of their own, as one of PyTorch's param_groups. A group says both:
 * lr_factor 1, and the weight decay of the options, are as the optimizer's. {.size = sizeof(cddp_optim_group), .params
 * = biases, .n_params = 8, .lr_factor = 1} are eight that do not decay.
 */
typedef struct cddp_optim_group {
    size_t size;          /* sizeof(cddp_optim_group), in each of an array */
    const size_t *params; /* by number, each once, and in no other group */
    size_t n_params;
    double lr_factor;    /* > 0: the learning rate, also that of cddp_optim_set_lr and of a step, is multiplied by it */
    double weight_decay; /* >= 0, in place of the options' */
    uint64_t flags;      /* CDDP_OPTIM_GROUP_...; 0: none */
} cddp_optim_group;

/* cddp_optim_options.flags. */
enum {
    CDDP_OPTIM_NESTEROV = 1 /* SGD with momentum and no dampening looks ahead */
};

/* Numbers of which 0 is 0: cddp_optim_defaults() fills them in. */
typedef struct cddp_optim_options {
    size_t size;                    /* sizeof(cddp_optim_options) */
    cddp_optim_kind kind;           /* no default */
    uint32_t flags;                 /* CDDP_OPTIM_NESTEROV; 0: none */
    const cddp_optim_group *groups; /* n_groups of them, copied; what is in none has the values below */
    size_t n_groups;                /* 0: none */
    double lr;                      /* learning rate, > 0 */
    double weight_decay;            /* >= 0; SGD and Adam add weight_decay * parameter to the gradient, AdamW shrinks
                                       the parameter by lr * weight_decay */
    double momentum;                /* SGD, >= 0; 0: none, and no state */
    double dampening;               /* SGD: of what the gradient adds to the momentum */
    double beta1;                   /* Adam, AdamW, in [0, 1) */
    double beta2;                   /* Adam, AdamW, in (0, 1) */
    double eps;                     /* Adam, AdamW, > 0 */
} cddp_optim_options;

/*
 * Fill in PyTorch's defaults for kind, where *opt has `size` bytes, sizeof(cddp_optim_options): kind and size too, a
 * learning rate of 1e-3, Adam's betas of 0.9 and 0.999 and eps of 1e-8, AdamW's weight decay of 0.01; all else is 0.
 * opt may be NULL. Never fails: of a kind that is none cddp_optim_create() tells. Any thread.
 */
CDDP_API void cddp_optim_defaults(cddp_optim_options *opt, size_t size, cddp_optim_kind kind);

/*
 * Give ddp an optimizer. A collective: every rank calls it, between the same two steps, with the same options, which
 * are compared. From now on each step of ddp ends with cddp_optim_step; what its gradients hold afterwards is
 * unspecified, so the next backward pass has to overwrite them, as it should anyway. Gradients may still be accumulated
 * over several backward passes before they are said to be ready.
 *
 * Parameters may have any size and type, also in worlds larger than they have elements. For float16 and bfloat16 the
 * share has float32 copies, which are what is updated; they are made here from the parameters, and by
 * cddp_checkpoint_load. Their gradients may be float32 (grad_dtype), on the CPU: new values then go from rank to rank
 * in that type. With CDDP_DDP_FIND_UNUSED or CDDP_DDP_STATIC_GRAPH a parameter that no rank used in a step stays as it
 * is, and so does its state.
 *
 * *out is written on success only; release it with cddp_optim_destroy(), before ddp or after it: without its reducer an
 * optimizer can only be destroyed, and its other functions return CDDP_E_STATE. Returns CDDP_OK; CDDP_E_INVALID
 * (an option, also one with which nothing would be learned, such as a learning rate of 0: it was not filled in);
 * CDDP_E_UNSUPPORTED (a reducer with CDDP_DDP_SPLIT or CDDP_DDP_TUNE, whose buckets cannot be divided, with grad_dtype
 * on a GPU, or with CDDP_DDP_JOIN: a rank in cddp_ddp_join does not hear whether the others clip or skip; the error
 * message says which); CDDP_E_STATE (ddp has one, or is in the middle of a step); CDDP_E_MISMATCH (ranks give different
 * options: the sentence names two and what differs); CDDP_E_NOMEM (here or on a peer); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_create(cddp_optim **out, cddp_ddp *ddp, const cddp_optim_options *opt);

/* cddp_optim_step_args.flags. */
enum {
    /*
     * A step whose gradients have a NaN or an infinity somewhere changes nothing, on any rank: parameters, their state
     * and its steps stay as they are, as with cddp_optim_skip(). Decided where the gradients are, without a wait of the
     * host on a GPU, at the price of reading this rank's share once more (with max_norm: at none).
     */
    CDDP_OPTIM_SKIP_NONFINITE = 1
};

/* One step. Every rank gives the same. */
typedef struct cddp_optim_step_args {
    size_t size;       /* sizeof(cddp_optim_step_args) */
    uint64_t flags;    /* CDDP_OPTIM_SKIP_NONFINITE; 0: none */
    double lr;         /* learning rate of this step alone, of all groups by their factors; 0: as set */
    double grad_scale; /* > 0: gradients are multiplied by it: 1/the loss's scale of mixed precision; 0: 1 */
    double max_norm;   /* > 0: gradients are clipped to this norm, of type 2; 0: they are not */
} cddp_optim_step_args;

/*
 * Update every parameter by its mean gradient; then the next step may begin. args may be NULL: a plain step. In one
 * call, and in this order: gradients are multiplied by grad_scale, their norm over all ranks is taken, a step with what
 * is no finite number is left out, they are clipped, and parameters are updated. Where the scale is 1 the results have
 * the bits of cddp_ddp_clip_grad_norm() and a plain step. The scale is applied in the arithmetic of the update, in
 * float32 for gradients of 16 bits: what would be 0 in 16 bits is not lost.
 *
 * Call it once per step, from one thread, after the last cddp_ddp_grad_ready(), while nothing else uses the parameters.
 * Blocks until the new parameters of all ranks are in this rank's `data`, the same bits everywhere. The exchange of one
 * bucket runs while the next is updated. On a GPU nothing blocks, with args neither: the step begins after what is on
 * the reducer's stream, and what comes on that stream from now on finds the new parameters. (With CDDP_DDP_FIND_UNUSED
 * it waits, as every step does then.) There Adam's powers of beta1 and beta2 are products, so that parameters may
 * differ from the CPU's in the last bits.
 *
 * Returns what cddp_ddp_wait may return; after such an error parameters may be partly updated. CDDP_E_INVALID (args):
 * nothing was done, and the step has not ended. CDDP_E_NONFINITE (on the CPU, with CDDP_OPTIM_SKIP_NONFINITE): the step
 * was left out and has ended, the next one may begin, and nothing is broken. On a GPU the host does not know that, and
 * CDDP_OK is returned: cddp_optim_skipped() tells on both. CDDP_E_UNSUPPORTED (a newer header's struct).
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_step(cddp_optim *optim, const cddp_optim_step_args *args);

/*
 * End the step without an update, as a program does whose gradients are not finite (mixed precision): parameters, their
 * state and its steps stay as they are. Every rank calls it for the same step, in place of cddp_optim_step. Returns
 * what that returns.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_skip(cddp_optim *optim);

/*
 * The learning rate from the next step on (for a schedule, also one that begins or ends with 0), of all groups by their
 * factors; every rank gives the same one. Between two steps, one thread. CDDP_OK; CDDP_E_INVALID (below 0, or no
 * number); CDDP_E_STATE (its reducer is gone).
 */
CDDP_API cddp_status cddp_optim_set_lr(cddp_optim *optim, double lr);
/*
 * How many steps CDDP_OPTIM_SKIP_NONFINITE has left out since cddp_optim_create(), the same on every rank. Between two
 * steps, one thread; on a GPU the host waits for the last one. CDDP_OK; CDDP_E_INVALID (NULL); CDDP_E_STATE (its
 * reducer is gone); or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_optim_skipped(cddp_optim *optim, uint64_t *steps);
/* Bytes that this rank holds for its share: the state, and float32 copies of parameters of 16 bits. */
CDDP_API size_t cddp_optim_state_bytes(const cddp_optim *optim);

/* Free it; NULL is allowed. The reducer then averages whole gradients again. Every rank does so between the same steps.
 */
CDDP_API void cddp_optim_destroy(cddp_optim *optim);

/* --------------------------------------------------------------------------------------------------- metrics ---- */

/*
 * Values with weights, as the mean losses of batches and how many samples they had. {0} is none; a program may fill in
 * sum and weight itself. It is a plain value without `size`, and never changes.
 */
typedef struct cddp_metric {
    double sum;      /* of value times weight */
    double weight;   /* of all values: their number, where each weighs 1 */
    double min, max; /* of the values, 0 while n is 0; NaN, if one was */
    uint64_t n;      /* values that were added */
} cddp_metric;

/* Add a value. One thread at a time; NULL is ignored. */
CDDP_API void cddp_metric_add(cddp_metric *m, double value, double weight);
/* sum / weight; NaN while the weight is 0. Any thread. */
CDDP_API double cddp_metric_mean(const cddp_metric *m);
/*
 * all[k] = mine[k] of every rank together, for k in [0, n): one collective, the same bits on every rank, added in rank
 * order. ranks (may be NULL) gets world size * n metrics: those of rank r from ranks[r * n] on. all may be mine. Every
 * rank calls it with the same n. Blocks until the numbers are there, since they are for the program's eyes: on a GPU,
 * too, they lie in host memory, and the host waits for what was begun before; so it is for once in a while, and not for
 * every step. Any thread, in the order of all collectives. Returns CDDP_OK; CDDP_E_INVALID;
 * CDDP_E_NOMEM; or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_metric_reduce(cddp_comm *comm, const cddp_metric *mine, cddp_metric *all,
                                                       size_t n, cddp_metric *ranks);

/* --------------------------------------------------------------------------------------------------- sampler ---- */

/*
 * Which samples belong to this rank: PyTorch's DistributedSampler, index by index. One thread at a time. For NULL in
 * place of a sampler the functions that return a status return CDDP_E_INVALID, the others 0 or NULL.
 */
typedef struct cddp_sampler cddp_sampler;

typedef struct cddp_sampler_options {
    size_t size;    /* sizeof(cddp_sampler_options) */
    int64_t n;      /* samples in the data set, >= 0 */
    int world_size; /* >= 1; cddp_world_size(comm) */
    int rank;       /* 0 .. world_size-1; cddp_rank(comm) */
    int no_shuffle; /* 0: shuffle anew in every epoch */
    int drop_last;  /* 0: pad with the first samples so that all ranks get the same number; 1: drop the tail */
    int64_t seed;   /* the same on every rank; epoch e is shuffled with torch's generator seeded with seed + e */
} cddp_sampler_options;

/*
 * Make a sampler, which starts at epoch 0. *out is written on success only; release it with cddp_sampler_destroy().
 * Returns CDDP_OK, CDDP_E_INVALID (a value out of range), CDDP_E_NOMEM. No communication.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_sampler_create(cddp_sampler **out, const cddp_sampler_options *opt);
/* Samples of this epoch on this rank, the same on every rank; behind cddp_sampler_set_state: of the rest of it. */
CDDP_API size_t cddp_sampler_count(const cddp_sampler *sampler);
/* Make epoch's indices; those of the epoch before are overwritten. CDDP_OK, CDDP_E_INVALID (epoch < 0). */
CDDP_API cddp_status cddp_sampler_set_epoch(cddp_sampler *sampler, int64_t epoch);
/* cddp_sampler_count() indices in [0, n), the sampler's own memory, valid until set_epoch, set_state or destroy. */
CDDP_API const int64_t *cddp_sampler_indices(const cddp_sampler *sampler);

/*
 * The next batch: *indices becomes the next `want` of this rank's indices, or fewer at the end of the epoch, and the
 * sampler's place moves behind them. Returns how many; 0: the epoch is over, until set_epoch. A program takes its
 * batches by this, or from cddp_sampler_indices(); only this moves the place that cddp_sampler_get_state tells.
 */
CDDP_API size_t cddp_sampler_next(cddp_sampler *sampler, size_t want, const int64_t **indices);

/*
 * Where a run stands in its data: 64 bytes without members of their own, the same on every machine (little-endian), for
 * a program's own files; a checkpoint has them by an item of kind CDDP_ITEM_SAMPLER. They do not depend on the rank or
 * on the number of ranks.
 */
typedef struct cddp_sampler_state {
    uint64_t words[8];
} cddp_sampler_state;

/* Tell where the sampler stands, in *state, which need not be filled in. Never fails (of NULL: zeros, no state). */
CDDP_API void cddp_sampler_get_state(const cddp_sampler *sampler, cddp_sampler_state *state);
/*
 * Go on from *state, also in the middle of an epoch and also with another number of ranks: what was not taken of the
 * epoch's order is shared among the ranks of now as set_epoch shares a whole one (padding comes from the start of the
 * order, and so from samples that were taken before). With as many ranks as before each gets exactly what it had still
 * to get. Returns CDDP_OK; CDDP_E_INVALID (no state, or of another format); CDDP_E_MISMATCH (in the middle of an epoch:
 * of another n, seed or no_shuffle, so that what was taken cannot be told). On failure nothing changes.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_sampler_set_state(cddp_sampler *sampler, const cddp_sampler_state *state);
/* Free it; NULL is allowed. */
CDDP_API void cddp_sampler_destroy(cddp_sampler *sampler);

/* ----------------------------------------------------------------------------------------------- checkpoints ---- */

/* What an item of a checkpoint is. */
typedef enum cddp_item_kind {
    CDDP_ITEM_MEMORY = 0,  /* `bytes` bytes at `data`: parameters, a step counter */
    CDDP_ITEM_SAMPLER = 1, /* `data` is a cddp_sampler: its place in the data, which loading moves */
    CDDP_ITEM_OPTIM = 2,   /* `data` is a cddp_optim: its whole state, of all ranks */
    CDDP_ITEM_DDP = 3,     /* `data` is a cddp_ddp: what its compression (PowerSGD) has not sent yet, of all ranks */
    CDDP_ENUM_32(CDDP_ITEM)
} cddp_item_kind;

/* cddp_checkpoint_item.flags. */
enum {
    /*
     * Each rank's memory is its own: the state of a random number generator, a loss so far. All ranks name the same
     * such items, of the same size and in the same order. Loaded, each rank gets what the rank of its number saved, and
     * a rank of a number that did not exist then keeps its memory as it is. Meant for little: all of it passes through
     * rank 0. For CDDP_ITEM_MEMORY only.
     */
    CDDP_ITEM_PER_RANK = 1
};

/*
 * A piece of a job's state. A checkpoint holds any number of each kind, told apart by their names: two optimizers, two
 * samplers and two reducers of a GAN, say.
 *
 * - Memory is the caller's, on the host or on the backend's GPU (then nothing may be writing it). Rank 0's is
 * everyone's, unless flags say otherwise.
 * - A sampler's place is that of rank 0's sampler, and does not depend on the number of ranks.
 * - An optimizer's state lies whole in the file: a world of another size loads it, too, and each rank gets its new
 * share. Its parts are named NAME.exp_avg, NAME.exp_avg_sq or NAME.momentum_buffer, as PyTorch has them, NAME.steps and
 *   NAME.master (the float32 copies of parameters of 16 bits). Parameters are items of their own. Learning rate and
 * other options are not in it: those of cddp_optim_create count.
 * - A reducer's state is PowerSGD's: steps, random numbers, each Q, and what each rank has left out. A run that loads
 * it after cddp_ddp_set_powersgd, with the same options, the same buckets and as many ranks, goes on as one that was
 * never stopped, bit for bit. With other buckets random numbers may fall to other gradients. With another number of
 * ranks each goes on with the mean of what all had left out, so that nothing is lost. A reducer without PowerSGD may be
 * an item, too, and has no state. Both the checkpoint and the reducer have PowerSGD, or neither.
 *
 * Optimizers and reducers are of the communicator that saves or loads, and between two steps. Rank 0 holds all of their
 * states in host memory meanwhile, the others nothing more than their own.
 */
typedef struct cddp_checkpoint_item {
    size_t size;      /* sizeof(cddp_checkpoint_item), in each of an array */
    const char *name; /* 1 to 255 bytes (200 of what is no memory, 240 where each rank has its own), of each another */
    void *data;       /* memory, or the object */
    size_t bytes;     /* of memory; else 0 */
    cddp_item_kind kind; /* 0: memory */
    uint32_t flags;      /* CDDP_ITEM_PER_RANK; 0: none */
} cddp_checkpoint_item;

typedef struct cddp_checkpoint_options {
    size_t size;    /* sizeof(cddp_checkpoint_options) */
    int keep;       /* how many of the newest checkpoints stay in the directory; 0: the library's choice; < 0: all */
    int background; /* 1: return once the items were copied; a thread of rank 0 writes while training goes on */
} cddp_checkpoint_options;

typedef struct cddp_checkpoint_info {
    size_t size;       /* sizeof(cddp_checkpoint_info), set by the caller */
    uint64_t step;     /* of the checkpoint that was loaded */
    size_t n_damaged;  /* newer ones that were passed over, since they were cut short or changed */
    char damaged[512]; /* a sentence about the newest of these; "" if there is none */
} cddp_checkpoint_info;

/*
 * Save the items as DIR/checkpoint-STEP.cddp: whole or not at all, also when the machine stops in the middle (a
 * temporary file, fsync, rename, fsync of the directory). The directory is made if its parent exists. Then older
 * checkpoints beyond `keep` are removed, and those of later steps, which a life of the job has left that was given up;
 * so each job has a directory of its own. A collective: every rank calls it, and all get the same result, so that all
 * take the same branch. opt may be NULL; rank 0's counts. All ranks name the same optimizers, reducers, and items with
 * CDDP_ITEM_PER_RANK, in the same order. Other memory and samplers are looked at on rank 0 only.
 *
 * In the background the items may be written to again, and objects may be used and destroyed, as soon as it returns.
 * Rank 0 holds a copy of them until the file is there: of memory that is on its GPU there, if at least twice as much is
 * free; else on the host. Not in the background there is no copy of memory: what is on the GPU goes from there to the
 * file. One save at a time is under way: the next one waits for it. If it failed, the next save, or
 * cddp_checkpoint_wait, whichever comes first, returns its error on all ranks, and has done nothing else.
 *
 * Returns CDDP_OK; CDDP_E_INVALID (also an object of another communicator); CDDP_E_SYSTEM (the sentence names file and
 * cause: a full disk leaves the older checkpoints as they were); CDDP_E_MISMATCH (the ranks name different items: the
 * sentence names a rank and an item); CDDP_E_STATE (an optimizer or a reducer in the middle of a step, or gone);
 * CDDP_E_UNSUPPORTED (a newer header's struct); CDDP_E_NOMEM; or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step,
                                                         const cddp_checkpoint_item *items, size_t n_items,
                                                         const cddp_checkpoint_options *opt);
/*
 * Return once no save in the background is under way on comm, with the error of the last one if nobody was told of it
 * yet. A collective. A program calls it before it ends; cddp_finalize waits as well, and returns such an error on rank
 * 0 alone. Returns CDDP_OK, CDDP_E_INVALID, the save's error, or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_checkpoint_wait(cddp_comm *comm);
/*
 * Load the newest whole checkpoint in dir into the items: memory gets the same bytes on every rank, samplers move, and
 * optimizers and reducers get their states. Rank 0 reads, checks every checksum, and hands out; so dir need exist on
 * rank 0's node only, and the world may have another size than the one that saved. All or nothing: no item changes, on
 * any rank, before all of them are known to fit on every rank. After that only a disk or a rank that fails can leave
 * items half loaded. A collective: every rank passes items of the same names, kinds, sizes and flags, and all get the
 * same result. What the file holds beside the items asked for is left alone. A save in the background is waited for.
 * info may be NULL.
 *
 * Returns CDDP_OK; CDDP_E_INVALID; CDDP_E_NOT_FOUND (no checkpoint there: start afresh); CDDP_E_IO (there are some, and
 * none is whole); CDDP_E_VERSION (of another version's format); CDDP_E_SYSTEM; CDDP_E_NOMEM; CDDP_E_UNSUPPORTED;
 * CDDP_E_STATE (as of cddp_checkpoint_save); or what a collective may return. CDDP_E_MISMATCH: an item is missing in
 * the file, or has another size or kind there; the ranks' items differ; a sampler stands in the middle of an epoch of
 * another order; an optimizer's state is of another rule (those of Adam and AdamW are alike), or of parameters of other
 * names, sizes, types or in another order; PowerSGD's state is of other options or shapes, or only one of checkpoint
 * and reducer has one. The error message names the item.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_checkpoint_load(cddp_comm *comm, const char *dir,
                                                         const cddp_checkpoint_item *items, size_t n_items,
                                                         cddp_checkpoint_info *info);

/* ----------------------------------------------------------------------------------------------------- store ---- */

/*
 * A client of the job's key-value store on MASTER_ADDR:MASTER_PORT, in the wire protocol of PyTorch's TCPStore, so that
 * C programs and PyTorch programs can share keys (as PyTorch's client does, "/" is put in front of each key on the
 * wire). Keys are at most 8191 bytes, values at most 8 MiB. Keys live until the end of the round. A client may be used
 * by several threads: one operation at a time runs, the others wait for it. Timeouts in ms: 0 is the store's own,
 * negative none.
 */
typedef struct cddp_store cddp_store;

typedef struct cddp_store_options {
    size_t size;      /* sizeof(cddp_store_options) */
    const char *host; /* NULL: $MASTER_ADDR */
    int port;         /* 0: $MASTER_PORT */
    int timeout_ms;   /* to connect, and for each operation; 0: 300 s */
} cddp_store_options;

/*
 * Connect, with retries until the timeout. *out is written on success only; release it with cddp_store_close().
 * Returns CDDP_OK, CDDP_E_INVALID, CDDP_E_NOT_FOUND (the host does not resolve), CDDP_E_IO (no connection; the sentence
 * names address and cause), CDDP_E_TIMEOUT, CDDP_E_PROTOCOL (something else listens there), CDDP_E_DENIED (the secret),
 * CDDP_E_LIMIT (the rendezvous takes no more connections: the sentence says which limit to raise), CDDP_E_NOMEM.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_store_open(cddp_store **out, const cddp_store_options *opt);
/* The communicator's own client; NULL in a world of one without a store. It lives as long as comm: do not close it. */
CDDP_API cddp_store *cddp_comm_store(cddp_comm *comm);
/* Close the connection, which ends its waits on the server. NULL is allowed. */
CDDP_API void cddp_store_close(cddp_store *store);

/*
 * Every operation returns CDDP_OK, CDDP_E_INVALID (key or value too long), CDDP_E_CLOSED (the server ended the
 * connection: the round is over; or an earlier error has closed it), CDDP_E_TIMEOUT, CDDP_E_IO, CDDP_E_PROTOCOL,
 * CDDP_E_NOMEM; the communicator's own client also CDDP_E_PEER (a rank died) and CDDP_E_ABORTED (the launcher has ended
 * this round). After any error but CDDP_E_INVALID the connection is closed, except that a wait which timed out leaves
 * it usable.
 */
/* Set key to len bytes at value (copied), and wake who waits for it. */
CDDP_API cddp_status cddp_store_set(cddp_store *store, const char *key, const void *value, size_t len);
/*
 * Wait until key exists, then copy its value to buf (cap bytes). *len is the value's length, also when it is larger
 * than cap: then nothing is copied and CDDP_E_LIMIT is returned.
 */
CDDP_API cddp_status cddp_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len,
                                    int timeout_ms);
/* Add delta to the decimal number at key (0 if there is none) and give the sum; `sum` may be NULL. */
CDDP_API cddp_status cddp_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum);
/*
 * If key's value equals expected (or key does not exist and expected_len is 0) set it to desired. Either way the value
 * now stored is given as cddp_store_get gives it; for a missing key with another expectation, `expected` is given.
 */
CDDP_API cddp_status cddp_store_compare_set(cddp_store *store, const char *key, const void *expected,
                                            size_t expected_len, const void *desired, size_t desired_len, void *buf,
                                            size_t cap, size_t *len);
/* Wait until all n_keys keys exist. */
CDDP_API cddp_status cddp_store_wait(cddp_store *store, const char *const *keys, size_t n_keys, int timeout_ms);
/* *all_exist = 1 if all n_keys keys exist now, else 0. */
CDDP_API cddp_status cddp_store_check(cddp_store *store, const char *const *keys, size_t n_keys, int *all_exist);
/* Delete key; *deleted (may be NULL) = 1 if it existed. */
CDDP_API cddp_status cddp_store_delete(cddp_store *store, const char *key, int *deleted);

#ifdef __cplusplus
}
#endif

#endif
