"""Triton kernels of the contrastive loss: similarities a tile at a time, in registers and nowhere else.

Coordinates [k n w] are those of `blocks.extend` in float64, whose product is the gap of two points; cosine: directions in
float32, k = 1. float64 is for that product alone, since neighbours have no digits left in float32; all after it is float32.
Comparisons are written so that NaN stays NaN, which `maximum` would hide.

A kernel looks at its rows against a share of the columns (`split`). It is the same for queries and for candidates: swapped.
Only Triton's own operations are used, which its interpreter knows as well.
"""
# mypy: allow-untyped-defs

import triton
import triton.language as tl


@triton.jit
def log1p(u):
    """log(1 + u); below 1, where the sum would round u away, 2 atanh(u / (2 + u)) as a series, to 2e-9 of it."""
    z = u / (2 + u)
    series = z * 0 + 1 / 15
    for n in tl.static_range(7):
        series = series * (z * z) + 1 / (13 - 2 * n)
    return tl.where(u < 1, 2 * z * series, tl.log(1 + u))


@triton.jit
def angle(gap, eps):
    """h = acosh(1 + gap) and 1 / slope = s = sqrt(gap (gap + 2)), of gaps of at least eps."""
    gap = gap.to(tl.float32)
    gap = tl.where(gap < eps, eps, gap)
    s = tl.sqrt(gap * (gap + 2))
    return log1p(gap + s), s


@triton.jit
def coordinates(x, factor, points, n, width, start, DEPTH: tl.constexpr):
    """[points DEPTH] of one factor, 0 beyond the last point and the last coordinate."""
    places = start + tl.arange(0, DEPTH)
    there = (points < n)[:, None] & (places < width)[None, :]
    return tl.load(x + (factor * n + points)[:, None] * width + places[None, :], mask=there, other=0)


@triton.jit
def product(x, y, factor, rows, columns, n_rows, n_columns, width, DEPTH: tl.constexpr):
    """x . y [rows columns] of one factor, in the type of the coordinates."""
    total = tl.zeros([rows.shape[0], columns.shape[0]], x.dtype.element_ty)
    for start in range(0, width, DEPTH):
        a = coordinates(x, factor, rows, n_rows, width, start, DEPTH)
        b = coordinates(y, factor, columns, n_columns, width, start, DEPTH)
        total = tl.dot(a, tl.trans(b), total, input_precision="tf32x3")
    return total


@triton.jit
def similarities(
    x, y, weights, rows, columns, n_rows, n_columns, width, n_factors, eps, METRIC: tl.constexpr, DEPTH: tl.constexpr
):
    """[rows columns] and the last factor's product. See `blocks.Distances` for the weights."""
    if METRIC == "cosine":
        last = product(x, y, 0, rows, columns, n_rows, n_columns, width, DEPTH)
        similarity = last
    else:
        total = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
        last = tl.zeros([rows.shape[0], columns.shape[0]], tl.float64)
        for factor in range(n_factors):
            last = product(x, y, factor, rows, columns, n_rows, n_columns, width, DEPTH)
            h, _ = angle(last, eps)
            total += tl.load(weights + factor) * (h if METRIC == "l1" else h * h)
        similarity = -total if METRIC == "l1" else -tl.sqrt(total)
    return similarity, last


@triton.jit
def softmax_kernel(
    x, y, weights, scale, targets, peaks, sums, own, n_rows, n_columns, width, n_factors, eps, tiles,
    METRIC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Of each row and split: the largest logit, the sum of exponentials over that of it, and the target's logit or 0."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    target = tl.load(targets + rows, mask=rows < n_rows, other=-1)
    factor = tl.load(scale)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total, own_logit = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    for tile in range(split * tiles, tl.minimum((split + 1) * tiles, tl.cdiv(n_columns, COLUMNS))):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        similarity, _ = similarities(
            x, y, weights, rows, columns, n_rows, n_columns, width, n_factors, eps, METRIC, DEPTH
        )
        logits = tl.where((columns < n_columns)[None, :], factor * similarity, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, 1))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(logits - higher[:, None]), 1)
        peak = higher
        own_logit += tl.sum(tl.where(columns[None, :] == target[:, None], logits, 0.0), 1)
    place, there = split * n_rows + rows, rows < n_rows
    tl.store(peaks + place, peak, mask=there)
    tl.store(sums + place, total, mask=there)
    tl.store(own + place, own_logit, mask=there)


