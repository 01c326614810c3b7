/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU's element functions as kernels: their names, their arguments, how they are launched. kernels.cu compiles them
 * into the image below; a launch is a value here, which the owner of a stream passes to the driver:
 *
 *     void *params[] = {&launch.args};
 *     cuLaunchKernel(function of cdi_kernel_name(launch.kernel), launch.grid, 1, 1, CDI_KERNEL_THREADS, 1, 1,
 *                    0, stream, params, NULL);
 *
 * so each kernel takes one struct by value. nvcc includes this file too: the structs have no padding that differs.
 */
#ifndef CDI_KERNELS_KERNEL_H
#define CDI_KERNELS_KERNEL_H

#include "worker/math/exact_sum.h"
#include "worker/math/optim_row.h"

#include <cddp/cddp.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_KERNEL_THREADS 256 /* per block */
#define CDI_KERNEL_CHUNK 16384 /* bytes of a slice that one block copies at a time */
/* Elements that a thread of cast and scale takes at a time, where they are aligned. */
#define CDI_KERNEL_UNIT 4
/* Per launch of pack or unpack: the arguments stay below the 4096 bytes of old drivers. */
#define CDI_KERNEL_SLICES 120
/* Per launch of tally or clip, likewise. */
#define CDI_KERNEL_SPANS 160
#define CDI_KERNEL_FINDS 120  /* spans per launch of find, likewise */
#define CDI_SPAN_CHUNK 8192   /* elements of a span that one block takes at a time */
#define CDI_KERNEL_PIECES 50  /* per launch of update */
#define CDI_KERNEL_ROWS 16384 /* per launch of count */
#define CDI_PIECE_CHUNK 4096  /* elements of a piece that one block takes at a time */
#define CDI_LOWRANK_LANES 8   /* sums side by side of a scalar product, as in lowrank.c */
#define CDI_LEFT_CHUNK (CDI_KERNEL_THREADS / CDI_LOWRANK_LANES) /* elements of P that one block makes at a time */
#define CDI_TALLY_UNITS 4     /* reads of 16 bytes that a thread of tally has under way, as many as make a line */
#define CDI_TALLY_BLOCKS 4    /* of tally per multiprocessor */
#define CDI_KERNEL_HASHES 160 /* pieces per launch of hash */
#define CDI_STORE_MAX 4       /* numbers per launch of store */
#define CDI_HASH_CHUNK 65536  /* bytes of a piece that one block hashes at a time: a multiple of 16 */

/* X(constant, name in the image) */
#define CDI_KERNEL_MAP(X)              \
    X(CDI_KERNEL_PACK, cdi_pack)       \
    X(CDI_KERNEL_UNPACK, cdi_unpack)   \
    X(CDI_KERNEL_CAST, cdi_cast)       \
    X(CDI_KERNEL_SCALE, cdi_scale)     \
    X(CDI_KERNEL_TALLY, cdi_tally)     \
    X(CDI_KERNEL_FOLD, cdi_fold)       \
    X(CDI_KERNEL_CLIP, cdi_clip)       \
    X(CDI_KERNEL_COUNT, cdi_count)     \
    X(CDI_KERNEL_UPDATE, cdi_update)   \
    X(CDI_KERNEL_FEED, cdi_feed)       \
    X(CDI_KERNEL_LEFT, cdi_left)       \
    X(CDI_KERNEL_BASIS, cdi_basis)     \
    X(CDI_KERNEL_RIGHT, cdi_right)     \
    X(CDI_KERNEL_PRODUCT, cdi_product) \
    X(CDI_KERNEL_FIND, cdi_find)       \
    X(CDI_KERNEL_HASH, cdi_hash)       \
    X(CDI_KERNEL_SIGNAL, cdi_signal)   \
    X(CDI_KERNEL_STORE, cdi_store)     \
    X(CDI_KERNEL_REPORT, cdi_report)

enum cdi_kernel {
#define X(constant, name) constant,
    CDI_KERNEL_MAP(X)
#undef X
        CDI_N_KERNELS
};

