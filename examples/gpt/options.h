/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line says. */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include "model.h"

struct options {
    struct gpt_config config;
    const char *text;    /* a file; NULL: the one beside the program */
    const char *device;  /* "auto", "cpu" or "gpu" */
    const char *dtype;   /* "float32" or "bf16" */
    bool bf16;           /* what dtype says */
    const char *kernels; /* of the CPU: their name; NULL: the best */
    long steps, batch;   /* sequences of a step, over all ranks */
    long micro;          /* sequences of one pass of a rank; 0: chosen by gradient accumulation */
    double lr, min_lr;   /* the schedule: a warm-up, then a cosine to min_lr times lr */
    long warmup;         /* steps */
    double weight_decay, beta2, clip;
    long seed;
    bool graph;   /* steps on a GPU are launches of a CUDA graph */
    bool divided; /* the optimizer's state is divided among the ranks */
    long fsdp;    /* 3: so are parameters and gradients; 2: gradients; 0: neither */
    bool hsdp;    /* fsdp within each node only */
    long bucket_kib;
    long apart_every; /* steps; 0: never. Such a step does not communicate, so the ranks' weights differ after it */
    long log_every, eval_every, save_every; /* steps; 0: never */
    const char *log, *save, *resume, *weights_out;
    long sample; /* bytes of text at the end */
    const char *prompt;
    double temperature;
    bool help;
};

/* Fills in *o. Returns false after it has printed one error message on stderr. */
bool options_parse(struct options *o, int argc, char **argv);
void options_help(void);

#endif
