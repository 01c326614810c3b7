/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines about closed connections, limited in rate: a flood of bad clients must not fill the log. */
#ifndef RDZV_DROP_LOG_H
#define RDZV_DROP_LOG_H

#include "common/log.h"

#include <stdint.h>

/* At most this many lines at once, and then this many per second; the rest is only counted. */
#define DROP_LOG_BURST 50
#define DROP_LOG_PER_S 5

struct drop_log {
    double allowed; /* lines, at time `ms` */
    int64_t ms;
    uint64_t suppressed; /* since the last line */
};

void drop_log_init(struct drop_log *d, int64_t now_ms);
/* Logs that the connection from `name` was closed. The limit applies to CDI_LOG_WARN and above. */
void drop_log_add(struct drop_log *d, enum cdi_log_level level, const char *name, const char *why, int64_t now_ms);
/* Logs the number of suppressed lines, when none was added for a second. */
void drop_log_tick(struct drop_log *d, int64_t now_ms);

#endif
