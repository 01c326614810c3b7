/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the flight page for a crash: the worker's signal handler notes what has happened, tells the agent by a
 * byte in a pipe of the agent's, and waits for a moment, in which the agent reads the stack. Until then it costs
 * nothing: the worker opens the pipe, by its path in /proc, only when it crashes.
 */
#ifndef CDI_FLIGHT_CRASH_H
#define CDI_FLIGHT_CRASH_H

#include "common/time_limits.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_CRASH_ENV "CDDP_CRASH_STACK"
#define CDI_CRASH_REGISTERS 33
#define CDI_CRASH_WAIT_MS (1000 * CDI_LIMIT_CRASH_STACK_S) /* of a worker for its agent */

/* Bits of `armed` beside those of the signals. */
#define CDI_CRASH_LOOKED 1u /* libcddp has looked at the signals: without it the report has nothing about a stack */
#define CDI_CRASH_LEFT 2u   /* libcddp is unloaded: its handlers are gone */
#define CDI_CRASH_BIT(signal) (1u << (signal)) /* this signal's handler is libcddp's */

/* Why the handler has waited for the agent, or not. */
enum cdi_crash_state { CDI_CRASH_NONE, CDI_CRASH_WAITS, CDI_CRASH_TRACED, CDI_CRASH_UNREACHED };

/* Plain members are written before the atomic one that publishes them. */
struct cdi_flight_crash {
    /* Agent -> worker. */
    _Atomic int32_t reader_pid, reader_fd; /* the agent, and its end of the pipe; 0: it reads no stacks */
    _Atomic uint32_t read;                 /* a futex word: 1: the agent does not need the process any more */
    /* Worker -> agent. */
    _Atomic uint32_t armed;
    _Atomic uint32_t state; /* enum cdi_crash_state; publishes the rest */
    int32_t signal, code;   /* si_signo, si_code */
    int32_t pid, tid;
    uint32_t n_registers;          /* in the order of DWARF's numbers */
    _Atomic uint32_t reader_inode; /* agent -> worker: of its pipe, the low 32 bits; here, since the place was free */
    uint64_t address;              /* si_addr */
    uint64_t pc, registers[CDI_CRASH_REGISTERS];
};

/* --------------------------------------------------------------------------------------------- agent's side ---- */

/* Tells the worker that this process reads stacks when a byte arrives in the pipe with the end fd. */
void cdi_crash_offer(struct cdi_flight_crash *c, int fd);
/*
 * Copies what the worker has noted, checked for sizes. Returns its state; CDI_CRASH_NONE: nothing yet, or a signal, a
 * pid or a tid that there cannot be. Then it has only `armed`.
 */
enum cdi_crash_state cdi_crash_look(const struct cdi_flight_crash *c, struct cdi_flight_crash *copy);
/* Lets the worker go on, to its end. Any thread. */
void cdi_crash_tell_read(struct cdi_flight_crash *c);

/* -------------------------------------------------------------------------------------------- worker's side ---- */

/* Does an agent read stacks? */
bool cdi_crash_has_reader(const struct cdi_flight_crash *c);
/*
 * Is the agent's pipe where the page says? Not if the agent is dead and its pid is another process's by now, or if this
 * process is in another pid namespace. Async-signal-safe.
 */
bool cdi_crash_is_there(const struct cdi_flight_crash *c);
/* Tells the agent, by a byte in its pipe. false: it cannot be reached. Async-signal-safe. */
bool cdi_crash_tell(const struct cdi_flight_crash *c);
/* Waits until the agent has read the stack, or CDI_CRASH_WAIT_MS. Async-signal-safe. */
void cdi_crash_wait_read(struct cdi_flight_crash *c);

#endif
