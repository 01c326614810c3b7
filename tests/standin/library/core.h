/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared interface of the parts of the stand-in: settings, faults, devices and contexts, memory, streams and their
 * operations. Functions named si_*_locked, and all with the remark "Locked", need the lock of edge.h; the others must
 * be called without it.
 */
#ifndef SI_CORE_H
#define SI_CORE_H

#include "clock.h"
#include "edge.h"
#include "standin.h"

#include <cuda.h>

/* The functions of this file belong to the library itself; those of cuda.h are visible outside. */
#define SI_EXPORT __attribute__((visibility("default")))

#define SI_DEVICES 16
#define SI_CONTEXT_DEPTH 8

/* ------------------------------------------------------------------------------------ settings and faults (core.c) */

struct si_settings {
    uint64_t seed;
    bool device_delay, host_delay;
    unsigned n_devices;
    unsigned instances; /* so many devices share a PCI address */
    size_t device_memory;
    uint32_t queue; /* operations that a stream holds */
    uint32_t collective_us;
    int driver;     /* its version: 13000 */
    int capability; /* of each GPU: 90 is 9.0 */
    bool count_faults, leaks_are_faults, context_lock;
    bool capture_faults; /* what a capture forbids is a fault */
    bool never_relaxed;  /* a planted bug: threads stay in the mode in which they begin */
};
extern struct si_settings si_settings;

