/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes the Python stacks in the memory of a process. The memory comes from a function of the caller's, so it can be
 * planted. Every address, size and text in it is untrusted, and may change while it is read. Pure.
 */
#ifndef CDI_PYTHON_DECODE_H
#define CDI_PYTHON_DECODE_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PYTHON_FUNCTION 96 /* bytes, NUL included; a longer name is cut at its end */
#define PYTHON_FILE 192    /* a longer path loses its beginning */

/* 0 in any member: its default. */
struct python_stack_limits {
    uint32_t timeout_ms;  /* 2000 */
    uint32_t max_threads; /* 64 */
    uint32_t max_frames;  /* 48 per thread, the innermost ones */
    bool no_py_spy;
};

struct python_frame {
    char function[PYTHON_FUNCTION]; /* its qualified name from Python 3.11 on; UTF-8 without control characters */
    char file[PYTHON_FILE];         /* without the folder of installed packages or of the standard library */
    int32_t line;                   /* 0: not known */
};

struct python_thread {
    uint64_t native_id; /* the kernel's number; 0: not known */
    uint64_t pthread;   /* pthread_self() of it */
    bool has_gil;
    bool is_main;      /* its number is that of the process; the decoder does not know */
    bool cut;          /* there are more frames than frames[] has */
    uint32_t n_frames; /* 0: it runs no Python code */
    struct python_frame *frames;
    char name[16]; /* of the process' thread; "": that of the process. The decoder leaves it empty. */
};

struct python_stacks {
    struct python_thread *threads; /* those that were started last come first */
    uint32_t n;
    bool cut;  /* there are more threads */
    bool torn; /* a thread's frames could not be followed to their end: they changed meanwhile */
};

/* Frees the threads and frames. NULL-safe; a zeroed struct is fine. */
void python_stacks_release(struct python_stacks *s);

/* The places of members, in bytes, in one version of CPython. */
struct python_layout {
    uint32_t version; /* 0x030B for 3.11 */
    uint32_t interpreters_head;
    uint32_t interp_next, interp_threads;
    uint32_t gil_holder, gil_locked; /* in the interpreter; before 3.12 in the runtime; 0: not known */
    uint32_t thread_next, thread_interp, thread_pthread, thread_native, thread_frame; /* thread_native 0: none */
    uint32_t cframe_current; /* 3.11, 3.12: the frame, in what thread_frame points to */
    uint32_t frame_back, frame_code, frame_instr;
    uint32_t code_file, code_name, code_line, code_table, code_bytes; /* code_bytes 0: frame_instr is an index */
    uint32_t type, type_name;
    uint32_t bytes_size, bytes_data;
    uint32_t text_state, text_length, text_ascii, text_compact;
    uint32_t text_kind_bit; /* the lowest bit of `kind` in text_state */
};

#define PYTHON_DEBUG_OFFSETS 120 /* words of _Py_DebugOffsets that are read, at most */

/*
 * Fills in the layout of a version (PY_VERSION_HEX). From 3.13 on it comes from `offsets`, the words at the start of
 * _PyRuntime, which are checked. CDDP_E_UNSUPPORTED: the version is not known, or what it says makes no sense.
 */
cddp_status python_layout_of(struct python_layout *out, uint32_t version_hex,
                             const uint64_t offsets[PYTHON_DEBUG_OFFSETS], struct cdi_error *err);

struct python_memory {
    /* Copies n bytes at this address; false: they cannot be read, or it is too late. */
    bool (*read)(void *arg, uint64_t at, void *to, size_t n);
    void *arg;
};

/*
 * Decodes the threads of all interpreters, by the runtime at this address. Release *out in any case. CDDP_E_NOT_FOUND:
 * there is no thread with a frame; CDDP_E_PROTOCOL: the contents make no sense, such as while they change;
 * CDDP_E_NOMEM.
 */
cddp_status python_decode(const struct python_memory *m, const struct python_layout *l, uint64_t runtime,
                          const struct python_stack_limits *limits, struct python_stacks *out, struct cdi_error *err);

/*
 * Returns the line of an instruction (its place in the code in bytes; negative: not begun) by the code's table of lines
 * and first line, in the format of this version (0x030B for 3.11); 0: not known.
 */
int32_t python_line_of(uint32_t version, const uint8_t *table, size_t n, int32_t first_line, int64_t place);

#endif
