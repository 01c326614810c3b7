/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/auth.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static cddp_status open_secret(const char *path, int *out, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    struct stat st;

    if (fd < 0 || fstat(fd, &st) != 0)
        return cdi_fail_errno(err, errno, "cannot read the job's auth token from '%.512s'", path);
    if (!S_ISREG(st.st_mode))
        return cdi_fail(err, CDDP_E_INVALID, "the auth token file '%.512s' is not a regular file", path);
    if ((st.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return cdi_fail(err, CDDP_E_DENIED,
                        "other users can access the auth token file '%.512s' (mode %04o); run chmod 600 "
                        "on it",
                        path, (unsigned)(st.st_mode & 07777));
    *out = cdi_steal_fd(&fd);
    return CDDP_OK;
}

/* Reads at most cap bytes; *len is their number. */
static cddp_status auth_read_all(int fd, const char *path, uint8_t *bytes, size_t cap, size_t *len,
                                 struct cdi_error *err)
{
    *len = 0;
    while (*len < cap) {
        ssize_t n = read(fd, bytes + *len, cap - *len);

        if (n == 0)
            break;
        if (n < 0 && errno != EINTR)
            return cdi_fail_errno(err, errno, "cannot read the job's auth token from '%.512s'", path);
        if (n > 0)
            *len += (size_t)n;
    }
    return CDDP_OK;
}

cddp_status cdi_secret_load(struct cdi_secret *out, const char *path, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = -1;
    uint8_t bytes[CDI_SECRET_MAX + 1];
    size_t len;
    cddp_status st;

    if (sodium_init() < 0)
        return cdi_fail(err, CDDP_E_SYSTEM, "cannot initialize libsodium");
    st = open_secret(path, &fd, err);
    if (st != CDDP_OK)
        return st;
    st = auth_read_all(fd, path, bytes, sizeof bytes, &len, err);
    if (st == CDDP_OK && len > CDI_SECRET_MAX)
        st = cdi_fail(err, CDDP_E_LIMIT, "the auth token in '%.512s' is longer than %d bytes", path, CDI_SECRET_MAX);
    while (len > 0 && (bytes[len - 1] == '\n' || bytes[len - 1] == '\r'))
        len--;
    if (st == CDDP_OK && len == 0)
        st = cdi_fail(err, CDDP_E_INVALID, "the auth token file '%.512s' is empty", path);
    if (st == CDDP_OK && len < CDI_SECRET_MIN)
        st = cdi_fail(err, CDDP_E_INVALID,
                      "the auth token in '%.512s' has %zu bytes, and at least %d are needed: cddprun --make_token=FILE "
                      "writes a good one",
                      path, len, CDI_SECRET_MIN);
    if (st == CDDP_OK)
        (void)crypto_generichash(out->key, sizeof out->key, bytes, len, NULL, 0);
    sodium_memzero(bytes, sizeof bytes);
    return st;
}

void cdi_secret_release(struct cdi_secret *secret)
{
    if (secret != NULL)
        sodium_memzero(secret, sizeof *secret);
}

cddp_status cdi_auth_nonce(uint8_t out[CDI_AUTH_NONCE], struct cdi_error *err)
{
    ssize_t n;

    do /* never partial for this few bytes */
        n = getrandom(out, CDI_AUTH_NONCE, 0);
    while (n < 0 && errno == EINTR);
    return n == CDI_AUTH_NONCE ? CDDP_OK : cdi_fail_errno(err, errno, "cannot get random bytes from the kernel");
}

void cdi_auth_proof(const struct cdi_secret *secret, enum cdi_auth_side side, const struct cdi_auth_about *about,
                    uint8_t out[CDI_AUTH_HASH])
{
    const char *label = side == CDI_AUTH_CLIENT ? "cddp-client-1" : "cddp-server-1";
    const uint8_t head[5] = {about->kind, (uint8_t)about->round, (uint8_t)(about->round >> 8),
                             (uint8_t)(about->round >> 16), (uint8_t)(about->round >> 24)};
    crypto_generichash_state h;

    /* None of these can fail with valid lengths. */
    (void)crypto_generichash_init(&h, secret->key, sizeof secret->key, CDI_AUTH_HASH);
    (void)crypto_generichash_update(&h, (const uint8_t *)label, strlen(label));
    (void)crypto_generichash_update(&h, head, sizeof head);
    (void)crypto_generichash_update(&h, about->client_nonce, CDI_AUTH_NONCE);
    (void)crypto_generichash_update(&h, about->server_nonce, CDI_AUTH_NONCE);
    (void)crypto_generichash_update(&h, (const uint8_t *)about->run_id, strlen(about->run_id));
    (void)crypto_generichash_final(&h, out, CDI_AUTH_HASH);
    sodium_memzero(&h, sizeof h);
}

bool cdi_auth_equal(const uint8_t a[CDI_AUTH_HASH], const uint8_t b[CDI_AUTH_HASH])
{
    return sodium_memcmp(a, b, CDI_AUTH_HASH) == 0;
}
