/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A multilayer perceptron for the benchmarks: 1024-2048x6-1000 with ReLU and softmax cross-entropy, 25,129,960 float32
 * parameters. Its arithmetic is OpenBLAS's, one thread per caller. Parameters and data come from a formula that
 * peers/mlp_ddp.py has too, so that all trainers must arrive at the same loss.
 */
#ifndef BENCH_MLP_H
#define BENCH_MLP_H

#include <stdbool.h>
#include <stddef.h>

#define MLP_LAYERS 7
#define MLP_PARAMS (2 * MLP_LAYERS) /* weight, bias, weight, bias, ... in forward order */
#define MLP_INPUTS 1024
#define MLP_CLASSES 1000

struct mlp;

/* Parameter i: its elements and the shape of its layer. */
size_t mlp_param_count(size_t i);

/* Memory for one batch of at most `batch` samples; NULL: no memory. No parameters and no other gradients. */
struct mlp *mlp_create(size_t batch);
void mlp_destroy(struct mlp *m);

/* The same starting values for everybody. */
void mlp_init_param(float *param, size_t i);
/* Sample `index` of the endless data set: MLP_INPUTS numbers and a class. */
void mlp_sample(size_t index, float *x, int *label);

/*
 * Forward and backward pass over `batch` samples; returns the mean loss. grads[i] is overwritten with the mean gradient
 * over the batch, and then done(arg, i) is called, the last layer first; done may be NULL. enter(arg, layer, back) may
 * be, too: it is called before a layer's entries of params, and in the backward pass of grads, are read.
 */
double mlp_step(struct mlp *m, float *const params[MLP_PARAMS], float *const grads[MLP_PARAMS], const float *x,
                const int *labels, size_t batch, void (*enter)(void *arg, size_t layer, bool back),
                void (*done)(void *arg, size_t i), void *arg);

#endif