/*
 * cdi_pack, cdi_unpack: slices that are contiguous in `flat` and separate elsewhere. With a factor other than 1
 * cdi_pack multiplies elements of dtype by it, which is rounded to float32 for all but float64. With `flags`, memory of
 * the device, it leaves out each slice whose flag is not 0.
 */
struct cdi_pack_slice {
    void *data;
    uint64_t at; /* in flat, bytes */
    uint64_t bytes;
    uint32_t first_chunk; /* chunks of the slices before this one */
    uint32_t flag;        /* its index in flags */
};

struct cdi_pack_args {
    void *flat;
    uint32_t n, n_chunks;
    double factor;
    int32_t dtype;
    uint32_t unused;
    const uint8_t *flags;                           /* or NULL */
    struct cdi_pack_slice slice[CDI_KERNEL_SLICES]; /* none is empty */
};

/* cdi_cast: to[i] = (to_type)(factor * (float)from[i]); one side is float32, the other float16 or bfloat16. */
struct cdi_cast_args {
    void *to;
    const void *from;
    uint64_t count;
    float factor; /* 1: bits stay as they are */
    int32_t to_type, from_type;
    uint32_t unused;
};

/*
 * cdi_scale: x[i] *= factor, which is rounded to float32 for all but float64. With `word`, memory that the host reads,
 * *word becomes `value` when all of x is done.
 */
struct cdi_scale_args {
    void *x;
    uint64_t count;
    double factor;
    int32_t dtype;
    uint32_t value;
    uint32_t *word;    /* or NULL */
    uint32_t *arrived; /* the number of blocks that are done, on the device; 0 between two launches */
};

/* cdi_tally, cdi_clip: several spans of elements, which blocks share, CDI_SPAN_CHUNK elements at a time. */
struct cdi_kernel_span {
    void *x;
    uint64_t count;
    uint32_t first_chunk; /* chunks of the spans before this one */
    int32_t dtype;
};

/* cdi_tally: adds the squares of the spans to an exact sum, or raises words[0] to the bits of the largest magnitude. */
struct cdi_tally_args {
    uint64_t *words; /* CDI_EXACT_WORDS, zeros before the first launch; they hold 2^32 - 1 lines: 256 GiB */
    uint32_t n, n_chunks;
    int32_t largest;
    uint32_t unused;
    struct cdi_kernel_span span[CDI_KERNEL_SPANS]; /* none is empty */
};

/*
 * cdi_fold, one block: *out becomes the result of the words `from`, and so do `words`, without carries. If `from` is
 * elsewhere, it becomes zeros.
 */
struct cdi_fold_args {
    uint64_t *from, *words;
    double *out;
    int32_t largest;
    uint32_t unused;
};

/*
 * cdi_clip: multiplies the spans by max_norm / (norm + 1e-6), if that is below 1; the norm is factor times that of
 * *sum.
 */
struct cdi_clip_args {
    const double *sum;
    const double *factor_at; /* NULL, or: it is read there */
    double max_norm, factor;
    uint32_t n, n_chunks;
    int32_t largest;
    uint32_t unused;
    struct cdi_kernel_span span[CDI_KERNEL_SPANS];
};

/* cdi_count: rows [first, first + n) begin a step of the optimizer, except for idle ones. */
struct cdi_count_args {
    struct cdi_optim_row *rows;
    const double *largest; /* NULL, or: if it is not a finite number, all rows are idle, */
    uint64_t *skipped;     /* and this is incremented */
    const uint64_t *bad;   /* NULL, or: if it is not 0, all rows are idle */
    const double *lr_at;   /* NULL, or: lr is read there */
    double lr, beta1, beta2;
    uint64_t first, n;
    int32_t kind; /* cddp_optim_kind */
    uint32_t unused;
    uint64_t idle[CDI_KERNEL_ROWS / 64]; /* bits */
};

/* cdi_update: computes the pieces' new values, by the rows that cdi_count has made. */
struct cdi_kernel_piece {
    void *w, *g;
    void *m, *v; /* NULL: the optimizer has no such state */
    float *master;
    uint64_t count;
    uint32_t first_chunk; /* chunks of the pieces before this one */
    uint32_t row;
    int32_t dtype;
    int32_t long_g; /* dtype has 16 bits, and g is float32 */
};

