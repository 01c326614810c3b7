/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outer half of cddprun. guard_start() forks: the caller goes on as the agent, while the parent stays behind as
 * the guard, which hands signals on, passes the exit status through, and kills every orphan if the agent dies. Both
 * are subreapers, so that whatever either of them leaves behind becomes the other's child (the agent's orphans) or is
 * found by the agent itself (end of file on the link: the guard is dead). An agent that does not move by when it said
 * it would (it is stopped, while the guard is not) is killed, and its workers with it, before another world may run
 * without them. Both killed in the same instant is the limit; a guard that is stopped (Ctrl-Z) while its agent is
 * killed acts when it is continued.
 */
#ifndef GUARD_H
#define GUARD_H

#include "common/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes from guard to agent are signal numbers; from agent to guard: */
#define GUARD_READY 'R'   /* the agent's loop runs: from now on it answers signals */
#define GUARD_STOPPED 'S' /* after TSTP: the workers are stopped, now stop us */
#define GUARD_LOOK 'L'    /* there is a time in *act_by_ms, and there was none */

struct guard_link {
    int fd;                     /* a socket to the guard, close-on-exec, the caller's to close */
    uint64_t mask;              /* as cddprun was started: signals blocked, bit n-1 for signal n */
    uint64_t ignored;           /* and ignored; the workers get both back */
    _Atomic int64_t *act_by_ms; /* shared with the guard, written by the agent: see guard_act_by() */
    char run_dir[PATH_MAX];     /* private to this run, mode 0700; removed by the guard, or by whoever survives it */
};

/*
 * Make the run directory under tmpdir and fork. Returns in the agent only; the guard never returns. On failure nothing
 * was forked. Signals in `ending` (bit n-1 for signal n) end an agent that does not answer signals yet; once it does,
 * it is told of these and of all that workers are to hear. Call it before any thread exists. CDDP_E_SYSTEM.
 */
cddp_status guard_start(struct guard_link *link, const char *tmpdir, uint64_t ending, struct cdi_error *err);

/*
 * The agent must move, which is to call this again, by that time (cdi_now_ms()'s), else the guard kills it;
 * CDI_NEVER_MS: it need not. A guard that was stopped too gives it a moment more. True: write GUARD_LOOK to the guard.
 * Never blocks.
 */
bool guard_act_by(struct guard_link *link, int64_t act_by_ms);

/*
 * One round of killing: SIGKILL to every child and to its process group where that was made below us, and reap the
 * dead. False: no child is left. Children of children turn up in a later round, since we are a subreaper. Never blocks.
 */
bool guard_sweep_once(void);
/* Rounds until no child is left or ms have passed; false: some do not die. Blocks. */
bool guard_sweep(int ms);
/* Remove a directory and what is in it; what cannot be removed is left. */
void guard_remove_dir(const char *dir);

#endif
