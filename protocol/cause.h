/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of several failures is the cause of the others: the one that the headline of a report names. Agents ask it
 * about the workers of their node, the rendezvous server about the nodes. docs/internals/protocol.md lists who knows
 * what first. Pure.
 */
#ifndef CDI_CAUSE_H
#define CDI_CAUSE_H

#include "protocol/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A busy agent notices ends late: a sudden end (a kill, the loss of a node) is the cause of an exit that was noticed up
 * to this time before it.
 */
#define CDI_CAUSE_SUDDEN_MS 1000

/* One failure, as far as it is known. */
struct cdi_cause {
    enum cdi_end_kind kind; /* NONE: no failure */
    int32_t code;           /* as in struct cdi_failure */
    int32_t rank;           /* -1: not known */
    int32_t error;          /* the status of libcddp's last error in that process; CDDP_OK: none, or not known */
    int32_t blamed;         /* the rank that this error names, or that was missing; -1: none */
    int ordered;            /* the signal by which launchers had ended the job before; 0: none */
    int64_t at_ms;          /* by one clock for all failures; 0 or less: not known */
    bool recorded;          /* at_ms is when the process recorded its error, and not when its end was noticed */
};

enum cdi_cause_class {
    CDI_CAUSE_OWN,     /* nothing says that it follows from another failure */
    CDI_CAUSE_FOLLOWS, /* its own error says so: it names another rank, or has the status PEER, ABORTED, REMOTE, CLOSED;
                          and no SIGKILL has ended it */
    CDI_CAUSE_ORDERED, /* it died of the signal that ended the job */
    CDI_CAUSE_NONE,
};

enum cdi_cause_class cdi_cause_class_of(const struct cdi_cause *c);
/* Returns what the rule needs of *f, whose time is at_ms by the caller's clock if time_ms says that it is known. */
struct cdi_cause cdi_cause_of(const struct cdi_failure *f, int64_t at_ms);
/*
 * Returns true if a is the cause rather than b: its class is lower; or it was earlier, where a time that is not known
 * counts as later than any other; or its rank is lower. This is an order of all failures: their arrival does not
 * matter.
 */
bool cdi_cause_precedes(const struct cdi_cause *a, const struct cdi_cause *b);
/* May the end of a process, of this kind, follow from a sudden end elsewhere? Not if it was sudden itself. */
bool cdi_cause_may_follow(enum cdi_end_kind kind, int32_t code);

#endif
