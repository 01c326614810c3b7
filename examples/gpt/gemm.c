/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product in plain C. Blocks of both matrices are copied into the order in which the innermost loop reads
 * them (so a transposed matrix costs nothing more), and that loop keeps a tile of the result in registers. The method
 * is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008). meson.build compiles
 * this file for several kinds of processors; the results of two kinds differ in the last bits.
 */
#include "gemm.h"

#include <string.h>

/* A vector register, and how many of them the tile has: rows times vectors per row. */
#if defined(__AVX512F__)
#define VECTOR 64
#define MR 12
#elif defined(__AVX__)
#define VECTOR 32
#define MR 6
#else
#define VECTOR 16
#define MR 4
#endif
#define PER_ROW 2
#define LANES (VECTOR / sizeof(real))
#define NR (PER_ROW * LANES)

/* Blocks: KC * NR stays in the first cache, MC * KC in the second, KC * NC in the third. */
#define KC ((size_t)256)
#define MC ((size_t)(MR * 12))
#define NC ((size_t)1024)

typedef real vec __attribute__((vector_size(VECTOR)));

static real a_block[MC * KC] __attribute__((aligned(64)));
static real b_block[KC * NC] __attribute__((aligned(64)));

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The columns that are written stay in the first cache from row to row. */
#define AT_ONCE ((size_t)16)

static inline void copy_row(real *to, size_t wide, const real *from, size_t col, size_t n)
{
    if (n == AT_ONCE && col == 1)
        for (size_t p = 0; p < AT_ONCE; p++)
            to[p * wide] = from[p];
    else
        for (size_t p = 0; p < n; p++)
            to[p * wide] = from[p * col];
}

/* Strips of `wide` rows, each column by column; a strip that is not full ends with zeros. */
static void pack(real *to, struct view m, size_t rows, size_t columns, size_t wide)
{
    for (size_t i = 0; i < rows; i += wide, to += wide * columns) {
        const size_t n = least(wide, rows - i);

        if (n < wide)
            memset(to, 0, wide * columns * sizeof *to);
        if (m.row == 1)
            for (size_t p = 0; p < columns; p++)
                memcpy(to + p * wide, m.at + i + p * m.col, n * sizeof *to);
        else
            for (size_t p = 0; p < columns; p += AT_ONCE)
                for (size_t r = 0; r < n; r++)
                    copy_row(to + p * wide + r, wide, m.at + (i + r) * m.row + p * m.col, m.col,
                             least(AT_ONCE, columns - p));
    }
}

/* tile[MR][NR] = a * b over k, from packed strips. */
static inline void multiply(size_t k, const real *a, const real *b, vec tile[MR][PER_ROW])
{
    vec sum[MR][PER_ROW];

    memset(sum, 0, sizeof sum);
    for (size_t p = 0; p < k; p++, a += MR, b += NR) {
        const vec *row = (const vec *)b;

#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            sum[i][0] += a[i] * row[0];
            sum[i][1] += a[i] * row[1];
        }
    }
    memcpy(tile, sum, sizeof sum);
}

static void store(vec tile[MR][PER_ROW], real alpha, bool add, real *c, size_t ldc, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++) {
        const real *from = (const real *)tile[i];

        if (add)
            for (size_t j = 0; j < columns; j++)
                c[i * ldc + j] += alpha * from[j];
        else
            for (size_t j = 0; j < columns; j++)
                c[i * ldc + j] = alpha * from[j];
    }
}

/* The packed blocks a[m][k] and b[k][n] into c. */
static void block(size_t m, size_t n, size_t k, real alpha, bool add, real *c, size_t ldc)
{
    vec tile[MR][PER_ROW];

    for (size_t j = 0; j < n; j += NR)
        for (size_t i = 0; i < m; i += MR) {
            multiply(k, a_block + i * k, b_block + j * k, tile);
            store(tile, alpha, add, c + i * ldc + j, ldc, least(MR, m - i), least(NR, n - j));
        }
}

static struct view part(struct view m, size_t i, size_t j)
{
    return (struct view){m.at + i * m.row + j * m.col, m.row, m.col};
}

void GEMM_NAME(size_t m, size_t n, size_t k, real alpha, struct view a, struct view b, bool add, real *c, size_t ldc)
{
    for (size_t j = 0; j < n; j += NC)
        for (size_t p = 0; p < k; p += KC) {
            const size_t columns = least(NC, n - j), depth = least(KC, k - p);
            const struct view from = part(b, p, j);

            pack(b_block, (struct view){from.at, from.col, from.row}, columns, depth, NR);
            for (size_t i = 0; i < m; i += MC) {
                const size_t rows = least(MC, m - i);

                pack(a_block, part(a, i, p), rows, depth, MR);
                block(rows, columns, depth, alpha, add || p > 0, c + i * ldc + j, ldc);
            }
        }
}