struct cdi_update_args {
    const struct cdi_optim_row *rows;
    const double *factor_at; /* NULL, or: factor is read there */
    uint64_t n_rows;
    double momentum, dampening, beta1, beta2, eps, factor;
    int32_t kind, nesterov;
    int32_t publish; /* the new values also take the gradients' place */
    uint32_t n, n_chunks;
    int32_t collect; /* instead, the values of g, which are rounded, become those of w */
    struct cdi_kernel_piece piece[CDI_KERNEL_PIECES]; /* none is empty */
};

/*
 * cdi_feed, cdi_left, cdi_basis, cdi_right, cdi_product: the steps of the same names in lowrank.h, for several
 * matrices. cdi_basis makes the columns of P orthonormal, or with of_q those of Q; a lost column becomes `fresh`.
 */
struct cdi_lowrank_piece {
    void *m, *p, *q;
    void *error;       /* NULL: the residual is not kept */
    const void *fresh; /* of_q only */
    uint64_t rows, cols;
    uint32_t rank;
    uint32_t first_chunk; /* chunks of the pieces before this one */
    int32_t dtype;
    uint32_t unused;
};

struct cdi_lowrank_args {
    double epsilon;
    uint32_t n, n_chunks;
    int32_t of_q;
    uint32_t unused;
    struct cdi_lowrank_piece piece[CDI_KERNEL_PIECES];
};

/*
 * cdi_find: *word becomes the largest of its value and word_of[k] | kind of each span k with an element whose
 * magnitude has bits of at least `limit` (worker/math/nonfinite.h).
 */
struct cdi_find_args {
    uint64_t *word;
    uint64_t limit;
    uint32_t n, n_chunks;
    struct cdi_kernel_span span[CDI_KERNEL_FINDS]; /* none is empty */
    uint64_t word_of[CDI_KERNEL_FINDS];
};

/* cdi_hash: adds the sum of each piece's words (worker/math/hash64.h) to sum[index] of that piece. */
struct cdi_hash_piece {
    const void *x;
    uint64_t bytes;
    uint32_t first_chunk; /* chunks of the pieces before this one */
    uint32_t index;
};

struct cdi_hash_args {
    uint64_t *sum;
    uint32_t n, n_chunks;
    struct cdi_hash_piece piece[CDI_KERNEL_HASHES]; /* none is empty */
};

/* cdi_signal, one thread: increments *count, on the device, and copies it to *word, which the host reads. */
struct cdi_signal_args {
    uint32_t *count, *word;
};

/* cdi_store, one thread: to[k] becomes value[k], for k < n. */
struct cdi_store_args {
    double *to;
    uint64_t n;
    double value[CDI_STORE_MAX];
};

/*
 * cdi_report, one thread: words are what this rank has found, what all ranks have, and a count, which it increments. If
 * the second is not 0, it tells the host; the number is 0 while it writes. Clears the first.
 */
struct cdi_report_args {
    uint64_t *words;
    struct cdi_nan_report *report;
};

/* One launch. A grid of 0 means that there is nothing to do (no elements): do not launch it. */
struct cdi_launch {
    enum cdi_kernel kernel;
    uint32_t grid; /* blocks */
    union {
        struct cdi_pack_args pack;
        struct cdi_cast_args cast;
        struct cdi_scale_args scale;
        struct cdi_tally_args tally;
        struct cdi_fold_args fold;
        struct cdi_clip_args clip;
        struct cdi_count_args count;
        struct cdi_update_args update;
        struct cdi_lowrank_args lowrank;
        struct cdi_find_args find;
        struct cdi_hash_args hash;
        struct cdi_signal_args signal;
        struct cdi_store_args store;
        struct cdi_report_args report;
    } args;
};

#ifndef __CUDACC__

#include "worker/backend/backend.h"

/* Returns the name in the image, such as "cdi_pack"; NULL: there is no such kernel. */
const char *cdi_kernel_name(enum cdi_kernel kernel);

/*
 * Fill launches, for a device of n_sm multiprocessors. Pure; any thread. Types are checked: CDDP_E_INVALID with an
 * error message if the kernel does not support them, and *out is not written.
 */

