/* SPDX-License-Identifier: Apache-2.0 */
/* The key-value store of the job. */
#ifndef CDDP_STORE_H
#define CDDP_STORE_H

#include <cddp/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------------- store ---- */

/*
 * A client of the job's key-value store on MASTER_ADDR:MASTER_PORT, in the wire protocol of PyTorch's TCPStore, so that
 * C programs and PyTorch programs can share keys (as PyTorch's client does, "/" is put in front of each key on the
 * wire). Keys are at most 8191 bytes, values at most 8 MiB. Keys live until the end of the round. A client may be used
 * by several threads: one operation at a time runs, the others wait for it. Timeouts in ms: 0 is the store's own,
 * negative none.
 */
typedef struct cddp_store cddp_store;

typedef struct cddp_store_options {
    size_t size;      /* sizeof(cddp_store_options) */
    const char *host; /* NULL: $MASTER_ADDR */
    int port;         /* 0: $MASTER_PORT */
    int timeout_ms;   /* to connect, and for each operation; 0: 300 s */
} cddp_store_options;

/*
 * Connects to a store, with retries until the timeout. *out is written on success only; release it with
 * cddp_store_close().
 *
 * Returns CDDP_OK, CDDP_E_INVALID, CDDP_E_NOT_FOUND (the host does not resolve), CDDP_E_IO (no connection; the error
 * message names address and cause), CDDP_E_TIMEOUT, CDDP_E_PROTOCOL (something else listens there), CDDP_E_DENIED (the
 * secret), CDDP_E_LIMIT (the rendezvous takes no more connections: the error message names the limit to raise),
 * CDDP_E_NOMEM.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_store_open(cddp_store **out, const cddp_store_options *opt);
/* Returns the communicator's own client; NULL in a world of one without a store. It lives as long as comm: do not close
 * it. */
CDDP_API cddp_store *cddp_comm_store(cddp_comm *comm);
/* Closes the connection, which ends its waits on the server. NULL is allowed. */
CDDP_API void cddp_store_close(cddp_store *store);

/*
 * Every operation returns CDDP_OK, CDDP_E_INVALID (key or value too long), CDDP_E_CLOSED (the server ended the
 * connection: the round is over; or an earlier error has closed it), CDDP_E_TIMEOUT, CDDP_E_IO, CDDP_E_PROTOCOL,
 * CDDP_E_NOMEM; the communicator's own client also CDDP_E_PEER (a rank died) and CDDP_E_ABORTED (the launcher has ended
 * this round). After any error but CDDP_E_INVALID the connection is closed, except that a wait which timed out leaves
 * it usable.
 */
/* Sets key to len bytes at value (copied), and wakes the clients that wait for it. */
CDDP_API cddp_status cddp_store_set(cddp_store *store, const char *key, const void *value, size_t len);
/*
 * Waits until key exists, then copies its value to buf (cap bytes). *len is the value's length, also when it is larger
 * than cap: then nothing is copied and CDDP_E_LIMIT is returned.
 */
CDDP_API cddp_status cddp_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len,
                                    int timeout_ms);
/*
 * Adds delta to the decimal number at key (0 if there is none), and stores the result in *sum (may be NULL). If the
 * value is not a number, the server ends the connection, as PyTorch's does: CDDP_E_CLOSED, with an error message that
 * says so.
 */
CDDP_API cddp_status cddp_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum);
/*
 * Sets key to desired if its value equals expected (or key does not exist and expected_len is 0). Either way the value
 * now stored is given as cddp_store_get gives it; for a missing key with another expectation, `expected` is given.
 */
CDDP_API cddp_status cddp_store_compare_set(cddp_store *store, const char *key, const void *expected,
                                            size_t expected_len, const void *desired, size_t desired_len, void *buf,
                                            size_t cap, size_t *len);
/* Waits until all n_keys keys exist. */
CDDP_API cddp_status cddp_store_wait(cddp_store *store, const char *const *keys, size_t n_keys, int timeout_ms);
/* Sets *all_exist to 1 if all n_keys keys exist now, otherwise to 0. */
CDDP_API cddp_status cddp_store_check(cddp_store *store, const char *const *keys, size_t n_keys, int *all_exist);
/* Deletes key; *deleted (may be NULL) becomes 1 if it existed. */
CDDP_API cddp_status cddp_store_delete(cddp_store *store, const char *key, int *deleted);

#ifdef __cplusplus
}
#endif

#endif
