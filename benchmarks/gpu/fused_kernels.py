"""Triton kernels of the contrastive loss. Similarities exist only as tiles in registers.

Inputs are coordinates `x` of rows [k n w] and `y` of columns [k m w] in float64, as `fused.coshm1_coordinates`
computes them: the inner product of two points is coshm1. For the cosine they are unit vectors in float32 and k is 1.
Only the inner product is computed in float64, because coshm1 of close points loses all digits in float32; everything
after it is float32.

A program processes one tile of ROWS rows against one split of the columns, COLUMNS at a time. The kernels are called
twice: with queries as rows, and with candidates as rows.

NaN inputs give NaN outputs: clamps are written as comparisons, because `tl.maximum` ignores NaN. The kernels use only
operations that Triton's interpreter supports.
"""
# mypy: allow-untyped-defs

import triton
import triton.language as tl


@triton.jit
def log1p(u):
    """log(1 + u), for u < 1 by the series of 2 atanh(u / (2 + u)), whose relative error is 2e-9.

    Computing log(1 + u) directly loses the digits of small u.
    """
    z = u / (2 + u)
    series = z * 0 + 1 / 15
    for n in tl.static_range(7):
        series = series * (z * z) + 1 / (13 - 2 * n)
    return tl.where(u < 1, 2 * z * series, tl.log(1 + u))


@triton.jit
def distance_and_sinh(coshm1, eps):
    """h = acosh(1 + coshm1) and s = sinh(h) = sqrt(coshm1 (coshm1 + 2)), with coshm1 clamped to at least eps."""
    coshm1 = coshm1.to(tl.float32)
    coshm1 = tl.where(coshm1 < eps, eps, coshm1)
    s = tl.sqrt(coshm1 * (coshm1 + 2))
    return log1p(coshm1 + s), s


@triton.jit
def load_coordinates(x, factor, points, n, width, start, DEPTH: tl.constexpr):
    """Load coordinates start to start + DEPTH of `points` in one factor, [points DEPTH]; 0 outside the array."""
    dims = start + tl.arange(0, DEPTH)
    mask = (points < n)[:, None] & (dims < width)[None, :]
    return tl.load(x + (factor * n + points)[:, None] * width + dims[None, :], mask=mask, other=0)


@triton.jit
def inner_product(x, y, factor, rows, columns, n_rows, n_columns, width, DEPTH: tl.constexpr):
    """Inner products [rows columns] in one factor, in the dtype of the coordinates."""
    total = tl.zeros([rows.shape[0], columns.shape[0]], x.dtype.element_ty)
    for start in range(0, width, DEPTH):
        a = load_coordinates(x, factor, rows, n_rows, width, start, DEPTH)
        b = load_coordinates(y, factor, columns, n_columns, width, start, DEPTH)
        total = tl.dot(a, tl.trans(b), total, input_precision="tf32x3")
    return total


@triton.jit
def similarities(
    x, y, weights, rows, columns, n_rows, n_columns, width, n_factors, eps, METRIC: tl.constexpr, DEPTH: tl.constexpr
):
    """Similarities [rows columns], and the inner products in the last factor. `DistanceBlocks` explains the weights."""
    if METRIC == "cosine":
        last_product = inner_product(x, y, 0, rows, columns, n_rows, n_columns, width, DEPTH)
        similarity = last_product
    else:
        total = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
        last_product = tl.zeros([rows.shape[0], columns.shape[0]], tl.float64)
        for factor in range(n_factors):
            last_product = inner_product(x, y, factor, rows, columns, n_rows, n_columns, width, DEPTH)
            h, _ = distance_and_sinh(last_product, eps)
            total += tl.load(weights + factor) * (h if METRIC == "l1" else h * h)
        similarity = -total if METRIC == "l1" else -tl.sqrt(total)
    return similarity, last_product


