/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's secret: reading it, and the keyed hashes by which two peers prove to each other that they have it, without
 * ever sending it. The only user of libsodium. hello.h has the conversation around it.
 */
#ifndef CDI_AUTH_H
#define CDI_AUTH_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_AUTH_NONCE 32
#define CDI_AUTH_HASH 32
#define CDI_SECRET_MAX 4096 /* bytes of the file */
#define CDI_SECRET_ENV "CDDP_AUTH_TOKEN_FILE"

/* What is kept of the file: BLAKE2b-256 of its bytes without the newlines at their end. */
struct cdi_secret {
    uint8_t key[CDI_AUTH_HASH];
};

/*
 * Read the secret from a file. It must be a regular file that nobody but its owner may read or write, of 1 to
 * CDI_SECRET_MAX bytes. Blocks on the disk only. The bytes read are wiped. CDDP_OK; CDDP_E_INVALID, CDDP_E_LIMIT,
 * CDDP_E_DENIED (its permissions), CDDP_E_SYSTEM: a sentence that names the file, and *out untouched.
 */
cddp_status cdi_secret_load(struct cdi_secret *out, const char *path, struct cdi_error *err);
/* Wipe it. NULL-safe; may be repeated. */
void cdi_secret_release(struct cdi_secret *secret);

/* 32 random bytes from the kernel. CDDP_OK, CDDP_E_SYSTEM. */
cddp_status cdi_auth_nonce(uint8_t out[CDI_AUTH_NONCE], struct cdi_error *err);

enum cdi_auth_side { CDI_AUTH_CLIENT, CDI_AUTH_SERVER };

/* What a proof speaks about: everything of the conversation that both have seen. */
struct cdi_auth_about {
    uint8_t kind;
    uint32_t round;
    const uint8_t *client_nonce, *server_nonce; /* CDI_AUTH_NONCE bytes each */
    const char *run_id;
};

/*
 * The keyed hash that this side sends: BLAKE2b-256 under secret->key of "cddp-client-1" or "cddp-server-1" | u8 kind |
 * u32 round, little-endian | client nonce | server nonce | run id.
 */
void cdi_auth_proof(const struct cdi_secret *secret, enum cdi_auth_side side, const struct cdi_auth_about *about,
                    uint8_t out[CDI_AUTH_HASH]);
/* In constant time. */
bool cdi_auth_equal(const uint8_t a[CDI_AUTH_HASH], const uint8_t b[CDI_AUTH_HASH]);

#endif