@triton.jit
def gradient_kernel(
    x, y, weights, scale, row_targets, row_peaks, row_sums, column_targets, column_peaks, column_sums,
    grad_x, grad_weights, grad_scale, n_rows, n_columns, width, n_factors, eps, tiles,
    METRIC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Gradients, of the sum of losses, of each split: coordinates [split k n w]; of each program: weights and scale.

    Losses are those of rows, of columns, or of both: the sides whose softmax is given. Without `grad_scale` only
    coordinates. ONE: of one factor the product is still there and need not be computed twice. Every number is added to
    by one program in its order, so sums have the same bits each time.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    program = tl.program_id(0) * tl.num_programs(1) + split
    factor_scale = tl.load(scale)
    sum_scale = tl.zeros([ROWS], tl.float32)
    if row_peaks is not None:
        row_target = tl.load(row_targets + rows, mask=rows < n_rows, other=-1)
        row_peak = tl.load(row_peaks + rows, mask=rows < n_rows, other=0)
        row_sum = tl.load(row_sums + rows, mask=rows < n_rows, other=1)
    for tile in range(split * tiles, tl.minimum((split + 1) * tiles, tl.cdiv(n_columns, COLUMNS))):
        columns = tile * COLUMNS + tl.arange(0, COLUMNS)
        similarity, gap = similarities(
            x, y, weights, rows, columns, n_rows, n_columns, width, n_factors, eps, METRIC, DEPTH
        )
        logits = factor_scale * similarity
        slope = tl.zeros([ROWS, COLUMNS], tl.float32)
        if row_peaks is not None:
            slope += tl.exp(logits - row_peak[:, None]) / row_sum[:, None]
            slope -= tl.where(columns[None, :] == row_target[:, None], 1.0, 0.0)
        if column_peaks is not None:
            target = tl.load(column_targets + columns, mask=columns < n_columns, other=-1)
            peak = tl.load(column_peaks + columns, mask=columns < n_columns, other=0)
            slope += tl.exp(logits - peak[None, :]) / tl.load(column_sums + columns, mask=columns < n_columns, other=1)
            slope -= tl.where(rows[:, None] == target[None, :], 1.0, 0.0)
        slope = tl.where((rows < n_rows)[:, None] & (columns < n_columns)[None, :], slope, 0.0)
        if grad_scale is not None:
            sum_scale += tl.sum(slope * similarity, 1)
        slope *= factor_scale
        if METRIC == "l2":
            slope /= -similarity
        for factor in range(n_factors):
            if METRIC == "cosine":
                along = slope
            else:
                if not ONE:
                    gap = product(x, y, factor, rows, columns, n_rows, n_columns, width, DEPTH)
                h, s = angle(gap, eps)
                along = -slope if METRIC == "l1" else -slope * h
                if grad_scale is not None:
                    half = along * h if METRIC == "l1" else along * h / 2
                    tl.atomic_add(grad_weights + program * n_factors + factor, tl.sum(half))
                along = tl.load(weights + factor) * tl.where(gap.to(tl.float32) <= eps, 0.0, along / s)
            for start in range(0, width, DEPTH):
                b = coordinates(y, factor, columns, n_columns, width, start, DEPTH).to(tl.float32)
                places = start + tl.arange(0, DEPTH)
                there = (rows < n_rows)[:, None] & (places < width)[None, :]
                place = ((split * n_factors + factor) * n_rows + rows)[:, None] * width + places[None, :]
                tl.atomic_add(grad_x + place, tl.dot(along, b, input_precision="tf32x3"), mask=there, sem="relaxed")
    if grad_scale is not None:
        tl.store(grad_scale + program, tl.sum(sum_scale))
