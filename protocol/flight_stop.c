/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/flight_stop.h"

#include "protocol/flight.h"

void cdi_stop_look(const struct cdi_flight_stop *s, struct cdi_stop_view *view)
{
    uint32_t kind = atomic_load_explicit(&s->agreed, memory_order_acquire);
    int32_t rank = atomic_load_explicit(&s->rank, memory_order_relaxed);
    uint64_t step_plus_1 = atomic_load_explicit(&s->step_plus_1, memory_order_relaxed);

    *view = (struct cdi_stop_view){
        .asks = atomic_load_explicit(&s->asks, memory_order_acquire) != 0,
        .agreed = kind <= CDI_STOP_RANK ? (enum cdi_stop_kind)kind : CDI_STOP_NONE,
        .rank = rank < -1 ? -1 : rank,
        .step = step_plus_1 > CDI_FLIGHT_COUNT_MAX ? -1 : (int64_t)step_plus_1 - 1,
    };
}

void cdi_stop_note_asks(struct cdi_flight_stop *s, bool asks)
{
    atomic_store_explicit(&s->asks, asks ? 1 : 0, memory_order_release);
}

void cdi_stop_note_agreed(struct cdi_flight_stop *s, enum cdi_stop_kind kind, int rank, int64_t step)
{
    atomic_store_explicit(&s->rank, rank, memory_order_relaxed);
    atomic_store_explicit(&s->step_plus_1, (uint64_t)(step + 1), memory_order_relaxed);
    atomic_store_explicit(&s->agreed, (uint32_t)kind, memory_order_release);
}
