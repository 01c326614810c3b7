/* SPDX-License-Identifier: Apache-2.0 */
/* The Python stacks of a process, as py-spy tells them (py_spy.h), and as text. */
#ifndef CDI_PYTHON_STACK_H
#define CDI_PYTHON_STACK_H

#include "common/buf.h"
#include "common/error.h"

#include <stdbool.h>
#include <sys/types.h>

#define PYTHON_FUNCTION 96 /* bytes, NUL included; a longer name is cut at its end */
#define PYTHON_FILE 192    /* a longer path loses its beginning */
#define PYTHON_THREAD 32   /* a longer name is cut */

/* 0 in any member: its default. */
struct python_stack_limits {
    uint32_t timeout_ms;  /* 2000 */
    uint32_t max_threads; /* 64 */
    uint32_t max_frames;  /* 48 per thread, the innermost ones */
};

struct python_frame {
    char function[PYTHON_FUNCTION]; /* its qualified name from Python 3.11 on */
    char file[PYTHON_FILE];         /* from its package on: "torch/nn/modules/module.py", "train.py" */
    int32_t line;                   /* 0: not known */
};

struct python_thread {
    uint64_t native_id; /* the kernel's number; 0: not known, as before Python 3.11 */
    bool has_gil;
    bool is_main;
    bool cut; /* there are more frames than frames[] has */
    uint32_t n_frames;
    struct python_frame *frames;
    char name[PYTHON_THREAD]; /* that the program has given to it */
};

struct python_stacks {
    struct python_thread *threads; /* the main thread first */
    uint32_t n;
    bool cut; /* there are more threads */
};

/* Returns whether the process has mapped CPython: its program, or libpython3. Reads /proc/PID/maps only. */
bool python_stack_is_python(pid_t pid);

/*
 * Takes the stacks of pid from the n bytes that `py-spy dump --json` has printed; bytes after the JSON do not count.
 * limits NULL: the defaults. Release *out in any case. Pure. CDDP_E_PROTOCOL: they are not such JSON; CDDP_E_NOT_FOUND:
 * no thread runs Python code; CDDP_E_NOMEM.
 */
cddp_status python_stacks_parse(const char *text, size_t n, pid_t pid, const struct python_stack_limits *limits,
                                struct python_stacks *out, struct cdi_error *err);
/* Frees the threads and frames. NULL-safe; a zeroed struct is fine. */
void python_stacks_release(struct python_stacks *s);

/*
 * Appends the stacks as text to out: for each thread a line with its number and name, then a line per frame,
 * "    function (file.py:12)", innermost first. Threads with equal stacks share them. CDDP_E_LIMIT, CDDP_E_NOMEM.
 */
cddp_status python_stack_text(const struct python_stacks *stacks, struct cdi_buf *out);

#endif
