/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the rendezvous, by its page /status, whether enough nodes would remain. */
#ifndef PREFLIGHT_SPARE_H
#define PREFLIGHT_SPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Returns whether the job of this port would keep the nodes that it needs if `leaving` of them left, from the text of
 * /status (n bytes, any bytes). Pure.
 */
bool spare_enough(const char *json, size_t n, int port, uint32_t leaving);

/*
 * Asks again and again until that is so, for timeout_ms at most. Returns false if it was not so, or if the rendezvous
 * does not show its pages.
 */
bool spare_wait(const char *host, int port, uint32_t leaving, int64_t timeout_ms);

#endif
