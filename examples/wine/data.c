/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct table {
    double x[WINE_ROWS][WINE_FEATURES];
    int label[WINE_ROWS];
};

struct problem {
    char *text;
    size_t cap;
};

static bool bad(struct problem *p, const char *path, const char *what)
{
    (void)snprintf(p->text, p->cap, "%s: %s", path, what);
    return false;
}

static bool bad_line(struct problem *p, const char *path, size_t line, const char *what)
{
    (void)snprintf(p->text, p->cap, "%s: line %zu: %s", path, line, what);
    return false;
}

static FILE *open_in(const char *dir, const char *name, char path[PATH_MAX], struct problem *p)
{
    FILE *f = NULL;

    if (snprintf(path, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        (void)bad(p, dir, "the path is too long");
    else if ((f = fopen(path, "re")) == NULL)
        (void)bad(p, path, strerror(errno));
    return f;
}

/* ------------------------------------------------------------------------------------------------- the files ---- */

/* "14.23,1.71,...,1065.0,0": 13 numbers and a class. */
static bool parse_row(char *line, struct table *t, size_t row)
{
    char *at = line, *end;

    for (int k = 0; k < WINE_FEATURES; k++) {
        t->x[row][k] = strtod(at, &end);
        if (end == at || *end != ',' || !isfinite(t->x[row][k]))
            return false;
        at = end + 1;
    }
    if (*at < '0' || *at >= '0' + WINE_CLASSES || (at[1] != '\n' && at[1] != '\r' && at[1] != '\0'))
        return false;
    t->label[row] = *at - '0';
    return true;
}

static bool read_rows(FILE *f, const char *path, struct table *t, struct problem *p)
{
    char line[1024];
    size_t row = 0;

    if (fgets(line, sizeof line, f) == NULL)
        return bad(p, path, "it is empty");
    while (row < WINE_ROWS && fgets(line, sizeof line, f) != NULL) {
        if (!parse_row(line, t, row))
            return bad_line(p, path, row + 2, "not 13 numbers and a class 0, 1 or 2, separated by commas");
        row++;
    }
    if (row < WINE_ROWS)
        return bad_line(p, path, row + 2, "the file ends before its 178 rows");
    return fgets(line, sizeof line, f) == NULL || bad(p, path, "more than 178 rows");
}

static bool read_table(const char *dir, struct table *t, struct problem *p)
{
    char path[PATH_MAX];
    FILE *f = open_in(dir, "wine.csv", path, p);
    bool ok = f != NULL && read_rows(f, path, t, p);

    if (f != NULL)
        (void)fclose(f);
    return ok;
}

/* Copy the rows that the split file names, in its order. */
static bool pick_rows(FILE *f, const char *path, const struct table *t, struct wine_part *part, struct problem *p)
{
    char line[64];

    for (part->n = 0; fgets(line, sizeof line, f) != NULL; part->n++) {
        char *end;
        long row = strtol(line, &end, 10);

        if (end == line || (*end != '\n' && *end != '\r' && *end != '\0') || row < 0 || row >= WINE_ROWS)
            return bad_line(p, path, part->n + 1, "not a row number from 0 to 177");
        if (part->n == WINE_ROWS)
            return bad(p, path, "more than 178 row numbers");
        memcpy(part->x[part->n], t->x[row], sizeof t->x[row]);
        part->label[part->n] = t->label[row];
    }
    return part->n > 0 || bad(p, path, "it is empty");
}

static bool read_part(const char *dir, const char *name, const struct table *t, struct wine_part *part,
                      struct problem *p)
{
    char path[PATH_MAX];
    FILE *f = open_in(dir, name, path, p);
    bool ok = f != NULL && pick_rows(f, path, t, part, p);

    if (f != NULL)
        (void)fclose(f);
    return ok;
}

static bool read_init(const char *path, float init[WINE_WEIGHTS], struct problem *p)
{
    uint8_t bytes[WINE_WEIGHTS * 4 + 1];
    FILE *f = fopen(path, "re");
    size_t n;

    if (f == NULL)
        return bad(p, path, strerror(errno));
    n = fread(bytes, 1, sizeof bytes, f);
    (void)fclose(f);
    if (n != WINE_WEIGHTS * 4)
        return bad(p, path,
                   n < WINE_WEIGHTS * 4 ? "shorter than 1091 float32 (4364 bytes)"
                                        : "longer than 1091 float32 (4364 bytes)");
    for (size_t i = 0; i < WINE_WEIGHTS; i++) {
        const uint8_t *b = bytes + 4 * i;
        uint32_t word = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;

        memcpy(&init[i], &word, sizeof word);
        if (!isfinite(init[i]))
            return bad(p, path, "holds a value that is not a number");
    }
    return true;
}

/* --------------------------------------------------------------------------------------------- standardising ---- */

/* (x - mean) / deviation, of the training rows, over n and not n-1: to the last bit what NumPy and scikit-learn make.
 */
static bool standardise(struct wine_part *train, struct wine_part *test)
{
    for (int k = 0; k < WINE_FEATURES; k++) {
        double sum = 0, squares = 0, mean, deviation;

        for (size_t i = 0; i < train->n; i++)
            sum += train->x[i][k];
        mean = sum / (double)train->n;
        for (size_t i = 0; i < train->n; i++)
            squares += (train->x[i][k] - mean) * (train->x[i][k] - mean);
        deviation = sqrt(squares / (double)train->n);
        if (!(deviation > 0))
            return false;
        for (size_t i = 0; i < train->n; i++)
            train->x[i][k] = (train->x[i][k] - mean) / deviation;
        for (size_t i = 0; i < test->n; i++)
            test->x[i][k] = (test->x[i][k] - mean) / deviation;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- the place ---- */

/* Where the program lies: "/usr/libexec/cddp/examples". */
static bool program_dir(char dir[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
    char *slash;

    if (n <= 0)
        return false;
    dir[n] = '\0';
    slash = strrchr(dir, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

/* Beside the program, or where meson installs the data (WINE_DATA_DIR: absolute, or as seen from the program). */
static bool find_dir(char dir[PATH_MAX], struct problem *p)
{
    static const char *const places[] = {"data", WINE_DATA_DIR};
    char program[PATH_MAX], file[PATH_MAX + 16];

    if (!program_dir(program))
        return bad(p, "/proc/self/exe", "cannot be read to find the data beside the program; use --data DIR");
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        int n = places[i][0] == '/' ? snprintf(dir, PATH_MAX, "%s", places[i])
                                    : snprintf(dir, PATH_MAX, "%s/%s", program, places[i]);

        if (n >= PATH_MAX)
            continue;
        (void)snprintf(file, sizeof file, "%s/wine.csv", dir);
        if (access(file, R_OK) == 0)
            return true;
    }
    (void)snprintf(p->text, p->cap, "no wine.csv in %.1000s/data nor in %s; use --data DIR", program, WINE_DATA_DIR);
    return false;
}

bool wine_load(struct wine_data *d, const char *dir, const char *init, char *why, size_t cap)
{
    struct problem p = {why, cap};
    char found[PATH_MAX], default_init[PATH_MAX + 16];
    struct table t;

    if (dir == NULL) {
        if (!find_dir(found, &p))
            return false;
        dir = found;
    }
    if (!read_table(dir, &t, &p) || !read_part(dir, "split_train_idx.csv", &t, &d->train, &p) ||
        !read_part(dir, "split_test_idx.csv", &t, &d->test, &p))
        return false;
    if (!standardise(&d->train, &d->test))
        return bad(&p, dir, "a column of the training rows is constant");
    (void)snprintf(default_init, sizeof default_init, "%s/init.f32", dir);
    return read_init(init != NULL ? init : default_init, d->init, &p);
}
