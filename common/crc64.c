/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight bytes per round through eight tables ("slicing by 8", Kounavis and Berry, 2005): table[k][b] is the remainder
 * of byte b followed by k zero bytes. The tables are made on first use.
 */
#include "common/crc64.h"

#include <pthread.h>
#include <string.h>

#define POLY UINT64_C(0xc96c5795d7870f42)

static uint64_t table[8][256];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (unsigned b = 0; b < 256; b++) {
        uint64_t crc = b;

        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? POLY : 0);
        table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (unsigned b = 0; b < 256; b++)
            table[k][b] = table[0][table[k - 1][b] & 0xff] ^ (table[k - 1][b] >> 8);
}

uint64_t cdi_crc64(uint64_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;

    (void)pthread_once(&made, make_tables);
    crc = ~crc;
    for (; len >= 8; len -= 8, p += 8) {
        for (int i = 0; i < 8; i++) /* the compiler makes one load of it on little-endian machines */
            crc ^= (uint64_t)p[i] << (8 * i);
        crc = table[7][crc & 0xff] ^ table[6][(crc >> 8) & 0xff] ^ table[5][(crc >> 16) & 0xff] ^
              table[4][(crc >> 24) & 0xff] ^ table[3][(crc >> 32) & 0xff] ^ table[2][(crc >> 40) & 0xff] ^
              table[1][(crc >> 48) & 0xff] ^ table[0][crc >> 56];
    }
    for (; len > 0; len--, p++)
        crc = table[0][(crc ^ *p) & 0xff] ^ (crc >> 8);
    return ~crc;
}
