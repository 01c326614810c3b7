/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process knows of the checkpoints in its directories: those that it has saved, and those that were there
 * when it loaded. A save replaces and removes no others, since they may be the result of another run. It lasts as long
 * as the process, whatever communicator saves or loads. A child of fork() begins with nothing. Any thread.
 */
#ifndef CDI_CHECKPOINT_OWNED_H
#define CDI_CHECKPOINT_OWNED_H

#include <cddp/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum cdi_owned_kind {
    CDI_OWNED_NOT,     /* unknown: another job's, perhaps */
    CDI_OWNED_WHOLE,   /* saved by this process, or there when it loaded */
    CDI_OWNED_DAMAGED, /* passed over when it loaded; the next save removes it */
    CDI_OWNED_STRAY,   /* damaged, and nothing was loaded: it may be replaced by one of the same step, and else stays */
};

/* Returns true if the process has saved to the directory, or loaded from it. */
bool cdi_owned_has(const struct stat *dir);
enum cdi_owned_kind cdi_owned_find(const struct stat *dir, uint64_t step);
/* Notes that the process has it, and forgets what was known of its steps. Returns CDDP_OK or CDDP_E_NOMEM. */
cddp_status cdi_owned_begin(const struct stat *dir);
/* Adds a step, or gives it another kind; CDI_OWNED_NOT: forgets it. Returns CDDP_OK or CDDP_E_NOMEM. */
cddp_status cdi_owned_put(const struct stat *dir, uint64_t step, enum cdi_owned_kind kind);

#endif