/*
 * Fills PACK or UNPACK of the first slices of slice[0..n), as many as fit, and returns their number (empty ones and
 * gaps included). *flat_bytes is their extent in flat; call it again with the rest, which follows there.
 */
size_t cdi_launch_pack(struct cdi_launch *out, enum cdi_kernel kernel, uint32_t n_sm, void *flat,
                       const struct cdi_slice *slice, size_t n, size_t *flat_bytes);
/* Makes a launch of PACK multiply the elements. */
cddp_status cdi_launch_pack_scaled(struct cdi_launch *launch, cddp_dtype dtype, double factor, struct cdi_error *err);
/* Makes a launch of PACK of slice[0 .. taken) check flags[of[i]]. */
void cdi_launch_pack_unless(struct cdi_launch *launch, const struct cdi_slice *slice, size_t taken,
                            const uint8_t *flags, const uint32_t *of);
/* A factor of 1 is a plain cast. */
cddp_status cdi_launch_cast(struct cdi_launch *out, uint32_t n_sm, void *to, cddp_dtype to_type, const void *from,
                            cddp_dtype from_type, size_t count, float factor, struct cdi_error *err);
cddp_status cdi_launch_scale(struct cdi_launch *out, uint32_t n_sm, void *x, size_t count, cddp_dtype dtype,
                             double factor, struct cdi_error *err);
/* Makes a launch of SCALE, with a grid above 0, write a word for the host. arrived: used by one launch at a time. */
void cdi_launch_scale_signals(struct cdi_launch *launch, void *word, uint32_t value, void *arrived);

/*
 * Fills TALLY or CLIP of the first spans of x[0..n), as many as fit, and returns their number (empty ones included).
 * Call it again with the rest until none is left; fold follows the last launch of tally.
 */
size_t cdi_launch_tally(struct cdi_launch *out, uint32_t n_sm, const struct cdi_span *x, size_t n, bool largest,
                        uint64_t *words);
void cdi_launch_fold(struct cdi_launch *out, uint64_t *from, uint64_t *words, bool largest, double *result);
size_t cdi_launch_clip(struct cdi_launch *out, uint32_t n_sm, const struct cdi_span *x, size_t n,
                       const struct cdi_clip *how, const double *sum);

/* Fills COUNT of the rows from `first` on, as many as fit, and returns their number. */
size_t cdi_launch_count(struct cdi_launch *out, const struct cdi_optim_step *s, size_t first);
/* Fills UPDATE of the first pieces: see tally. */
size_t cdi_launch_update(struct cdi_launch *out, uint32_t n_sm, const struct cdi_optim_step *s,
                         const struct cdi_optim_piece *piece, size_t n);

/* Fills one step for the first of n matrices: see tally. */
size_t cdi_launch_lowrank(struct cdi_launch *out, uint32_t n_sm, enum cdi_lowrank_step step,
                          const struct cdi_lowrank_matrix *m, size_t n, double epsilon);

/* Fills FIND of the first spans, with the words of the same numbers: see tally. */
size_t cdi_launch_find(struct cdi_launch *out, uint32_t n_sm, const struct cdi_span *x, const uint64_t *word_of,
                       size_t n, uint64_t limit, uint64_t *word);

/* Fills HASH of the first of n slices, whose sums are sum[first] and those after it: see tally. Gaps count as empty. */
size_t cdi_launch_hash(struct cdi_launch *out, uint32_t n_sm, const struct cdi_slice *x, size_t n, size_t first,
                       uint64_t *sum);

/* Fills SIGNAL. */
void cdi_launch_signal(struct cdi_launch *out, uint32_t *count, uint32_t *word);

/* Fills STORE; n is at most CDI_STORE_MAX. */
void cdi_launch_store(struct cdi_launch *out, double *to, const double *value, size_t n);

/* Fills REPORT. */
void cdi_launch_report(struct cdi_launch *out, uint64_t *words, struct cdi_nan_report *report);

/*
 * The kernels for cuLibraryLoadData: a fatbin with code for every architecture that the compiler knew, and PTX for
 * later ones.
 */
extern const unsigned char cdi_kernel_image[];
extern const size_t cdi_kernel_image_bytes;

#endif
#endif
