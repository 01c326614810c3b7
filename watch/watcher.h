/* SPDX-License-Identifier: Apache-2.0 */
/* All that watches a running job in an agent. */
#ifndef WATCH_WATCHER_H
#define WATCH_WATCHER_H

#include "launcher/agent/watcher.h"

extern const struct watcher_ops watch_watcher;

#endif