/* "standin: fault: ..." on stderr; ends the process unless faults are counted. Any thread, with or without the lock. */
void si_fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Prints why a call fails, "standin: ..." on stderr; the caller then returns its error. */
void si_refused(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Starts a detached thread that does not get the signals of the program. Returns false if there is none. */
bool si_start_thread(void *(*run)(void *), void *arg);

/* Returns a number in [0, below) of a sequence with this state. */
uint64_t si_random(uint64_t *state, uint64_t below);
/* Returns the seed of the n-th object of a kind. */
uint64_t si_seed(uint64_t kind, uint64_t n);

/*
 * Called at the start of every function of the driver: counts the call, delays a slow host, and returns the status that
 * the function must return at once, if it is not CUDA_SUCCESS: a planted failure, CUDA_ERROR_NOT_PERMITTED inside a
 * host function, or CUDA_ERROR_NOT_INITIALIZED in a child of a process that has used the driver.
 */
CUresult si_enter(const char *function);
/* Called in the child of a fork: CUDA does not work there, if the parent has used it. */
void si_forked(void);
/* For functions that allocate. */
CUresult si_enter_alloc(const char *function);
/* Returns the same for NCCL: the planted code, or 0. */
int si_enter_nccl(const char *function, bool allocates);
/* Returns the planted code of a fault of the device ("kernel" in CDDP_STANDIN_FAIL) for this kernel, or 0. */
int si_planted_kernel(void);
/* Returns the planted code of an asynchronous error ("async" in CDDP_STANDIN_FAIL) for this launch of NCCL, or 0. */
int si_planted_async(void);
/* Returns whether this is the planted K-th event wait, to be ignored. */
bool si_skip_wait(void);
/* Returns whether this is the planted K-th event wait of a capture, to be ignored. */
bool si_skip_captured_wait(void);
/* Returns the function of CDDP_STANDIN_UNSAFE if this is its K-th captured launch; otherwise NULL. */
const char *si_unsafe_call(void);
/* Returns whether this launch of NCCL operations is exchanged with the next one. */
bool si_swap_launch(void);

/* --------------------------------------------------------------------------------- devices and contexts (driver.c) */

struct CUctx_st {
    unsigned device;   /* in the numbering of the program */
    unsigned physical; /* after CUDA_VISIBLE_DEVICES */
    unsigned retained;
    size_t used; /* bytes of memory */
    struct CUstream_st *legacy;
    int32_t fault; /* a CUresult, atomic: for ever; its streams run nothing any more */
};
/* CUDA_SUCCESS, or the status that every later call in it returns */
CUresult si_context_fault(const struct CUctx_st *ctx);
/*
 * With CDDP_STANDIN_CONTEXT_LOCK: a call that waits for the device holds the context between the two, and every other
 * call of the driver waits until it is let go. (PyTorch has met that: "It can hang if another thread is holding the
 * CUDA global context lock", ProcessGroupNCCL.cpp, finishedGPUExecutionInternal.)
 */
void si_context_hold(void);
void si_context_let_go(void);

/* The data of a thread of the program. */
struct si_thread {
    CUcontext stack[SI_CONTEXT_DEPTH];
    unsigned depth;
    bool in_host_function;
    CUstreamCaptureMode capture_mode;
    uint64_t asked;        /* ncclCommGetAsyncError */
    uint64_t calls;        /* of the driver */
    uint64_t waits;        /* calls that wait for the device, or may */
    struct si_clock *seen; /* knowledge from successful queries; NULL: none yet. Small: it is in the static block */
};
extern _Thread_local struct si_thread si_thread;

/* Returns the current context, or NULL. */
CUcontext si_current(void);

/* ---------------------------------------------------------------------------------------------- memory (memory.c) */

enum si_memory { SI_DEVICE, SI_NCCL_MEMORY, SI_PINNED, SI_MANAGED };

struct si_alloc {
    enum si_memory kind;
    char *host;
    size_t bytes;
    CUcontext ctx;
    bool of_no_context; /* of a pool, or of NCCL's: to the driver it is the device's */
    uint64_t number;
    unsigned registered; /* with NCCL, as a buffer or a window */
    struct si_history history;
};

/* Allocates memory with every byte 0xff, which is a NaN in every type. *out is the address for the program. */
CUresult si_alloc(enum si_memory kind, size_t bytes, size_t align, void **out);
/* Frees memory of one of two kinds, after everything on its device is done, as the driver does. */
CUresult si_free(const void *at, enum si_memory kind, const char *function);
/* Returns the allocation that holds [at, at + bytes), or NULL. Locked. */
struct si_alloc *si_find_locked(const void *at, size_t bytes);
void si_count_memory_locked(unsigned *device, unsigned *pinned);
bool si_is_tagged(const void *at);
/* Memory that the host may use by its address. */
bool si_is_hosts(enum si_memory kind);

/* ---------------------------------------------------------------------------------------------- streams (stream.c) */

struct si_op;
struct si_stop; /* a recorded point of a stream (snapshot) */

#define SI_RANGES 256

struct si_range {
    const char *at;
    size_t bytes;
    bool write;
};
struct standin_ranges {
    struct si_range range[SI_RANGES];
    size_t n;
    bool full;
};
void si_range_add(struct standin_ranges *r, const void *at, size_t bytes, bool write);

/*
 * An operation of a stream. `run` is called on the thread of the stream without the lock; `drop` frees the memory of
 * data (or NULL).
 */
struct si_op {
    struct si_op *next;
    const char *name; /* lives for ever */
    uint64_t number;  /* in the process */
    uint64_t delay_ns;
    void (*run)(struct si_op *op);
    void (*drop)(struct si_op *op);
    /* Optional, for captured operations, at each launch of the graph: around the push, locked. */
    void (*before)(struct si_op *op, struct CUstream_st *s);
    void (*after)(struct si_op *op, struct CUstream_st *s);
    bool always; /* run it also after a failure of the device: a thread is waiting for it */
    struct CUstream_st *stream;
    void *data;
};

/* Creates an operation with `data` zeroed bytes for itself, or returns NULL. */
struct si_op *si_op_create(const char *name, void (*run)(struct si_op *op), size_t data);
void si_op_destroy(struct si_op *op);
/*
 * Sets a fault of the running operation: "any further CUDA work will return the same error" (cuda.h, on
 * CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED and others).
 */
void si_op_fault(const struct si_op *op, CUresult code);

/*
 * Returns the stream of a handle of the program; CUDA's legacy stream (NULL) belongs to the current context. Locked.
 * si_stream_here_locked: for new work, which needs a stream of the current context.
 */
CUresult si_stream_locked(CUstream handle, const char *function, struct CUstream_st **out);
CUresult si_stream_here_locked(CUstream handle, const char *function, struct CUstream_st **out);
/* cuStreamGetCaptureInfo in its first form, of version 10010. */
CUresult si_stream_capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id);
/*
 * Waits until the stream, from si_stream_locked, has room for one more operation, as drivers do: CUDA's manual does not
 * state how many it holds; it is about 1024. Locked; the lock is released meanwhile.
 */
