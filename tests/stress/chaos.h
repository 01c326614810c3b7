/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disturbed scheduling, for a separate build of the library: the compiler includes this first in each of its files, and
 * every access of an atomic may then follow a yield or a sleep. Races with windows of a few instructions then show
 * within seconds and not within months.
 */
#ifndef CDI_TEST_CHAOS_H
#define CDI_TEST_CHAOS_H

#include <stdatomic.h>
#include <stdint.h>

/* Disturbs one access in `one_in` from now on, in an order that depends on the seed; 0: none. */
void chaos_begin(unsigned one_in, uint64_t seed);
void chaos_point(void);

#ifdef CDI_TEST_DISTURB
#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_fetch_add
#undef atomic_fetch_or
#ifdef __clang__
#define CHAOS_LOAD __c11_atomic_load
#define CHAOS_STORE __c11_atomic_store
#define CHAOS_EXCHANGE __c11_atomic_exchange
#define CHAOS_ADD __c11_atomic_fetch_add
#define CHAOS_OR __c11_atomic_fetch_or
#else
#define CHAOS_LOAD __atomic_load_n
#define CHAOS_STORE __atomic_store_n
#define CHAOS_EXCHANGE __atomic_exchange_n
#define CHAOS_ADD __atomic_fetch_add
#define CHAOS_OR __atomic_fetch_or
#endif
#define atomic_load_explicit(p, order) (chaos_point(), CHAOS_LOAD((p), (order)))
#define atomic_load(p) atomic_load_explicit((p), __ATOMIC_SEQ_CST)
#define atomic_store_explicit(p, v, order) (chaos_point(), CHAOS_STORE((p), (v), (order)))
#define atomic_store(p, v) atomic_store_explicit((p), (v), __ATOMIC_SEQ_CST)
#define atomic_exchange(p, v) (chaos_point(), CHAOS_EXCHANGE((p), (v), __ATOMIC_SEQ_CST))
#define atomic_fetch_add(p, v) (chaos_point(), CHAOS_ADD((p), (v), __ATOMIC_SEQ_CST))
#define atomic_fetch_or(p, v) (chaos_point(), CHAOS_OR((p), (v), __ATOMIC_SEQ_CST))
#endif

#endif
