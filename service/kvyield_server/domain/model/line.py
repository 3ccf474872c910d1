"""The numerics of the pool line: a Bayesian straight line whose price of a token and noise scale are integrated out.

One GPU's KV memory is K(f) = m f - w GiB and its pool N(f) = K(f) / c', where c' = c / 2^30 is GiB per token. Given c
everything known is linear in (m, w), so in tokens, with the level L = (m x0 - w) / c' - y0 at the mean fraction x0 and
the slope a = m / c':

    pool of a start      L + a (x - x0) = y - y0             sd: page, noise s y, boot
    KV memory printed    L + a (x - x0) = K / c' - y0        sd: (print, noise s K) / c'
    memory m             a = m0 / c'                         sd / c'
    weights w            a x0 - L = w0 / c' + y0             sd / c'
    zero crossing g      a (g - x0) + L = -y0                sd / c'
    slope of a relative  a = a0                              sd

That is a two-dimensional normal posterior in closed form, with the evidence p(data | c, s) beside it (the Jacobian of
(m, w) -> (L, a) is c'^2). The noise scale s runs over a few fixed values, from nothing but the rounding to a page up to
starts that have nothing to do with one another; hypotheses say which source of prior knowledge is wrong; and log c runs
over a grid that is narrowed until it resolves its own posterior. What comes out is one normal per (scale, hypothesis),
weighted by evidence: a mixture. Equal starts that agree to a token make the smallest scale certain; starts that do not
agree make a larger one certain, without any threshold in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import erfc, exp, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GIB = float(2**30)
LEAST_RELATIVE_SD = 2e-7
LEAST_BOOT_SD = 1e-6
"""Equal starts repeat to the token on a GPU of their own (recorded H200 starts), which leaves this much doubt."""
SPOILED = 0.1
"""How often a start lies off the line for a cause of its own, anywhere within its pool: a judgement."""
NODES, MOST_ROUNDS = 13, 12
_U: Floats = np.linspace(-1.0, 1.0, NODES)
_NEGLIGIBLE = 2e-3
_ROOT_TWO = sqrt(2.0)


@dataclass(frozen=True, slots=True)
class Normal:
    """A quantity known to be about ``mean``, with a standard deviation."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class NoiseScales:
    """Scatter of equal starts: relative scales, multiples of the boot scatter, and how likely each is beforehand.

    A scale beyond ``usual`` explains figures that have nothing to do with one another.
    """

    relative: tuple[float, ...]
    boot: tuple[float, ...]
    weight: tuple[float, ...]
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Starts on one line: abscissae, pools in tokens (NaN where only GiB were printed), and GiB printed.

    ``page_sd`` is the rounding of a pool, tokens; ``print_sd`` of a printed figure, GiB.
    """

    x: Floats
    tokens: Floats
    gib: Floats
    page_sd: float
    print_sd: float

    @property
    def count(self) -> int:
        return int(self.x.size)

    def chosen(self, keep: NDArray[np.bool_]) -> Points:
        """Return the points that are kept."""
        return replace(self, x=self.x[keep], tokens=self.tokens[keep], gib=self.gib[keep])


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Which prior knowledge is wrong, how likely that is, and by what each standard deviation grows then."""

    name: str
    weight: float
    base_sd_gib: float = 0.0
    weights_sd_gib: float = 0.0
    cost_sd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePrior:
    """What is known before the points: memory m and weights w in GiB, log c, and what relatives lend.

    ``printed_cost`` is log c as prices printed by starts themselves give it, which no hypothesis doubts.
    """

    base: Normal
    weights: Normal
    cost: Normal
    printed_cost: Normal | None = None
    slopes: tuple[Normal, ...] = ()
    crossings: tuple[Normal, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = (Hypothesis("sound", 1.0),)
    boot_gib: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePosterior:
    """Weighted normals over theta = (tokens at x = 0, tokens per 1.0, m GiB, w GiB), one per surviving hypothesis.

    ``noise`` is each one's relative scale, ``boot`` its boot scatter in tokens; ``sound`` is how likely the prior
    knowledge is right; ``log_cost`` is log c over all.
    """

    weight: Floats
    theta: Floats
    covariance: Floats
    noise: Floats
    boot: Floats
    page_sd: float
    log_cost: Normal
    blame: dict[str, float]
    center: float

    @property
    def sound(self) -> float:
        return self.blame.get("sound", 0.0)

    def tokens(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return mean, standard deviation and weight of the pool at each x, arrays of shape (k, n).

        No component falls with the fraction: a slope below zero counts as zero about the middle of the evidence.
        """
        slope = self.theta[:, 1:2]
        mean = self.theta[:, :1] + self.center * slope + np.maximum(slope, 0.0) * (x - self.center)
        c = self.covariance
        variance = c[:, 0, 0, None] + x * (2.0 * c[:, 0, 1, None] + x * c[:, 1, 1, None])
        relative = np.maximum(self.noise, LEAST_BOOT_SD)[:, None]
        variance = variance + self.page_sd**2 + (relative * mean) ** 2 + self.boot[:, None] ** 2
        return mean, np.sqrt(np.maximum(variance, 1e-12)), np.full(mean.shape, self.weight[:, None])

    def gib(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return mean, standard deviation and weight of K at each x, GiB, without the scatter of starts.

        No component falls with the fraction.
        """
        rise = self.theta[:, 2:3]
        mean = rise * self.center - self.theta[:, 3:4] + np.maximum(rise, 0.0) * (x - self.center)
        c = self.covariance
        variance = c[:, 2, 2, None] * x * x - 2.0 * x * c[:, 2, 3, None] + c[:, 3, 3, None]
        return mean, np.sqrt(np.maximum(variance, 1e-12)), np.full(mean.shape, self.weight[:, None])

    def moments(self) -> tuple[Floats, Floats]:
        """Return mean and covariance of theta over all hypotheses."""
        mean = self.weight @ self.theta
        off = self.theta - mean
        covariance = np.einsum("r,rij->ij", self.weight, self.covariance) + (self.weight[:, None] * off).T @ off
        return mean, covariance

    def beside(self, x: Floats, tokens: Floats) -> LinePosterior:
        """Return the posterior given starts that were set aside: boots scatter that much, or these have another cause.

        A cause of its own puts a pool anywhere, so that only starts no farther off than boots may scatter tell a larger
        scatter.
        """
        mean, sd, _ = self.tokens(x)
        scatter = np.exp(-0.5 * np.minimum(np.abs((tokens - mean) / sd), 30.0) ** 2) / (sqrt(2.0 * pi) * sd)
        likely = ((1.0 - SPOILED) * scatter + SPOILED / tokens).prod(axis=1)
        weight = self.weight * likely / likely.max()
        return replace(self, weight=weight / weight.sum())

    def below(self, row: Floats, bound: float, noise: float, *, trust: float) -> LinePosterior:
        """Return the posterior given that row·theta <= bound, or else that something unrelated was the cause.

        ``trust`` is how likely the report means what it says, before what is known of the line counts. Each normal
        becomes the one that matches the moments of the two cases together.
        """
        along = self.covariance @ row
        spread = np.sqrt(np.maximum(along @ row, 0.0) + noise**2)
        z = (bound - self.theta @ row) / spread
        weight, theta, covariance = self.weight.copy(), self.theta.copy(), self.covariance.copy()
        for k, value in enumerate(z.tolist()):
            chance = 0.5 * erfc(-value / _ROOT_TWO)
            likely = trust * chance + (1.0 - trust)
            share = trust * chance / likely
            weight[k] *= likely
            mills, shrink = truncation(value)
            step = along[k] / spread[k]
            theta[k] -= share * mills * step
            covariance[k] += (share * (1.0 - share) * mills**2 - share * shrink) * np.outer(step, step)
        total = float(weight.sum())
        return replace(self, weight=weight / total, theta=theta, covariance=covariance)


def truncation(z: float) -> tuple[float, float]:
    """Return what a bound ``z`` standard deviations above the mean does to a normal.

    The first figure is how many standard deviations its mean moves away from the bound, the second the share of its
    variance that goes.
    """
    density = exp(-0.5 * z * z) / sqrt(2.0 * pi) if abs(z) < 30.0 else 0.0
    mills = density / (0.5 * erfc(-z / _ROOT_TWO)) if z > -6.0 else -z - 1.0 / z
    return mills, min(0.98, max(0.0, mills * (mills + z)))


def fit_line(points: Points, prior: LinePrior, scales: NoiseScales) -> LinePosterior:
    """Return the posterior of one line: prior alone where there are no points."""
    return _Grid(points, prior, scales).posterior()


class _Grid:
    """All (scale, hypothesis) rows with their grids over log c; arrays have shape (rows,) or (rows, nodes)."""

    def __init__(self, points: Points, prior: LinePrior, scales: NoiseScales) -> None:
        self.points, self.prior, self.scales = points, prior, scales
        has_points = points.count > 0
        count = len(scales.relative) if has_points else 1
        hypotheses = prior.hypotheses
        typical = int(np.argmax(scales.weight)) if has_points else min(3, len(scales.relative) - 1)
        chosen = np.arange(count) if has_points else np.array([typical])
        relative, boot = np.array(scales.relative)[chosen], np.array(scales.boot)[chosen]
        self.relative = np.repeat(relative, len(hypotheses))
        self.boot = np.repeat(boot, len(hypotheses)) * prior.boot_gib * GIB / exp(self._nominal_cost())
        self.which = np.tile(np.arange(len(hypotheses)), count)
        own = np.array(scales.weight)[chosen]
        self.log_prior = np.log(np.outer(own / own.sum(), [h.weight for h in hypotheses])).ravel()
        more = np.array([(h.base_sd_gib, h.weights_sd_gib, h.cost_sd) for h in hypotheses])[self.which]
        self.base_sd = np.hypot(prior.base.sd, more[:, 0])[:, None]
        self.weights_sd = np.hypot(prior.weights.sd, more[:, 1])[:, None]
        doubt = np.hypot(more[:, 2], more[:, 0] / max(prior.base.mean, 1e-9))
        self.crossing_sds = [np.hypot(crossing.sd, more[:, 1])[:, None] for crossing in prior.crossings]
        self.slope_sds = [np.hypot(slope.sd, doubt * slope.mean)[:, None] for slope in prior.slopes]
        self.cost_sd = np.hypot(prior.cost.sd, more[:, 2])
        self.x0 = float(points.x.mean()) if has_points else 0.0
        known = points.tokens[~np.isnan(points.tokens)]
        self.y0 = float(known.mean()) if known.size else 0.0
        self._sum_points()

    def _nominal_cost(self) -> float:
        return (self.prior.printed_cost or self.prior.cost).mean

    def _sum_points(self) -> None:
        """Sum the points up per noise scale: they matter through these sums alone."""
        points, each = self.points, len(self.prior.hypotheses)
        relative, boot = self.relative[::each, None], self.boot[::each, None]
        counted = ~np.isnan(points.tokens)
        x, y = points.x[counted] - self.x0, points.tokens[counted]
        variance = points.page_sd**2 + (LEAST_RELATIVE_SD * y) ** 2 + (relative * y) ** 2 + boot**2
        self.data = _sums(1.0 / variance, x, y - self.y0, each)
        height = -0.5 * np.log(variance).sum(axis=1)
        x, k = points.x[~counted] - self.x0, points.gib[~counted]
        scale = exp(self._nominal_cost()) / GIB
        variance = points.print_sd**2 + (relative * k) ** 2 + (boot * scale) ** 2
        self.printed = _sums(1.0 / variance, x, k, each)
        self.log_scale = np.repeat(height - 0.5 * np.log(variance).sum(axis=1), each)

    def posterior(self) -> LinePosterior:
        center, half = self._start()
        for _ in range(MOST_ROUNDS):
            t = center[:, None] + half[:, None] * _U
            height, *_ = self._given(t)
            share = np.exp(height - height.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            mean = (share * t).sum(axis=1)
            sd = np.sqrt((share * (t - mean[:, None]) ** 2).sum(axis=1))
            spacing = half * (2.0 / (NODES - 1))
            is_resolved = sd > 0.8 * spacing
            new_half = np.where(is_resolved, 4.0 * sd, 1.6 * spacing)
            is_done = is_resolved & (new_half > 0.7 * half) & (new_half < 1.6 * half)
            center, half = np.where(is_done, center, mean), np.where(is_done, half, new_half)
            if is_done.all():
                break
        return self._collected(center[:, None] + half[:, None] * _U, half)

    def _start(self) -> tuple[Floats, Floats]:
        """Return where each row's grid over log c begins: the product of what is known of it, four deviations wide."""
        precision, pull = self.cost_sd**-2.0, self.prior.cost.mean * self.cost_sd**-2.0
        if self.prior.printed_cost is not None:
            own = self.prior.printed_cost.sd**-2.0
            precision, pull = precision + own, pull + self.prior.printed_cost.mean * own
        sd = precision**-0.5
        return pull / precision, 4.0 * sd

    def _given(self, t: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
        """Return log evidence given log c = t, and mean and covariance of (L, a): arrays of shape (rows, nodes)."""
        prior, per_token = self.prior, np.exp(t) / GIB
        n, sx, sxx, sy, sxy, syy = self.data
        kn, kx, kxx, ky, kxy, kyy = self.printed
        squared = per_token * per_token
        p00, p01, p11 = n + kn * squared, sx + kx * squared, sxx + kxx * squared
        b0 = sy + ky * per_token - kn * squared * self.y0
        b1 = sxy + kxy * per_token - kx * squared * self.y0
        q = syy + kyy - 2.0 * self.y0 * ky * per_token + kn * squared * self.y0**2
        weight, value = squared / self.base_sd**2, prior.base.mean / per_token
        p11, b1, q = p11 + weight, b1 + weight * value, q + weight * value**2
        weight, value = squared / self.weights_sd**2, prior.weights.mean / per_token + self.y0
        p00, p01, p11 = p00 + weight, p01 - weight * self.x0, p11 + weight * self.x0**2
        b0, b1, q = b0 - weight * value, b1 + weight * value * self.x0, q + weight * value**2
        for crossing, sd in zip(prior.crossings, self.crossing_sds, strict=True):
            weight, far = squared / sd**2, crossing.mean - self.x0
            p00, p01, p11 = p00 + weight, p01 + weight * far, p11 + weight * far**2
            b0, b1, q = b0 - weight * self.y0, b1 - weight * far * self.y0, q + weight * self.y0**2
        for slope, sd in zip(prior.slopes, self.slope_sds, strict=True):
            weight = sd**-2.0
            p11, b1, q = p11 + weight, b1 + weight * slope.mean, q + weight * slope.mean**2
        determinant = np.maximum(p00 * p11 - p01 * p01, 1e-300)
        v00, v01, v11 = p11 / determinant, -p01 / determinant, p00 / determinant
        level, rise = v00 * b0 + v01 * b1, v01 * b0 + v11 * b1
        misfit = np.maximum(q - level * b0 - rise * b1, 0.0)
        off = (t - prior.cost.mean) / self.cost_sd[:, None]
        height = -0.5 * (misfit + off * off + np.log(determinant)) + 2.0 * np.log(per_token)
        if prior.printed_cost is not None:
            height = height - 0.5 * ((t - prior.printed_cost.mean) / prior.printed_cost.sd) ** 2
        return height, level, rise, v00, v01, v11

    def _collected(self, t: Floats, half: Floats) -> LinePosterior:
        height, level, rise, v00, v01, v11 = self._given(t)
        constant = (
            self.log_prior
            + self.log_scale
            + np.log(half)
            - np.log(self.cost_sd)
            - np.log(self.base_sd[:, 0])
            - np.log(self.weights_sd[:, 0])
            - sum(np.log(sd[:, 0]) for sd in (*self.crossing_sds, *self.slope_sds))
        )
        total = height + constant[:, None]
        share = np.exp(total - total.max())
        per_token = np.exp(t) / GIB
        # theta = (N at x = 0, a, m, w) as a linear image of (L, a) at each node
        ones, zero = np.ones_like(t), np.zeros_like(t)
        image = np.array(
            [
                [ones, zero - self.x0],
                [zero, ones],
                [zero, per_token],
                [-per_token, per_token * self.x0],
            ]
        )
        offset = np.array([ones * self.y0, zero, zero, -per_token * self.y0])
        inner = np.array([[v00, v01], [v01, v11]])
        theta = np.einsum("ikrj,krj->rji", image, np.array([level, rise])) + offset.transpose(1, 2, 0)
        covariance = np.einsum("ikrj,klrj,mlrj->rjim", image, inner, image)
        if self.points.count:
            return self._per_row(share, theta, covariance, t)
        noise, boot = np.repeat(self.relative, NODES), np.repeat(self.boot, NODES)
        every = _Components(share.ravel(), theta.reshape(-1, 4), covariance.reshape(-1, 4, 4), noise, boot)
        return self._made(every, t, share)

    def _per_row(self, share: Floats, theta: Floats, covariance: Floats, t: Floats) -> LinePosterior:
        """Return one normal per noise scale, hypotheses that say the same of the line counted as one."""
        inner = share / np.maximum(share.sum(axis=1), 1e-300)[:, None]
        mean = np.einsum("rj,rji->ri", inner, theta)
        sd = np.sqrt(np.maximum(np.einsum("rj,rji->ri", inner, (theta - mean[:, None, :]) ** 2), 0.0))
        sd += np.sqrt(np.maximum(np.einsum("rj,rjii->ri", inner, covariance), 0.0))
        count = len(self.prior.hypotheses)
        weight = share.sum(axis=1).reshape(-1, count)
        heaviest = weight.argmax(axis=1) + count * np.arange(weight.shape[0])
        home = np.repeat(heaviest, count)
        level = np.abs((mean - mean[home])[:, 0] + self.x0 * (mean - mean[home])[:, 1])
        rise = np.abs((mean - mean[home])[:, 1])
        width = np.sqrt(np.maximum(np.einsum("rj,rj->r", inner, self._level_variance(covariance)), 0.0))
        home = np.where((level < width + width[home]) & (rise < sd[:, 1] + sd[home, 1]), home, np.arange(home.size))
        kept = np.unique(home)
        slot = np.searchsorted(kept, home)
        total = np.zeros(kept.size)
        np.add.at(total, slot, share.sum(axis=1))
        part = share / np.maximum(total[slot], 1e-300)[:, None]
        joint_mean = np.zeros((kept.size, 4))
        np.add.at(joint_mean, slot, np.einsum("rj,rji->ri", part, theta))
        off = theta - joint_mean[slot][:, None, :]
        joint = np.zeros((kept.size, 4, 4))
        np.add.at(
            joint, slot, np.einsum("rj,rjim->rim", part, covariance) + np.einsum("rj,rji,rjm->rim", part, off, off)
        )
        return self._made(_Components(total, joint_mean, joint, self.relative[kept], self.boot[kept]), t, share)

    def _level_variance(self, covariance: Floats) -> Floats:
        """Return the variance of N at the middle of the evidence, at each node."""
        c, x = covariance, self.x0
        value: Floats = c[:, :, 0, 0] + x * (2.0 * c[:, :, 0, 1] + x * c[:, :, 1, 1])
        return value

    def _made(self, found: _Components, t: Floats, share: Floats) -> LinePosterior:
        whole = share / share.sum()
        mean = float((whole * t).sum())
        sd = sqrt(float((whole * (t - mean) ** 2).sum()))
        per_row = whole.sum(axis=1) * (self.relative <= self.scales.usual)
        blame = {
            hypothesis.name: float(per_row[self.which == index].sum())
            for index, hypothesis in enumerate(self.prior.hypotheses)
        }
        kept = found.weight > _NEGLIGIBLE * float(found.weight.max())
        return LinePosterior(
            weight=found.weight[kept] / found.weight[kept].sum(),
            theta=found.theta[kept],
            covariance=found.covariance[kept],
            noise=found.noise[kept],
            boot=found.boot[kept],
            page_sd=self.points.page_sd,
            log_cost=Normal(mean, max(sd, 1e-9)),
            blame=blame,
            center=self.x0 if self.points.count else 0.5,
        )


def _sums(p: Floats, x: Floats, y: Floats, each: int) -> tuple[Floats, ...]:
    """Return the sums of p, p x, p x^2, p y, p x y and p y^2 per row, repeated for each hypothesis."""
    found = p @ np.column_stack((np.ones_like(x), x, x * x, y, x * y, y * y))
    return tuple(np.repeat(found[:, index], each)[:, None] for index in range(6))


@dataclass(frozen=True, slots=True)
class _Components:
    """Weighted normals over theta with their scatter, not yet normalised."""

    weight: Floats
    theta: Floats
    covariance: Floats
    noise: Floats
    boot: Floats


def price(bytes_per_token: float, relative_sd: float) -> Normal:
    """Return what is known of log c from bytes per token and their relative doubt."""
    return Normal(log(bytes_per_token), relative_sd)


def combined(normals: Sequence[Normal], *, least_sd: float = 0.0) -> Normal | None:
    """Return the precision-weighted mean of normals whose errors are of one kind: no surer than the surest of them."""
    if not normals:
        return None
    weights = [normal.sd**-2.0 for normal in normals]
    mean = sum(n.mean * w for n, w in zip(normals, weights, strict=True)) / sum(weights)
    return Normal(mean, max(min(n.sd for n in normals), least_sd))
