/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which unit's whole parameters are in which slot of a fixed pool, and which one to fetch ahead. Pure. Every rank makes
 * the same calls in the same order, so all choose alike: nothing here depends on times.
 *
 * A unit that nobody uses stays in its slot until another one needs it. The units of the first step, in the order in
 * which they were wanted, are the forecast for the next ones: of the unused units that go which is wanted last, as in
 * Belady's algorithm. A step that differs from the forecast is recorded as the next one, but evaluations follow its
 * beginning.
 */
#ifndef CDI_FSDP_POOL_H
#define CDI_FSDP_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CDI_POOL_NONE SIZE_MAX

struct cdi_pool_unit {
    size_t slot;    /* CDI_POOL_NONE: it has none */
    size_t users;   /* it stays while there are any */
    uint64_t asked; /* when it was wanted last, as a number of calls */
    bool is_kept;   /* its slot is its own */
    bool is_fresh;  /* its parameters are there, or on their way */
};

struct cdi_pool {
    struct cdi_pool_unit *unit;
    size_t *holds; /* by slot: its unit; CDI_POOL_NONE: it is empty. The slots of kept units are not here */
    size_t *order; /* the units in the order in which the last step wanted them, a unit several times */
    size_t n_units, n_slots, n_order, room;
    size_t at; /* how many this step has wanted */
    uint64_t calls;
    bool follows; /* this step has followed the forecast so far */
};

/* Makes a pool of n_slots for n_units, none of them kept. Returns false without memory; release it also then. */
bool cdi_pool_init(struct cdi_pool *p, size_t n_units, size_t n_slots);
void cdi_pool_release(struct cdi_pool *p);
/* Gives unit u a separate slot, with the number `slot`, which is not one of the pool's. */
void cdi_pool_keep(struct cdi_pool *p, size_t u, size_t slot);

/* Records that the program wants unit u now. Returns false without memory. */
bool cdi_pool_want(struct cdi_pool *p, size_t u);
/*
 * Gives unit u, which is not fresh, a slot: its own, the one it has, an empty one, or that of an unused unit, which
 * loses it. Returns false if all units that have one are in use, or, with `ahead`, if none of them is wanted later
 * than u is. u becomes fresh.
 */
bool cdi_pool_place(struct cdi_pool *p, size_t u, bool ahead);
/* Returns the k-th unit (from 0) that the forecast wants next; CDI_POOL_NONE: it has no more. */
size_t cdi_pool_forecast(const struct cdi_pool *p, size_t k);
/* Parameters have changed: no unit is fresh, and the next step begins. */
void cdi_pool_next_step(struct cdi_pool *p);

#endif
