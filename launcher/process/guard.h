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
#define GUARD_LOOK 'L'    /* there is a time to act by, and there was none */
#define GUARD_HEARD 'H'   /* a signal that ends the job has been read */
#define GUARD_HOLD 'C'    /* with a descriptor: see guard_hold() */

struct guard_link {
    int fd;                      /* a socket to the guard, close-on-exec, the caller's to close */
    uint64_t mask;               /* as cddprun was started: signals blocked, bit n-1 for signal n */
    uint64_t ignored;            /* and ignored; the workers get both back */
    struct guard_shared *shared; /* with the guard, written by the agent */
    char run_dir[PATH_MAX];      /* private to this run, mode 0700; removed by the guard, or by whoever survives it */
};

/*
 * Forks, and makes the run directory under tmpdir. Returns in the agent only; the guard never returns. A failure before
 * the fork returns in the one process that there is. An agent that has not read an ending signal after patience_ms is
 * killed, and its workers with it; one that is stopped is continued first. Signals in `ending` (bit n-1 for signal n)
 * end an agent that does not answer signals yet; once it does, it is told of these and of all that workers are to hear.
 * Call it before any thread exists. CDDP_E_SYSTEM.
 */
cddp_status guard_start(struct guard_link *link, const char *tmpdir, uint64_t ending, int64_t patience_ms,
                        struct cdi_error *err);

/*
 * The agent must move, which is to call this again, by that time (cdi_now_ms()'s), else the guard kills it;
 * CDI_NEVER_MS: it need not. A guard that was stopped too gives it a moment more. True: write GUARD_LOOK to the guard.
 * Never blocks.
 */
bool guard_act_by(struct guard_link *link, int64_t act_by_ms);

/*
 * Give the guard a copy of the connection to the rendezvous, in place of the one before. If the agent dies, the guard
 * ends that connection in good order when the workers are dead, so that the node counts as lost at once. The kernel
 * alone would reset it if there were bytes that the agent had not read, which looks like a fault of the network. From
 * now on close() by the agent does not end the connection: it has to shut it down. Never blocks; without a guard that
 * reads it does nothing.
 */
void guard_hold(const struct guard_link *link, int fd);

/* Reaps the dead; false: no child is left. Never blocks. */
bool guard_has_children(void);
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
