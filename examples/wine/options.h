/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line says. */
#ifndef WINE_OPTIONS_H
#define WINE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
    const char *data; /* directory; NULL: look for it */
    long epochs;
    long batch_size; /* per rank */
    double lr;
    int64_t seed;    /* of the sampler */
    long save_every; /* epochs */
    long save_steps; /* the same in steps; 0: only after whole epochs */
    long accumulate; /* batches per step */
    long uneven;     /* rank r leaves out its last r * uneven samples of each epoch */
    double clip;     /* the gradients' norm is made at most this; 0: it is left alone */
    int compress;    /* bits of a float32 gradient on its way: 16 (float16), -16 (bfloat16); 0: all */
    bool powersgd;   /* the weights' gradients are sent as products of narrow matrices */
    bool f64, no_shuffle, drop_last, save_background, zero, help;
    const char *init, *metrics, *weights_out; /* files; NULL: the shipped one, none, none */
    const char *save, *resume;                /* directories of checkpoints; NULL: none */
};

/* Fills in *o. Returns false after it has printed one error message on stderr. */
bool options_parse(struct options *o, int argc, char **argv);
void options_help(void);

#endif
