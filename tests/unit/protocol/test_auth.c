/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/auth.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

CDI_SUITE(auth);

static char path[64];

static void write_file(const void *bytes, size_t len, mode_t mode)
{
    int fd;

    (void)snprintf(path, sizeof path, "/tmp/cddp_auth_XXXXXX");
    fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, bytes, len), (ssize_t)len);
    cr_assert_eq(fchmod(fd, mode), 0);
    (void)close(fd);
}

static cddp_status load(const void *bytes, size_t len, mode_t mode, struct cdi_secret *out, struct cdi_error *err)
{
    cddp_status st;

    write_file(bytes, len, mode);
    st = cdi_secret_load(out, path, err);
    (void)unlink(path);
    return st;
}

Test(auth, ignores_trailing_newlines)
{
    struct cdi_secret a, b, c, d;
    struct cdi_error err;

    cr_assert_eq(load("hunter2-hunter2-", 16, 0600, &a, &err), CDDP_OK);
    cr_assert_eq(load("hunter2-hunter2-\n", 17, 0400, &b, &err), CDDP_OK);
    cr_assert_eq(load("hunter2-hunter2-\r\n", 18, 0600, &c, &err), CDDP_OK);
    cr_assert_eq(load("hunter3-hunter3-\n", 17, 0600, &d, &err), CDDP_OK);
    cr_assert(cdi_auth_equal(a.key, b.key) && cdi_auth_equal(a.key, c.key));
    cr_assert_not(cdi_auth_equal(a.key, d.key));
}

Test(auth, key_is_the_hash_of_the_file)
{
    /* BLAKE2b-256("abc-abc-abc-abc-"), by Python's hashlib */
    static const uint8_t known[CDI_AUTH_HASH] = {0xe5, 0xfb, 0x47, 0xe2, 0xdc, 0xfa, 0xca, 0xf9, 0x0c, 0x30, 0x0a,
                                                 0xcd, 0xd0, 0x38, 0xec, 0x9f, 0xa5, 0xa1, 0x91, 0xe1, 0x77, 0x3e,
                                                 0x37, 0x81, 0x73, 0xa1, 0x2d, 0x81, 0x8b, 0x8b, 0x23, 0xbc};
    struct cdi_secret a;

    cr_assert_eq(load("abc-abc-abc-abc-\n", 17, 0600, &a, NULL), CDDP_OK);
    cr_assert_eq(memcmp(a.key, known, sizeof known), 0);
}

Test(auth, rejects_file_that_others_can_access)
{
    static const mode_t modes[] = {0640, 0604, 0602, 0660, 0666};
    struct cdi_secret a;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        cr_assert_eq(load("secret", 6, modes[i], &a, &err), CDDP_E_DENIED, "mode %o", modes[i]);
        cr_assert_not_null(strstr(err.msg, path), "%s", err.msg);
        cr_assert_not_null(strstr(err.msg, "chmod 600"), "%s", err.msg);
    }
}

Test(auth, rejects_invalid_token_files)
{
    char big[CDI_SECRET_MAX + 2];
    struct cdi_secret a;
    struct cdi_error err;

    memset(big, 'x', sizeof big);
    cr_assert_eq(load("", 0, 0600, &a, &err), CDDP_E_INVALID);
    cr_assert_not_null(strstr(err.msg, "is empty"), "%s", err.msg);
    cr_assert_eq(load("\n\n", 2, 0600, &a, &err), CDDP_E_INVALID);
    cr_assert_eq(load("fifteen-bytes..\n", 16, 0600, &a, &err), CDDP_E_INVALID);
    cr_assert(strstr(err.msg, "has 15 bytes") != NULL && strstr(err.msg, "--make_token") != NULL, "%s", err.msg);
    cr_assert_eq(load(big, CDI_SECRET_MAX, 0600, &a, &err), CDDP_OK);
    cr_assert_eq(load(big, CDI_SECRET_MAX + 1, 0600, &a, &err), CDDP_E_LIMIT);
    cr_assert_eq(cdi_secret_load(&a, "/nowhere/secret", &err), CDDP_E_SYSTEM);
    cr_assert_not_null(strstr(err.msg, "'/nowhere/secret': No such file"), "%s", err.msg);
    cr_assert_eq(cdi_secret_load(&a, "/tmp", &err), CDDP_E_INVALID);
    (void)snprintf(path, sizeof path, "/tmp/cddp_auth_fifo_%d", (int)getpid());
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(cdi_secret_load(&a, path, &err), CDDP_E_INVALID, "a FIFO must not block");
    (void)unlink(path);
}

Test(auth, proof_depends_on_every_input)
{
    struct cdi_secret one = {.key = {1}}, two = {.key = {2}};
    const uint8_t x[CDI_AUTH_NONCE] = {3}, y[CDI_AUTH_NONCE] = {4};
    const struct cdi_auth_about base = {1, 7, x, y, "job"};
    struct cdi_auth_about about[6] = {base, base, base, base, base, base};
    uint8_t first[CDI_AUTH_HASH], again[CDI_AUTH_HASH], other[CDI_AUTH_HASH];

    about[1].kind = 2;
    about[2].round = 7u << 24;
    about[3].client_nonce = y;
    about[4].server_nonce = x;
    about[5].run_id = "jo";
    cdi_auth_proof(&one, CDI_AUTH_CLIENT, &base, first);
    cdi_auth_proof(&one, CDI_AUTH_CLIENT, &about[0], again);
    cr_assert(cdi_auth_equal(first, again));
    cdi_auth_proof(&one, CDI_AUTH_SERVER, &base, other);
    cr_assert_not(cdi_auth_equal(first, other));
    cdi_auth_proof(&two, CDI_AUTH_CLIENT, &base, other);
    cr_assert_not(cdi_auth_equal(first, other));
    for (int i = 1; i < 6; i++) {
        cdi_auth_proof(&one, CDI_AUTH_CLIENT, &about[i], other);
        cr_assert_not(cdi_auth_equal(first, other), "change %d", i);
    }
}

Test(auth, release_wipes_the_token)
{
    struct cdi_secret a, none = {{0}};

    cr_assert_eq(load("secret-secret-secret", 20, 0600, &a, NULL), CDDP_OK);
    cdi_secret_release(&a);
    cr_assert_eq(memcmp(&a, &none, sizeof a), 0);
    cdi_secret_release(NULL);
}

Test(auth, nonces_differ)
{
    uint8_t a[CDI_AUTH_NONCE], b[CDI_AUTH_NONCE];

    cr_assert_eq(cdi_auth_nonce(a, NULL), CDDP_OK);
    cr_assert_eq(cdi_auth_nonce(b, NULL), CDDP_OK);
    cr_assert_neq(memcmp(a, b, sizeof a), 0);
}
