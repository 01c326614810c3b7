/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the conformance suite about operations that are queued as one (conformance_group.c). */
#ifndef CDI_TEST_CONFORMANCE_GROUP_H
#define CDI_TEST_CONFORMANCE_GROUP_H

#include "ranks.h"

int group_of_messages(struct rank *r);
int group_of_collectives(struct rank *r);
int group_made(struct rank *r);
int group_asked_for(struct rank *r);
int group_differs(struct rank *r);

#endif
