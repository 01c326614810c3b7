/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a communicator, and what must outlive it. */
#ifndef CDI_COMM_FINALIZE_H
#define CDI_COMM_FINALIZE_H

#include "worker/comm/state.h"

/* Frees c with its backend and store. c->ops is set; all else may be as calloc left it. */
void cdi_comm_destroy(struct cddp_comm *c);
/* Tells the store's host that this rank leaves, if a rank hosts it. `broken`: after an error. */
void cdi_comm_say_goodbye(const struct cddp_comm *c, bool broken);
/* Adds part to those that end with part->whole. */
void cdi_comm_add_part(struct cddp_comm *part);

#endif
