/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a communicator in the job's store. */
#ifndef CDI_COMM_KEYS_H
#define CDI_COMM_KEYS_H

#include "worker/backend/backend.h"

#define CDI_COMM_KEY_BYTES 160

/* Returns CDDP_E_INVALID for a name (NULL: none) that does not fit: names must differ as given. Pure. */
cddp_status cdi_comm_check_name(const char *member, const char *name, struct cdi_error *err);
/* Sets w->prefix. `given`: the program has described the job; joins_before: by this process, of the same job. Pure. */
void cdi_comm_set_prefix(struct cdi_world *w, bool given, int joins_before);
/* Writes the key with the communicator's prefix; "NAME/RANK", or "NAME" if rank is negative. Pure. */
void cdi_comm_key(const struct cdi_world *w, const char *name, int rank, char key[CDI_COMM_KEY_BYTES]);
/* Sets w->keys to functions that use w->store with the prefix. w stays where it is. */
void cdi_comm_set_keys(struct cdi_world *w);

#endif