void si_room_locked(struct CUstream_st *s);
/* Returns whether the stream is part of a graph that is being captured. Locked. */
bool si_stream_captures_locked(const struct CUstream_st *s);
/* Returns whether captures allow new work on the stream. Locked. */
CUresult si_capture_state_locked(const struct CUstream_st *s);
/*
 * Returns CUDA_SUCCESS; or an error if a capture forbids this call, which makes the capture invalid (capture.c).
 * Without the lock.
 */
CUresult si_capture_unsafe(const char *function);
/* Does the same for a call that a thread of NCCL makes, whose mode is the default. */
void si_capture_unsafe_elsewhere(const char *function);
/* Makes the planted call that a capture forbids, if the stream captures and it is its turn. Without the lock. */
void si_capture_plant(CUstream stream);
/* Streams of a context exist on from its first use to the end of the process: its legacy stream. Locked. */
void si_streams_end_locked(CUcontext ctx);
/*
 * Pushes an operation that uses these ranges (NULL: none), ordered after everything that the calling thread knows to be
 * done. Checks that every range is within one allocation and ordered. Takes ownership of op. Locked.
 */
void si_push_locked(struct CUstream_st *s, struct si_op *op, const struct standin_ranges *r);
/* Does the same for work that another thread enqueues for its caller: `seen` is the knowledge of the caller. */
void si_push_for_locked(struct CUstream_st *s, struct si_op *op, const struct standin_ranges *r,
                        const struct si_clock *seen);
/* Returns a copy of the knowledge of the calling thread. Locked. */
void si_seen_locked(struct si_clock *out);

/*
 * Returns the point of the program that the stream has reached: a counted reference, to be released. NULL: out of
 * memory.
 */
struct si_stop *si_stop_create_locked(struct CUstream_st *s);
void si_stop_release_locked(struct si_stop *stop);
bool si_stop_passed(const struct si_stop *stop);
/* Waits until it is passed. The caller keeps its reference. */
void si_stop_wait(struct si_stop *stop);
/* Makes the stream wait for it; later work on the stream is ordered after it. Locked. */
void si_order_locked(struct CUstream_st *s, struct si_stop *stop);
/* Waits until it is passed, takes over its knowledge, and releases it. */
void si_stop_reach(struct si_stop *stop);
/* Makes the stream wait for it in time, without ordering. Locked. */
void si_serialise_locked(struct CUstream_st *s, struct si_stop *stop);
/* Waits for everything on the streams of a context, which then counts as done. */
CUresult si_synchronise(CUcontext ctx);

unsigned si_streams_locked(void); /* how many there are, beside the legacy ones */
unsigned si_events_locked(void);
unsigned si_libraries_locked(void);
extern unsigned si_n_communicators; /* locked */
unsigned si_registered_locked(void);

/* -------------------------------------------- what touches the program's memory, and is instrumented (touch.c) */

void si_touch_copy(void *to, const void *from, size_t bytes);
void si_touch_word(uint32_t *at, uint32_t value); /* visible to a thread that sees the value: all earlier writes */
void si_touch_store(void **to, void *value);
void si_touch_fill(void *to, uint32_t value, size_t width, size_t count);
void si_touch_kernel(const struct standin_kernel *k, const struct standin_thread *grid, void *const *args);

#endif