@triton.jit
def softmax_kernel(
    x, y, weights, scale, targets, maxima, sums, target_logits,
    n_rows, n_columns, width, n_factors, eps, tiles_per_split,
    METRIC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Softmax statistics of each row over the columns of each split.

    The outputs are [split n]: `maxima`, the largest logits; `sums`, the sums of exp(logit - max); `target_logits`, the
    logits of the targets, or 0 in splits without the target.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    target = tl.load(targets + rows, mask=rows < n_rows, other=-1)
    logit_scale = tl.load(scale)
    running_max = tl.full([ROWS], float("-inf"), tl.float32)
    total, target_logit = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for tile in range(split * tiles_per_split, tl.minimum((split + 1) * tiles_per_split, tl.cdiv(n_columns, COLUMNS))):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        similarity, _ = similarities(
            x, y, weights, rows, columns, n_rows, n_columns, width, n_factors, eps, METRIC, DEPTH
        )
        logits = tl.where((columns < n_columns)[None, :], logit_scale * similarity, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(logits, 1))
        total = total * tl.exp(running_max - new_max) + tl.sum(tl.exp(logits - new_max[:, None]), 1)
        running_max = new_max
        target_logit += tl.sum(tl.where(columns[None, :] == target[:, None], logits, 0.0), 1)
    offsets, mask = split * n_rows + rows, rows < n_rows
    tl.store(maxima + offsets, running_max, mask=mask)
    tl.store(sums + offsets, total, mask=mask)
    tl.store(target_logits + offsets, target_logit, mask=mask)


@triton.jit
def gradient_kernel(
    x, y, weights, scale, row_targets, row_maxima, row_sums, column_targets, column_maxima, column_sums,
    grad_x, grad_weights, grad_scale, n_rows, n_columns, width, n_factors, eps, tiles_per_split,
    METRIC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SINGLE_FACTOR: tl.constexpr,
):  # fmt: skip
    """Gradients of the sum of the losses: `grad_x` [split k n w], `grad_weights` [program k], `grad_scale` [program].

    The losses are those of the rows, if `row_maxima` is given, plus those of the columns, if `column_maxima` is given.
    Without `grad_scale`, only `grad_x` is computed. With SINGLE_FACTOR, the inner products are not computed a second
    time. Only one program adds to each number, in a fixed order, so results are bitwise reproducible.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    program = tl.program_id(0) * tl.num_programs(1) + split
    logit_scale = tl.load(scale)
    sum_scale = tl.zeros([ROWS], tl.float32)
    if row_maxima is not None:
        row_target = tl.load(row_targets + rows, mask=rows < n_rows, other=-1)
        row_max = tl.load(row_maxima + rows, mask=rows < n_rows, other=0)
        row_sum = tl.load(row_sums + rows, mask=rows < n_rows, other=1)
    for tile in range(split * tiles_per_split, tl.minimum((split + 1) * tiles_per_split, tl.cdiv(n_columns, COLUMNS))):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        similarity, coshm1 = similarities(
            x, y, weights, rows, columns, n_rows, n_columns, width, n_factors, eps, METRIC, DEPTH
        )
        logits = logit_scale * similarity
        # Gradient with respect to the logits, then the similarities, then (l2) the weighted sum under the root.
        grad = tl.zeros([ROWS, COLUMNS], tl.float32)
        if row_maxima is not None:
            grad += tl.exp(logits - row_max[:, None]) / row_sum[:, None]
            grad -= tl.where(columns[None, :] == row_target[:, None], 1.0, 0.0)
        if column_maxima is not None:
            column_target = tl.load(column_targets + columns, mask=columns < n_columns, other=-1)
            column_max = tl.load(column_maxima + columns, mask=columns < n_columns, other=0)
            column_sum = tl.load(column_sums + columns, mask=columns < n_columns, other=1)
            grad += tl.exp(logits - column_max[None, :]) / column_sum
            grad -= tl.where(rows[:, None] == column_target[None, :], 1.0, 0.0)
        grad = tl.where((rows < n_rows)[:, None] & (columns < n_columns)[None, :], grad, 0.0)
        if grad_scale is not None:
            sum_scale += tl.sum(grad * similarity, 1)
        grad *= logit_scale
        if METRIC == "l2":
            grad /= -similarity
        for factor in range(n_factors):
            if METRIC == "cosine":
                grad_product = grad
            else:
                if not SINGLE_FACTOR:
                    coshm1 = inner_product(x, y, factor, rows, columns, n_rows, n_columns, width, DEPTH)
                h, s = distance_and_sinh(coshm1, eps)
                grad_distance = -grad if METRIC == "l1" else -grad * h
                if grad_scale is not None:
                    grad_weight = grad_distance * h if METRIC == "l1" else grad_distance * h / 2
                    weight = grad_weights + program * n_factors + factor
                    tl.atomic_add(weight, tl.sum(grad_weight), sem="relaxed")  # no other program adds to this number
                is_clamped = coshm1.to(tl.float32) <= eps
                grad_product = tl.load(weights + factor) * tl.where(is_clamped, 0.0, grad_distance / s)
            for start in range(0, width, DEPTH):
                b = load_coordinates(y, factor, columns, n_columns, width, start, DEPTH).to(tl.float32)
                dims = start + tl.arange(0, DEPTH)
                mask = (rows < n_rows)[:, None] & (dims < width)[None, :]
                offsets = ((split * n_factors + factor) * n_rows + rows)[:, None] * width + dims[None, :]
                grad_rows = tl.dot(grad_product, b, input_precision="tf32x3")
                tl.atomic_add(grad_x + offsets, grad_rows, mask=mask, sem="relaxed")
    if grad_scale is not None:
        tl.store(grad_scale + program, tl.sum(sum_scale))
