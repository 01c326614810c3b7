/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A module: a backend in a shared library of its own, cddp_NAME.so, which libcddp opens where it is wanted, so that one
 * build serves machines with and without a GPU. A module's undefined symbols are libc's only: what it needs of libcddp
 * comes in the host table. Both sides are of one build; the ABI number and the version say so.
 */
#ifndef CDI_BACKEND_LOADER_H
#define CDI_BACKEND_LOADER_H

#include "worker/backend/backend.h"

#define CDI_MODULE_ABI 5
#define CDI_MODULE_SYMBOL "cddp_module" /* the one symbol of a module: a const struct cdi_module */
#define CDI_MODULE_HOST_ID 24           /* bytes that are equal in processes of one host */

/* What a module may use of libcddp. The flight page is the communicator's, by the rules of protocol/flight.h. */
struct cdi_host {
    size_t size;
    void (*debug)(const char *id, const char *text); /* one log line at debug level */
    const char *(*env)(const char *name);            /* NULL where it is unset or empty */
    void *(*alloc)(size_t n, size_t size);           /* cleared; NULL: out of memory */
    void (*release)(void *p);                        /* NULL-safe */
    void (*host_id)(uint8_t id[CDI_MODULE_HOST_ID]);
    cddp_status (*flight_open)(struct cdi_flight **out, struct cdi_error *err); /* a private one */
    void (*flight_close)(struct cdi_flight *f);                                 /* one of flight_open's; NULL-safe */
    uint64_t (*flight_enqueue)(struct cdi_flight *f, enum cdi_flight_op op, uint32_t dtype, uint64_t count, int bucket);
    void (*flight_start)(struct cdi_flight *f, uint64_t seq);
    void (*flight_done)(struct cdi_flight *f, uint64_t seq);
    void (*flight_replays)(struct cdi_flight *f, const struct cdi_flight_replay *r);
    cddp_status (*flight_check)(const struct cdi_flight *f, struct cdi_error *err);
};

struct cdi_module {
    uint32_t abi;
    const char *version; /* CDDP_VERSION of its build */
    /*
     * Look for what the backend needs of this machine. CDDP_OK and *ops, which live as long as the process;
     * CDDP_E_NOT_FOUND: the machine has no such device, so that a program which did not insist takes another backend;
     * CDDP_E_VERSION, CDDP_E_SYSTEM, CDDP_E_INVALID: it has one, and something is missing to use it. The sentence says
     * what. May be called again after a failure. One thread at a time.
     */
    cddp_status (*open)(const struct cdi_host *host, const struct cdi_backend_ops **ops, struct cdi_error *err);
};

/*
 * Open cddp_NAME.so, once per process, and the backend in it. It is looked for in CDDP_MODULE_DIR alone if that is set,
 * else in the folder `cddp` beside this libcddp, then in that of the configured library folder. *is_there tells whether
 * there is such a file at all. CDDP_E_NOT_FOUND (the sentence names the folders), CDDP_E_VERSION (another
 * build's), CDDP_E_SYSTEM (it cannot be loaded), or what the module's open returns. Any thread; may be repeated.
 */
cddp_status cdi_module_open(const char *name, const struct cdi_backend_ops **ops, bool *is_there,
                            struct cdi_error *err);

#endif
