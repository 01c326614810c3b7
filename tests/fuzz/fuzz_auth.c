/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Auth token files with any contents and permissions, and the proofs: trailing newlines do not count, every other byte
 * does, and a proof is valid for one handshake only.
 */
#include "protocol/auth.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns the path of a file with these bytes; close *fd. */
static void make_file(char path[64], int *fd, const uint8_t *bytes, size_t len, mode_t mode)
{
    *fd = memfd_create("secret", MFD_CLOEXEC);
    if (*fd < 0 || fchmod(*fd, mode) != 0 || write(*fd, bytes, len) != (ssize_t)len)
        abort();
    (void)snprintf(path, 64, "/proc/self/fd/%d", *fd);
}

static cddp_status load(struct cdi_secret *secret, const uint8_t *bytes, size_t len, mode_t mode)
{
    struct cdi_error err = {0};
    char path[64];
    cddp_status st;
    int fd;

    make_file(path, &fd, bytes, len, mode);
    st = cdi_secret_load(secret, path, &err);
    (void)close(fd);
    if (st != CDDP_OK && strstr(err.msg, path) == NULL)
        abort(); /* the error message names the file */
    if (cdi_secret_load(secret, path, &err) != CDDP_E_SYSTEM)
        abort(); /* the descriptor is closed */
    return st;
}

static size_t without_newlines(const uint8_t *bytes, size_t len)
{
    while (len > 0 && (bytes[len - 1] == '\n' || bytes[len - 1] == '\r'))
        len--;
    return len;
}

static cddp_status expected(const uint8_t *bytes, size_t len, mode_t mode)
{
    if ((mode & 077) != 0)
        return CDDP_E_DENIED;
    if (len > CDI_SECRET_MAX)
        return CDDP_E_LIMIT;
    return without_newlines(bytes, len) < CDI_SECRET_MIN ? CDDP_E_INVALID : CDDP_OK;
}

/* A proof equals only itself, not the other side's, and none of another handshake. */
static void check_proofs(const struct cdi_secret *secret, const uint8_t *data, size_t size)
{
    uint8_t nonces[2][CDI_AUTH_NONCE] = {{0}}, mine[CDI_AUTH_HASH], other[CDI_AUTH_HASH];
    struct cdi_auth_about about = {.client_nonce = nonces[0], .server_nonce = nonces[1], .run_id = "job"};

    memcpy(nonces, data, size < sizeof nonces ? size : sizeof nonces);
    about.kind = size > 0 ? data[size - 1] : 0;
    about.round = (uint32_t)size;
    cdi_auth_proof(secret, CDI_AUTH_CLIENT, &about, mine);
    cdi_auth_proof(secret, CDI_AUTH_CLIENT, &about, other);
    if (!cdi_auth_equal(mine, other))
        abort();
    for (int change = 0; change < 6; change++) {
        struct cdi_auth_about another = about;
        uint8_t nonce[CDI_AUTH_NONCE];

        memcpy(nonce, change == 1 ? nonces[0] : nonces[1], sizeof nonce);
        nonce[about.round % sizeof nonce] ^= 1;
        another.client_nonce = change == 1 ? nonce : nonces[0];
        another.server_nonce = change == 2 ? nonce : nonces[1];
        another.kind ^= change == 3;
        another.round ^= change == 4 ? 1u << 31 : 0;
        another.run_id = change == 5 ? "jo" : "job";
        cdi_auth_proof(secret, change == 0 ? CDI_AUTH_SERVER : CDI_AUTH_CLIENT, &another, other);
        if (cdi_auth_equal(mine, other))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const no_files[] = {"/dev/null", "/", ""};
    struct cdi_secret secret = {{0}}, again = {{0}};
    uint8_t nonce[CDI_AUTH_NONCE];
    size_t len, proper;
    mode_t mode;
    uint8_t how;

    if (size < 1)
        return 0;
    how = data[0];
    mode = 0600 | (how % 8 == 0 ? how >> 3 : 0); /* seldom accessible to others */
    data++, size--;
    len = size > 0 && (how & 0x80) != 0 ? size * 64 : size; /* files of any length from short inputs */
    if (cdi_secret_load(&secret, no_files[how % 3], NULL) == CDDP_OK || cdi_auth_nonce(nonce, NULL) != CDDP_OK)
        abort();
    uint8_t *bytes = malloc(len + 2);
    if (bytes == NULL)
        abort();
    for (size_t i = 0; i < len; i++)
        bytes[i] = data[i % size];
    if (load(&secret, bytes, len, mode) != expected(bytes, len, mode))
        abort();
    proper = without_newlines(bytes, len);
    if (expected(bytes, len, mode) == CDDP_OK) {
        check_proofs(&secret, data, size);
        if (load(&again, bytes, proper, 0600) != CDDP_OK || memcmp(&again, &secret, sizeof secret) != 0)
            abort();
        bytes[proper - 1] ^= 0x40;
        if (load(&again, bytes, proper, 0600) == CDDP_OK && memcmp(&again, &secret, sizeof secret) == 0)
            abort();
        cdi_secret_release(&secret);
    }
    free(bytes);
    return 0;
}
