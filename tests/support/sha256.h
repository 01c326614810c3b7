/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), to compare long results with short expectations. */
#ifndef CDI_TEST_SHA256_H
#define CDI_TEST_SHA256_H

#include <stddef.h>

/* hex = the digest of len bytes at data, as 64 lower-case digits and a NUL. */
void sha256_hex(const void *data, size_t len, char hex[65]);

#endif
