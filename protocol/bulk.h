/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of a control connection whose payload is one JSON value of any shape, up to CDI_FRAME_MAX bytes. They describe
 * the job to people; none of them changes the state of a round. message.h has those that do.
 *
 *   agent -> server                                       server -> agent
 *   REPORT  where this node's ranks are (node_report.h);  ASK     asks for a REPORT, with stacks of some ranks or
 *           the answer to ASK, or sent by itself                  without
 *   RECORDS steps, collectives and events of this node    NOTICE  text to print on stderr: {"text": "..."}
 *           (records.h)                                   RECORDS those of all nodes, to the agent that writes them
 *   CLOCK   asks for the server's clock (records.h)       TIME    the answer to CLOCK
 *
 *   anyone with the auth token -> server                  server -> that client
 *   QUERY   asks about the job                            REPLY   the answer
 */
#ifndef CDI_BULK_H
#define CDI_BULK_H

#include <stdbool.h>
#include <stdint.h>

enum cdi_bulk_type {
    CDI_BULK_REPORT = 500,
    CDI_BULK_RECORDS = 501,
    CDI_BULK_CLOCK = 502,
    CDI_BULK_ASK = 600,
    CDI_BULK_NOTICE = 601,
    CDI_BULK_TIME = 602,
    CDI_BULK_QUERY = 700,
    CDI_BULK_REPLY = 701,
};

/* Is this the type of such a frame? Unknown types in the range are for newer peers, and ignored. */
static inline bool cdi_bulk_is(uint16_t type)
{
    return type >= 500 && type < 800;
}

#endif
