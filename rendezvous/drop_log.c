/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/drop_log.h"

#include "common/visible.h"

#include <stdbool.h>
#include <string.h>

void drop_log_init(struct drop_log *d, int64_t now_ms)
{
    *d = (struct drop_log){.allowed = DROP_LOG_BURST, .ms = now_ms};
}

static bool drop_log_allows(struct drop_log *d, int64_t now_ms)
{
    d->allowed += (double)(now_ms - d->ms) * DROP_LOG_PER_S / 1e3;
    d->ms = now_ms;
    if (d->allowed > DROP_LOG_BURST)
        d->allowed = DROP_LOG_BURST;
    if (d->allowed < 1) {
        d->suppressed++;
        return false;
    }
    d->allowed--;
    return true;
}

void drop_log_add(struct drop_log *d, enum cdi_log_level level, const char *name, const char *why, int64_t now_ms)
{
    char line[512];

    if (level >= CDI_LOG_WARN && !drop_log_allows(d, now_ms))
        return;
    (void)cdi_visible_line(line, sizeof line, why, strlen(why)); /* the peer's text must not look like other lines */
    cdi_log(level, "RDZV-DROP", "rendezvous: connection from %s closed: %s", name, line);
}

void drop_log_tick(struct drop_log *d, int64_t now_ms)
{
    if (d->suppressed == 0 || now_ms - d->ms < 1000)
        return;
    cdi_log(CDI_LOG_WARN, "RDZV-DROPS", "rendezvous: %llu more connections closed for similar reasons",
            (unsigned long long)d->suppressed);
    d->suppressed = 0;
}
