/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's auth token: reading it, and the keyed hashes by which two peers prove to each other that they have it,
 * without sending it. The only user of libsodium. hello.h defines the messages.
 */
#ifndef CDI_AUTH_H
#define CDI_AUTH_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_AUTH_NONCE 32
#define CDI_AUTH_HASH 32
#define CDI_SECRET_MIN 16   /* bytes of a token: a shorter one can be guessed from one recorded handshake */
#define CDI_SECRET_MAX 4096 /* bytes of the file */
#define CDI_SECRET_ENV "CDDP_AUTH_TOKEN_FILE"

/* The token: BLAKE2b-256 of the file without trailing newlines. */
struct cdi_secret {
    uint8_t key[CDI_AUTH_HASH];
};

/*
 * Reads the auth token, of at least CDI_SECRET_MIN bytes without trailing newlines, from a regular file of at most
 * CDI_SECRET_MAX bytes that only its owner may access. Blocks on the
 * disk only, and wipes its buffer. Returns CDDP_OK, CDDP_E_INVALID, CDDP_E_LIMIT, CDDP_E_DENIED (permissions) or
 * CDDP_E_SYSTEM. An error message names the file; *out is then unchanged.
 */
cddp_status cdi_secret_load(struct cdi_secret *out, const char *path, struct cdi_error *err);
/* Wipes the token. NULL-safe; may be repeated. */
void cdi_secret_release(struct cdi_secret *secret);

/* Sets out to random bytes from the kernel. Returns CDDP_OK or CDDP_E_SYSTEM. */
cddp_status cdi_auth_nonce(uint8_t out[CDI_AUTH_NONCE], struct cdi_error *err);

enum cdi_auth_side { CDI_AUTH_CLIENT, CDI_AUTH_SERVER };

/* The input of a proof: all of the handshake that both sides know. */
struct cdi_auth_about {
    uint8_t kind;
    uint32_t round;
    const uint8_t *client_nonce, *server_nonce; /* CDI_AUTH_NONCE bytes each */
    const char *run_id;
};

/*
 * Computes the keyed hash that this side sends: BLAKE2b-256 under secret->key of "cddp-client-1" or "cddp-server-1" |
 * u8 kind | u32 round, little-endian | client nonce | server nonce | run id.
 */
void cdi_auth_proof(const struct cdi_secret *secret, enum cdi_auth_side side, const struct cdi_auth_about *about,
                    uint8_t out[CDI_AUTH_HASH]);
/* Compares in constant time. */
bool cdi_auth_equal(const uint8_t a[CDI_AUTH_HASH], const uint8_t b[CDI_AUTH_HASH]);

#endif
