# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits, classified by a network whose layers are matrix products with epilogs.

Forward, a hidden layer is one product: bias, RELU and, while training, the bits that say where RELU let a value pass
(RELU_AUX_BIAS). Backward, one product gives the gradient of the layer before, masked by these bits, together with the
gradient of its bias (DRELU_BGRAD). Activations are row-major, samples x features, so a bias has one number a column
and the shape (1, features).

    python examples/digits_classifier.py    # PyTorch or CuPy on a GPU, NumPy on the CPU

Needs scikit-learn, whose wheel has the data: 1797 images of 8 x 8 pixels.
"""

import itertools
import logging
import sys
from importlib.util import find_spec
from time import perf_counter

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from nvmath_device.host import MatmulEpilog, matmul

FEATURES = (64, 128, 64, 10)  # pixels, two hidden layers, digits
EPOCHS, BATCH, RATE = 30, 64, 0.2
GRADIENT_BOUND = 2e-6  # of the norm-wise relative error; float32 rounds at 6e-8
ERROR_BOUND = 0.05  # share of the held-out images that may be classified wrongly


def library():
    """A module of array functions, a function that brings NumPy arrays there, and one that brings them back."""
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return torch, lambda x: torch.from_numpy(x).cuda(), lambda x: x.cpu().numpy()
    if find_spec("cupy"):
        import cupy

        if cupy.cuda.is_available():
            return cupy, cupy.asarray, cupy.asnumpy
    return np, np.asarray, np.asarray


def scores(layers, x):
    """The forward pass: one number a sample and digit, the largest wins."""
    for w, b in layers[:-1]:
        x = matmul(x, w, epilog=MatmulEpilog.RELU_BIAS, epilog_inputs={"bias": b})
    w, b = layers[-1]
    return matmul(x, w, epilog=MatmulEpilog.BIAS, epilog_inputs={"bias": b})


def gradients(layers, x, wanted, xp):
    """Gradients of the mean cross entropy: (of the weights, of the bias) for each layer."""
    inputs, masks = [x], []
    for w, b in layers[:-1]:
        h, aux = matmul(inputs[-1], w, epilog=MatmulEpilog.RELU_AUX_BIAS, epilog_inputs={"bias": b})
        inputs.append(h)
        masks.append(aux["relu_aux"])
    z = scores(layers[-1:], inputs[-1])
    z = xp.exp(z - xp.amax(z, axis=1, keepdims=True))
    dz = (z / z.sum(axis=1, keepdims=True) - wanted) / len(z)  # of the last layer, before softmax
    db = dz.sum(axis=0, keepdims=True)
    found = []
    for w, _ in layers[:0:-1]:
        found.append((matmul(inputs.pop().T, dz), db))
        dz, aux = matmul(dz, w.T, epilog=MatmulEpilog.DRELU_BGRAD, epilog_inputs={"relu_aux": masks.pop()})
        db = aux["drelu_bgrad"]
    found.append((matmul(x.T, dz), db))
    return found[::-1]


def expected_gradients(layers, x, wanted):
    """The same in float64, by NumPy alone."""
    inputs = [x]
    for w, b in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ w + b, 0))
    z = np.exp(inputs[-1] @ layers[-1][0] + layers[-1][1])
    dz = (z / z.sum(axis=1, keepdims=True) - wanted) / len(z)
    found = []
    for (w, _), h in zip(layers[::-1], inputs[::-1], strict=True):
        found.append((h.T @ dz, dz.sum(axis=0, keepdims=True)))
        dz = dz @ w.T * (h > 0)
    return found[::-1]


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")  # says so where there is no GPU
    xp, bring, back = library()
    print(f"arrays of {xp.__name__}")

    images, digits = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)  # pixels are 0 to 16
    x, held_out, y, held_out_y = train_test_split(images, digits, test_size=0.25, stratify=digits, random_state=0)
    wanted = np.eye(10, dtype=np.float32)[y]
    rng = np.random.default_rng(0)
    start = [
        (rng.normal(0, (2 / m) ** 0.5, (m, n)).astype(np.float32), rng.uniform(-0.1, 0.1, (1, n)).astype(np.float32))
        for m, n in itertools.pairwise(FEATURES)
    ]
    layers = [(bring(w.copy()), bring(b.copy())) for w, b in start]
    batches = [(bring(x[i : i + BATCH]), bring(wanted[i : i + BATCH])) for i in range(0, len(x), BATCH)]

    got = np.concatenate([back(g).ravel() for pair in gradients(layers, *batches[0], xp) for g in pair])
    exact = expected_gradients([(w.astype(float), b.astype(float)) for w, b in start], x[:BATCH], wanted[:BATCH])
    exact = np.concatenate([g.ravel() for pair in exact for g in pair])
    gradient_error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
    print(f"gradients, error: {gradient_error:.1e} (at most {GRADIENT_BOUND:.0e})")

    begin = perf_counter()
    for _ in range(EPOCHS):
        for some_x, some_wanted in batches:
            for (w, b), (dw, db) in zip(layers, gradients(layers, some_x, some_wanted, xp), strict=True):
                w -= RATE * dw
                b -= RATE * db
    found = back(scores(layers, bring(held_out))).argmax(axis=1)
    print(f"time: {perf_counter() - begin:.2f} s, {EPOCHS} epochs of {len(batches)} steps")

    error = float(np.mean(found != held_out_y))
    print(f"accuracy: {1 - error:.3f} on {len(found)} held-out images, error: {error:.3f} (at most {ERROR_BOUND})")
    return 0 if gradient_error <= GRADIENT_BOUND and error <= ERROR_BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
