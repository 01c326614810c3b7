/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A module is a backend in a separate shared library, cddp_NAME.so, which libcddp opens on demand, so that one build
 * serves nodes with and without a GPU. Undefined symbols of a module are those of libc only: it gets the functions of
 * libcddp from the host table. Both sides are of one build; the ABI number and the version are compared.
 */
#ifndef CDI_BACKEND_LOADER_H
#define CDI_BACKEND_LOADER_H

#include "worker/backend/backend.h"

#define CDI_MODULE_ABI 11
#define CDI_MODULE_SYMBOL "cddp_module" /* the one symbol of a module: a const struct cdi_module */
#define CDI_MODULE_HOST_ID 24           /* bytes that are equal in processes of one host */

/* The functions of libcddp for modules. The flight page is that of the communicator; protocol/flight.h has the rules.
 */
struct cdi_host {
    size_t size;
    void (*debug)(const char *id, const char *text); /* one log line at debug level */
    const char *(*env)(const char *name);            /* NULL where it is unset or empty */
    void *(*alloc)(size_t n, size_t size);           /* cleared; NULL: out of memory */
    void (*release)(void *p);                        /* NULL-safe */
    void (*host_id)(uint8_t id[CDI_MODULE_HOST_ID]);
    uint64_t (*flight_enqueue)(struct cdi_flight *f, enum cdi_flight_op op, uint32_t dtype, uint64_t count, int bucket);
    void (*flight_start)(struct cdi_flight *f, uint64_t seq);
    void (*flight_done)(struct cdi_flight *f, uint64_t seq);
    void (*flight_hide)(struct cdi_flight *f);
    bool (*flight_is_timed)(const struct cdi_flight *f);
    void (*flight_times)(struct cdi_flight *f, uint64_t seq, int64_t ready_ns, int64_t started_ns, int64_t done_ns);
    void (*flight_replays)(struct cdi_flight *f, const struct cdi_flight_replay *r);
    cddp_status (*flight_check)(const struct cdi_flight *f, struct cdi_error *err);
    cddp_status (*flight_confirm)(const struct cdi_flight *f, struct cdi_error *err);
};

struct cdi_module {
    uint32_t abi;
    const char *version; /* CDDP_VERSION of its build */
    /*
     * Finds the device and the libraries that the backend needs. CDDP_OK and *ops, which live as long as the process;
     * CDDP_E_NOT_FOUND: this node has no such device, and a program that did not request it gets another backend;
     * CDDP_E_VERSION, CDDP_E_SYSTEM, CDDP_E_INVALID: there is a device, but it cannot be used; the message names the
     * reason. May be called again after a failure. One thread at a time.
     */
    cddp_status (*open)(const struct cdi_host *host, const struct cdi_backend_ops **ops, struct cdi_error *err);
};

/*
 * Opens cddp_NAME.so, once per process, and the backend in it. Searches only CDDP_MODULE_DIR if that is set, otherwise
 * the folder `cddp` beside this libcddp, then that of the configured library folder. Sets *is_there to whether the file
 * exists. CDDP_E_NOT_FOUND (the message names the folders), CDDP_E_VERSION (of another build), CDDP_E_SYSTEM (it cannot
 * be loaded), or the result of the module's open. Any thread; may be repeated.
 */
cddp_status cdi_module_open(const char *name, const struct cdi_backend_ops **ops, bool *is_there,
                            struct cdi_error *err);

#endif
