/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the user names and this program writes, in directories of everybody, such as /tmp. */
#ifndef CDI_NOFOLLOW_H
#define CDI_NOFOLLOW_H

#include <stdbool.h>

/* Returns true for a symbolic link of another user in a directory that everybody may write to. */
bool cdi_link_is_planted(const char *path);
/*
 * Returns the flag for open(2): 0 for a link that may be followed, else O_NOFOLLOW, since a link may be planted until
 * the open.
 */
int cdi_nofollow(const char *path);
/*
 * Locks a directory of this program until the descriptor that it returns is closed: systemd-tmpfiles, which removes
 * what is old, spares a locked one (tmpfiles.d(5)). -1: it cannot be opened.
 */
int cdi_lock_dir(const char *path);

#endif
