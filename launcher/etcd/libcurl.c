/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/etcd/libcurl.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

cddp_status libcurl_open(struct libcurl *c, struct cdi_error *err)
{
    /* Debian also has one with GnuTLS, of the same ABI. */
    static const char *const libraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    static const char *const names[] = {
        "curl_global_init",         "curl_easy_strerror",    "curl_easy_init",           "curl_easy_cleanup",
        "curl_easy_setopt",         "curl_easy_getinfo",     "curl_multi_init",          "curl_multi_cleanup",
        "curl_multi_setopt",        "curl_multi_add_handle", "curl_multi_remove_handle", "curl_multi_assign",
        "curl_multi_socket_action", "curl_multi_info_read",  "curl_slist_append",        "curl_slist_free_all"};
    void *found[sizeof names / sizeof names[0]];

    _Static_assert(sizeof found == sizeof *c - offsetof(struct libcurl, global_init), "a name for each member");
    c->library = NULL;
    for (size_t i = 0; c->library == NULL && i < sizeof libraries / sizeof libraries[0]; i++)
        c->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    if (c->library == NULL)
        return cdi_fail(err, CDDP_E_NOT_FOUND,
                        "--rdzv_backend=etcd needs libcurl (%.200s); install it (Debian: libcurl4, Fedora: libcurl)",
                        dlerror());
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((found[i] = dlsym(c->library, names[i])) == NULL)
            return cdi_fail(err, CDDP_E_NOT_FOUND, "--rdzv_backend=etcd cannot use libcurl: %.300s", dlerror());
    memcpy((char *)c + offsetof(struct libcurl, global_init), found, sizeof found);
    if (c->global_init(LIBCURL_GLOBAL_ALL) != 0)
        return cdi_fail(err, CDDP_E_SYSTEM, "--rdzv_backend=etcd cannot use libcurl: it cannot be initialized");
    return CDDP_OK;
}
