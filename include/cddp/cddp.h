/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcddp: data-parallel training for C, C++ and CUDA programs. A program includes this file alone; what it declares is
 * in the headers that it includes.
 *
 * A program is started once per rank (by cddprun, torchrun, mpirun, srun, or by hand), joins its peers with
 * cddp_init(), and hands its parameters to cddp_ddp_create(). From then on it reports each gradient that is ready.
 * Gradients are averaged over all ranks in buckets while the backward pass still runs:
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
 * Errors. Functions return CDDP_OK (0) or a negative status; cddp_last_error() then holds an error message for the
 * calling thread, and cddp_last_error_info() its number and the rank that caused it. Errors of a communicator are
 * sticky: after one, every later call on it (and on its reducers) returns that error. status.h says which statuses
 * leave the communicator usable, and cddp_comm_error() tells it at any time. The library never exits and never prints,
 * with one exception: with CDDP_DEBUG=1 in the environment it prints warnings about likely mistakes to stderr
 * (gradients of the first step that are all zero, or the same on every rank; parameters that never change; gradients in
 * `grad` that are written too late). This works on the CPU only, and takes the memory of the gradients once more during
 * the first step. With CDDP_NAN_CHECK=warn it logs, as cddp_log() does, which rank has brought a NaN or an infinity.
 *
 * Signals. The library installs no signal handler, with one exception: under cddprun, cddp_init() handles SIGSEGV,
 * SIGBUS, SIGFPE, SIGILL and SIGABRT, each only if its action is the default, so that the report shows the stack of a
 * crash. The process then dies of the same signal. The handlers stay after cddp_finalize(). CDDP_CRASH_STACK=off
 * switches them off.
 *
 * Processes. What a process has joined, opened or created with libcddp is its own. A child made by fork() may hold
 * copies of it (a data loader, a program that calls exec), and may exit as it likes. Its calls on them disturb nobody:
 * functions that return a status return CDDP_E_STATE at once, with an error message that names both processes;
 * cddp_ddp_grad() returns NULL; functions that return nothing do nothing. Queries such as cddp_rank() still work. A
 * child may call cddp_init() for another job. On the CPU gradients in the arena, and memory of cddp_alloc() with
 * CDDP_MEM_COLLECTIVE, are not copied: they stay shared with the parent and the other ranks. A child may read them, and
 * must not write them, which would change the gradients of the job. A child made by vfork() shares its parent's memory,
 * so frequently called functions cannot tell the two apart: it must not call any function.
 *
 * Collectives. Every rank calls the same collectives in the same order with the same count, type and operation. If a
 * rank differs, it and its peers get CDDP_E_MISMATCH with a message that names both, instead of hanging. The same holds
 * for several reducers of one communicator: every rank uses them in the same order.
 *
 * Numbers. Results do not depend on the floating-point state of the calling thread: its rounding, whether it flushes
 * denormal numbers to zero (as in a program linked with -ffast-math), and what traps. A function computes with the
 * default state of C, and then restores the caller's, the exception flags included: they show nothing of what the
 * library computed. Functions of the program that the library calls (hooks, the log callback, `interrupted`) have the
 * caller's state. What they change in it stays changed. The library's own threads have the default state.
 *
 * Structs. Each create function takes an options struct, or NULL for the defaults. Every struct that a caller fills in
 * begins with `size`, which the caller sets to sizeof the struct, in each element of an array; CDDP_INIT(type) does
 * that. Every other member that is zero means the default. Structs grow at the end in later versions, and change in no
 * other way. So a program runs with a library that is older or newer than its header. Members past the caller's size
 * count as zero. If the caller's struct is larger than the library's, the bytes that the library does not know must be
 * zero. Otherwise the function returns CDDP_E_UNSUPPORTED, and the error message gives the offset of the first such
 * byte. A size that was not set is CDDP_E_INVALID. A struct that the library fills in has its size set by the caller,
 * too. It is written up to the smaller of both sizes, so a program zeroes it before.
 *
 * Enumerations are 32 bits wide, also with -fshort-enums, and get new enumerators: a switch over one has a default.
 *
 * The promise. Functions, constants, and members of structs stay as they are from one version to the next, where
 * pointers and long have 64 bits (LP64). The promise does not cover the texts of error messages, defaults and limits.
 *
 * Experimental. The interfaces in cddp/experimental/ may change in any version, or be removed. A program that uses them
 * defines CDDP_EXPERIMENTAL before it includes this file, and is rebuilt for each version.
 */
#ifndef CDDP_H
#define CDDP_H

#include <cddp/status.h>
#include <cddp/version.h>

/* In the order in which one reads them. */
/* clang-format off */
#include <cddp/types.h>
#include <cddp/comm.h>
#include <cddp/memory.h>
#include <cddp/coll.h>
#include <cddp/ddp.h>
#include <cddp/data.h>
#include <cddp/checkpoint.h>
#include <cddp/store.h>
#include <cddp/log.h>

#ifdef CDDP_EXPERIMENTAL
#include <cddp/experimental/ddp.h>
#include <cddp/experimental/stream.h>
#include <cddp/experimental/hook.h>
#include <cddp/experimental/powersgd.h>
#include <cddp/experimental/optim.h>
#include <cddp/experimental/fsdp.h>
#endif
/* clang-format on */

#endif
