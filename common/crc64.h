/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-64/XZ (ECMA-182's polynomial, reflected): finds every flipped bit, every burst of up to 64 bits, and any other
 * damage except with a chance of 1 in 2^64. Not a defence against intent. Any thread.
 */
#ifndef CDI_CRC64_H
#define CDI_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* Returns the checksum of len more bytes after those of crc, which is 0 at the start. */
uint64_t cdi_crc64(uint64_t crc, const void *data, size_t len);

#endif
