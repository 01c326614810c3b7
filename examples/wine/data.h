/* SPDX-License-Identifier: Apache-2.0 */
/* The Wine data set: read, split and standardised. No communication. */
#ifndef WINE_DATA_H
#define WINE_DATA_H

#include <stdbool.h>
#include <stddef.h>

#define WINE_ROWS 178
#define WINE_FEATURES 13
#define WINE_CLASSES 3
#define WINE_HIDDEN 64
#define WINE_WEIGHTS (WINE_HIDDEN * WINE_FEATURES + WINE_HIDDEN + WINE_CLASSES * WINE_HIDDEN + WINE_CLASSES)

/* Rows of one part, in the order of its split file. */
struct wine_part {
    size_t n;
    double x[WINE_ROWS][WINE_FEATURES]; /* standardised by mean and deviation of the training rows */
    int label[WINE_ROWS];
};

struct wine_data {
    struct wine_part train, test;
    float init[WINE_WEIGHTS]; /* W1[64][13], b1[64], W2[3][64], b2[3] */
};

/*
 * Read everything from directory `dir` (NULL: found beside the program, or where it was installed), initial weights
 * from `init` if that is not NULL. False: `why` names the file and the error in it.
 */
bool wine_load(struct wine_data *d, const char *dir, const char *init, char *why, size_t cap);

#endif
