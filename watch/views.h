/* SPDX-License-Identifier: Apache-2.0 */
/* All views of a job that a rendezvous server gives to those who ask. */
#ifndef WATCH_VIEWS_H
#define WATCH_VIEWS_H

#include "rendezvous/views.h"

extern const struct rdzv_views watch_views;

#endif
