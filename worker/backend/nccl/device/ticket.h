/* SPDX-License-Identifier: Apache-2.0 */
/* How words of a stream compare with tickets: pure, and without CUDA. */
#ifndef CDI_NCCL_TICKET_H
#define CDI_NCCL_TICKET_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Returns whether the word has reached the ticket. The word is the low half of a ticket: the result is right if the two
 * are less than 2^31 apart.
 */
static inline bool cdi_ticket_reached(uint32_t word, uint64_t ticket)
{
    return (int32_t)(word - (uint32_t)ticket) >= 0;
}

#endif
