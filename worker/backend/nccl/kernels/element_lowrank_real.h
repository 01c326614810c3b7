/* SPDX-License-Identifier: Apache-2.0 */
/* The part of element_lowrank.h for one matrix, in the type REAL; it includes this file for float and for double. */

/* Adds the residual to a chunk of M from `from` on; both become the sum. */
CDI_INLINE void NAME(cdi_feed)(const struct cdi_kernel_thread *t, const struct cdi_lowrank_piece *p, uint64_t from)
{
    const uint64_t n = p->rows * p->cols, to = n - from < CDI_PIECE_CHUNK ? n : from + CDI_PIECE_CHUNK;
    REAL *m = (REAL *)p->m, *e = (REAL *)p->error;

    for (uint64_t i = from + t->thread; i < to; i += t->n_threads) {
        const REAL sum = m[i] + e[i];

        m[i] = sum;
        e[i] = sum;
    }
}

/* Computes element `at` of Q = M^T P, column by column. */
CDI_INLINE void NAME(cdi_right)(const struct cdi_lowrank_piece *p, uint64_t at)
{
    const uint64_t r = at / p->cols, j = at % p->cols;
    const REAL *m = (const REAL *)p->m, *left = (const REAL *)p->p;
    REAL sum = 0;

    if (r >= p->rank)
        return;
    for (uint64_t i = 0; i < p->rows; i++)
        sum += left[r * p->rows + i] * m[i * p->cols + j];
    ((REAL *)p->q)[at] = sum;
}

/* Computes a chunk of M = P Q^T; the residual becomes its former value less that. */
CDI_INLINE void NAME(cdi_product)(const struct cdi_kernel_thread *t, const struct cdi_lowrank_piece *p, uint64_t from)
{
    const uint64_t n = p->rows * p->cols, to = n - from < CDI_PIECE_CHUNK ? n : from + CDI_PIECE_CHUNK;
    const REAL *left = (const REAL *)p->p, *right = (const REAL *)p->q;
    REAL *m = (REAL *)p->m, *e = (REAL *)p->error;

    for (uint64_t at = from + t->thread; at < to; at += t->n_threads) {
        const uint64_t i = at / p->cols, j = at % p->cols;
        REAL sum = 0;

        for (uint64_t r = 0; r < p->rank; r++)
            sum += left[r * p->rows + i] * right[r * p->cols + j];
        m[at] = sum;
        if (e != NULL) {
            const REAL rest = e[at] - sum;

            e[at] = cdi_is_finite((double)rest) ? rest : (REAL)0;
        }
    }
}

/* --- As a block -----------------------------------------------------------------------------------------------------
 */

/* Computes CDI_LEFT_CHUNK elements of P = M Q from `from` on, those of a row of M together. */
CDI_INLINE void NAME(cdi_left)(const struct cdi_kernel_thread *t, const struct cdi_lowrank_piece *p, uint64_t from,
                               struct cdi_lowrank_room *room)
{
    const uint64_t n = p->rows * p->rank, whole = p->cols / CDI_LOWRANK_LANES * CDI_LOWRANK_LANES;

    CDI_EACH_THREAD(t, k)
    {
        const uint64_t at = from + k / CDI_LOWRANK_LANES, l = k % CDI_LOWRANK_LANES;
        double sum = 0;

        if (at < n) {
            const REAL *x = (const REAL *)p->m + at / p->rank * p->cols;
            const REAL *y = (const REAL *)p->q + at % p->rank * p->cols;

            for (uint64_t i = l; i < whole; i += CDI_LOWRANK_LANES)
                sum += (double)x[i] * (double)y[i];
            for (uint64_t i = whole; i < p->cols && l == 0; i++)
                sum += (double)x[i] * (double)y[i];
        }
        room->of_thread[k] = sum;
    }
    CDI_SYNC();
    CDI_EACH_THREAD(t, k)
    {
        const uint64_t at = from + k;

        if (k < CDI_LEFT_CHUNK && at < n) {
            double sum = room->of_thread[k * CDI_LOWRANK_LANES];

            for (uint32_t l = 1; l < CDI_LOWRANK_LANES; l++)
                sum += room->of_thread[k * CDI_LOWRANK_LANES + l];
            ((REAL *)p->p)[at % p->rank * p->rows + at / p->rank] = (REAL)sum;
        }
    }
    CDI_SYNC();
}

