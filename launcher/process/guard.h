/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outer half of cddprun. guard_start() forks: the caller continues as the agent, and the parent becomes the guard,
 * which forwards signals, returns the exit status, and kills every orphan if the agent dies. Both are subreapers:
 * orphans of the agent become children of the guard, and the agent detects the death of the guard by the end of file on
 * their link. The guard kills an agent, with its workers, that does not act by the time it has announced (because it is
 * stopped, but the guard is not), before another round may run without them. Not covered: both killed in the same
 * instant. A guard that is stopped (Ctrl-Z) while its agent is killed acts when it is continued.
 */
#ifndef GUARD_H
#define GUARD_H

#include "common/error.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes from guard to agent are signal numbers; from agent to guard: */
#define GUARD_READY 'R'      /* the agent's loop runs: from now on the agent handles signals */
#define GUARD_STOPPED 'S'    /* after TSTP: the workers are stopped, now stop us */
#define GUARD_DEADLINE 'L'   /* there is a time to act by now, and there was none before */
#define GUARD_GOT_SIGNAL 'H' /* a signal that ends the job has been read */
#define GUARD_HOLD 'C'       /* with a descriptor: see guard_hold() */

struct guard_link {
    pid_t guard;                 /* 0: guard_start() has not forked */
    int fd;                      /* a socket to the guard, close-on-exec, the caller's to close */
    uint64_t mask;               /* signals blocked at cddprun's start, bit n-1 for signal n */
    uint64_t ignored;            /* and ignored; the workers get both back */
    struct guard_shared *shared; /* shared with the guard; the agent writes it */
    char run_dir[PATH_MAX];      /* private to this run, mode 0700; removed by the guard, or by the agent */
};

/*
 * Returns whether this process ignores the signal: as long as it has changed nothing, because nohup or a shell's
 * background job had it ignored at the start. It must stay so.
 */
bool guard_is_ignored(int signal);
/*
 * Makes a write beyond the limit of file sizes (ulimit -f) an error to report, not a signal to die of. Workers get the
 * signal back. Call it once, first.
 */
void guard_outlive_file_limit(void);
/*
 * Fills *set with SIGCHLD, the signals in `ending` (bit n-1 for signal n) and all signals for workers, but for those
 * that are ignored: the one list of what every outer process of cddprun receives and forwards.
 */
void guard_signals(uint64_t ending, sigset_t *set);

/*
 * Forks, and makes the run directory under tmpdir (NULL: none). Returns in the agent only, or after a failure before
 * the fork; the guard never returns. The guard kills an agent, with its workers, that has not read an ending signal
 * after patience_ms; it continues a stopped one first. Signals in `ending` (bit n-1 for signal n) end an agent that
 * does not handle signals yet; after that they are forwarded to it, as are all signals for workers. Call it before any
 * thread exists. CDDP_E_SYSTEM.
 */
cddp_status guard_start(struct guard_link *link, const char *tmpdir, uint64_t ending, int64_t patience_ms,
                        struct cdi_error *err);

/*
 * Sets the time (of cdi_now_ms()) by which the agent must call this again, or the guard kills it; CDI_NEVER_MS: none. A
 * guard that was stopped, too, allows a little more time. Returns true if the caller must write GUARD_DEADLINE to the
 * guard. Never blocks.
 */
bool guard_act_by(struct guard_link *link, int64_t act_by_ms);

/*
 * Gives the guard a copy of the connection to the rendezvous, which replaces the one before. If the agent dies, the
 * guard shuts that connection down after the workers are dead, so that the node counts as lost immediately. The kernel
 * alone would reset it if the agent had left bytes unread, which looks like a network failure. From now on close() by
 * the agent does not end the connection: the agent has to shut it down. Never blocks; does nothing if the guard does
 * not read.
 */
void guard_hold(const struct guard_link *link, int fd);

/*
 * For an agent whose link has ended: the guard cannot kill the orphans any more. Kills them now, in any state, and
 * exits.
 */
_Noreturn void guard_is_gone(const struct guard_link *link);
/* For an agent that ends by itself: removes the run directory, which nobody would do if the guard is killed now. */
void guard_leave(const struct guard_link *link);

/* Reaps the dead; false: no child is left. Never blocks. */
bool guard_has_children(void);
/*
 * Sends SIGKILL to every child, and to its process group if it was made below this process, and reaps the dead. Returns
 * false if no child is left. Children of children appear in a later call, since this process is a subreaper. Never
 * blocks.
 */
bool guard_sweep_once(void);
/* Repeats guard_sweep_once() until no child is left or ms have passed; false: some do not die. Blocks. */
bool guard_sweep(int ms);
/* Removes a directory and its contents, as far as possible. */
void guard_remove_dir(const char *dir);

#endif
