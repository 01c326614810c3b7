/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-64/XZ (ECMA-182's polynomial, reflected): finds every flipped bit, every burst of up to 64 bits, and any other
 * damage but one time in 2^64. Not a defence against somebody who means it. Any thread.
 */
#ifndef CDI_CRC64_H
#define CDI_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* Continue from crc (0 at the start) over len bytes. */
uint64_t cdi_crc64(uint64_t crc, const void *data, size_t len);

#endif
