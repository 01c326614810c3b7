/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a communicator. */
#ifndef CDI_COMM_FINALIZE_H
#define CDI_COMM_FINALIZE_H

#include "worker/comm/state.h"

/* Frees c with its backend and store. c->ops is set; all other members may be zero. */
void cdi_comm_destroy(struct cddp_comm *c);
/* Says goodbye to the rank that hosts the store, or waits for all goodbyes if this rank hosts it. `broken`: after an
 * error. */
void cdi_comm_say_goodbye(const struct cddp_comm *c, bool broken);
/* Adds part to those that are over when part->whole is. */
void cdi_comm_add_part(struct cddp_comm *part);

#endif