/* Returns the sum of n products, the same in all threads. All of them compute products, eight of them sums. */
CDI_INLINE double NAME(cdi_dot)(const struct cdi_kernel_thread *t, const REAL *x, const REAL *y, uint64_t n,
                                struct cdi_lowrank_room *room)
{
    const uint64_t whole = n / CDI_LOWRANK_LANES * CDI_LOWRANK_LANES;
    double sum;

    CDI_EACH_THREAD(t, k)
    if (k < CDI_LOWRANK_LANES)
        room->lane[k] = 0;
    for (uint64_t from = 0; from < n; from += CDI_KERNEL_THREADS) {
        CDI_SYNC();
        CDI_EACH_THREAD(t, k)
        if (from + k < n)
            room->of_thread[k] = (double)x[from + k] * (double)y[from + k];
        CDI_SYNC();
        CDI_EACH_THREAD(t, k)
        if (k < CDI_LOWRANK_LANES) {
            double lane = room->lane[k];

            for (uint64_t i = k; i < CDI_KERNEL_THREADS && from + i < whole; i += CDI_LOWRANK_LANES)
                lane += room->of_thread[i];
            for (uint64_t i = whole; i < n && whole < from + CDI_KERNEL_THREADS && k == 0; i++)
                lane += room->of_thread[i - from];
            room->lane[k] = lane;
        }
    }
    CDI_SYNC();
    sum = room->lane[0];
    for (uint32_t l = 1; l < CDI_LOWRANK_LANES; l++)
        sum += room->lane[l];
    CDI_SYNC();
    return sum;
}

/* Removes from column k its components along earlier columns. */
CDI_INLINE void NAME(cdi_project)(const struct cdi_kernel_thread *t, REAL *a, uint64_t n, uint32_t k,
                                  struct cdi_lowrank_room *room)
{
    REAL *column = a + k * n;

    for (uint32_t j = 0; j < k; j++) {
        const REAL *other = a + j * n;
        const REAL along = (REAL)-NAME(cdi_dot)(t, other, column, n, room);

        CDI_EACH_THREAD(t, thread)
        for (uint64_t i = thread; i < n; i += t->n_threads)
            column[i] += along * other[i];
        CDI_SYNC();
    }
}

CDI_INLINE void NAME(cdi_basis)(const struct cdi_kernel_thread *t, const struct cdi_lowrank_piece *p, int32_t of_q,
                                double epsilon, struct cdi_lowrank_room *room)
{
    const double little = epsilon > 0 ? 1e-3 : 0.5;
    const uint64_t n = of_q ? p->cols : p->rows;
    REAL *a = (REAL *)(of_q ? p->q : p->p);
    int lost = 0;

    for (uint32_t k = 0; k < p->rank; k++) {
        REAL *column = a + k * n;
        const double whole = sqrt(NAME(cdi_dot)(t, column, column, n, room));
        double length, again;

        NAME(cdi_project)(t, a, n, k, room);
        length = sqrt(NAME(cdi_dot)(t, column, column, n, room));
        if (length < whole * little) {
            NAME(cdi_project)(t, a, n, k, room);
            again = sqrt(NAME(cdi_dot)(t, column, column, n, room));
            length = again < length / 2 ? 0 : again;
        }
        lost |= length == 0 || !cdi_is_finite(length);
        CDI_EACH_THREAD(t, thread)
        for (uint64_t i = thread; i < n; i += t->n_threads)
            column[i] = length == 0 ? (REAL)0 : (REAL)((double)column[i] / (length + epsilon));
        CDI_SYNC();
    }
    if (!lost || !of_q)
        return;
    CDI_EACH_THREAD(t, thread)
    for (uint64_t i = thread; i < n * p->rank; i += t->n_threads)
        a[i] = ((const REAL *)p->fresh)[i];
    CDI_SYNC();
}
