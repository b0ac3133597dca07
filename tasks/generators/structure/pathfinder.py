"""Are two dots the ends of one dashed path?"""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import one_of, shuffled
from tasks.generators.placing import LAST, labels_at
from tasks.spec import TaskSpec

DARK, DASH, DOT = range(3)
SPACING = 3
"""Pixels from a lattice point to the next: two of a dash, one of a gap."""

TRIES = 8
"""Attempts to fit one path into a picture before the picture is begun anew."""


class Pathfinder(Task):
    """Say whether the two dots of a picture, read pixel by pixel, are the ends of the same dashed path.

    Definition: a picture of image_size x image_size pixels, row after row, contains two long paths of path_length
    dashes and n_distractors short ones of distractor_length. Tokens are 0 (dark), 1 (dash) and 2 (dot). If the label is
    1, the dots are the two ends of one long path; if it is 0, an end of each. Both labels are equally likely; the label
    is at the last pixel. The long paths are such that both pairs of ends are equally far apart, counted in rows plus
    columns, so the distance of the dots reveals nothing.

    Paths run on a square lattice with a point every 3 pixels, whose place in the picture is drawn too. A dash is the
    two pixels between neighbouring points; the point itself stays dark (a gap) unless it is a dot. Each path is a walk
    that turns at every point in a random direction, towards points not yet used, so no two paths share a point and none
    meets itself. So a picture can be read by one rule: lit pixels whose rows and columns both differ by at most 2
    belong to one path; pixels of different paths are 3 or more apart.

    At another length, which must be a square number, the picture is larger or smaller and the paths keep their sizes.

    Source: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units", arXiv
    1805.08315; 32 x 32 pixels as in Tay et al., "Long Range Arena", arXiv 2011.04006, whose numbers of paths and dashes
    are the defaults. There the paths are smooth curves drawn in grey levels and dots are discs; here several thousand
    pictures are made per second, and the label can be checked.

    Prediction: Neighbours in the picture are far apart in the sequence: a mixer must carry what it saw over rows of
    image_size positions and join it step by step, so depth and a long memory count; S4 reaches 94 % on the published
    pictures, where attention without special training stays between 70 and 80 %.

        >>> task = Pathfinder(image_size=11, path_length=2, distractor_length=1, n_distractors=0)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> for row in example["inputs"].reshape(11, 11):
        ...     print(*(task.input_text(token) for token in row))
        . . . . . . . . . . .
        . . . . . . . . . . .
        . . . . . . . . . . .
        . . . . . . . . . . .
        . O # # . . . . . . .
        . . . . # . . # . . .
        . . . . # . . # . . .
        . . . . O . . . . . .
        . . . . . . . # . . .
        . . . . . . . # . . .
        . . . . . . . . . . .
        >>> int(example["labels"][0, -1])
        1

    Args:
        image_size: pixels in a row and in a column.
        path_length: dashes of each of the two long paths.
        distractor_length: dashes of a short path.
        n_distractors: short paths.
    """

    slow: ClassVar[bool] = True

    def __init__(
        self,
        image_size: int = 32,
        path_length: int = 14,
        distractor_length: int = 4,
        n_distractors: int = 5,
    ) -> None:
        self.image_size = self._whole("image_size", image_size, 9)
        self.path_length = self._whole("path_length", path_length, 1)
        self.distractor_length = self._whole("distractor_length", distractor_length, 1)
        self.n_distractors = self._whole("n_distractors", n_distractors, 0)
        self._side = self.image_size // SPACING  # lattice points in a row
        # Longer walks get caught, and walks rarely fit into a fuller lattice: drawing them would take for ever.
        short = self.distractor_length <= self.path_length <= 2 * self._side
        self._demand(short, "lengths must be distractor_length <= path_length <= 2 * (image_size // 3)")
        used = 2 * (self.path_length + 1) + self.n_distractors * (self.distractor_length + 1)
        self._demand(
            3 * used <= 2 * self._side**2,
            f"paths of {used} points must fit two thirds of the lattice of (image_size // 3)^2",
            "path_length",
            "distractor_length",
            "n_distractors",
        )

    @cached_property
    def _neighbours(self) -> np.ndarray:
        """The points to the right, the left, below and above each point; outside is point side², which is never free.

        int64 (side², 4).
        """
        points = np.arange(self._side**2)
        row, column = np.divmod(points, self._side)
        outside = np.stack([column == self._side - 1, column == 0, row == self._side - 1, row == 0], axis=1)
        steps = np.array([1, -1, self._side, -self._side])
        return np.where(outside, self._side**2, points[:, None] + steps)

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(self.image_size**2, 3, 2, labelled=1)

    def at_length(self, seq_len: int) -> Self:
        image_size = math.isqrt(seq_len)
        if image_size**2 != seq_len:
            raise ValueError(f"{self.name}: the length of a square picture must be a square number, got {seq_len}")
        return type(self)(**(self.options() | {"image_size": image_size}))

    def input_text(self, token: int) -> str:
        return ".#O"[token]

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        paths, pairs = self._fitted_paths(rng, n)
        labels = rng.integers(2, size=n)
        pictures = self._drawn(rng, paths, dots=pairs[np.arange(n), labels])
        return {"inputs": pictures, "labels": labels_at(LAST, labels[:, None], self.image_size**2)}

    def _fitted_paths(self, rng: np.random.Generator, n: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the points of every path, int64 (n, dashes + 1) each, and the ends that each label marks, (n, 2, 2).

        A row in which a path does not fit, or no two pairs of ends are equally far apart, is begun anew.
        """
        lengths = [self.path_length] * 2 + [self.distractor_length] * self.n_distractors
        paths = [np.empty((n, length + 1), dtype=np.int64) for length in lengths]
        pairs = np.empty((n, 2, 2), dtype=np.int64)
        rows = np.arange(n)
        while len(rows):
            free = np.ones((len(rows), self._side**2 + 1), dtype=bool)
            free[:, -1] = False
            unfitted = []
            for j, path in enumerate(paths):
                walks, fitted = self._fitted(rng, free, path.shape[1])
                path[rows] = walks
                if j == 1:
                    pairs[rows], alike = self._pairs_of_ends(rng, paths[0][rows], paths[1][rows])
                    fitted &= alike
                unfitted.append(rows[~fitted])
                rows, free = rows[fitted], free[fitted]
            rows = np.concatenate(unfitted)
        return paths, pairs

    def _pairs_of_ends(
        self, rng: np.random.Generator, one: np.ndarray, other: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return an end of each of two paths, then both ends of one: (n, 2, 2); and in which rows the distances agree.

        Which path has both of its ends in the pair is drawn: the one that was drawn first has had more room.
        """
        rows = np.arange(len(one))
        ends = np.stack([one[:, [0, -1]], other[:, [0, -1]]], axis=1)[rows[:, None], shuffled(rng, len(one), 2)]
        mine = ends[:, 0]
        mixed = np.stack([ends[:, [0, 1], [i, j]] for i in (0, 1) for j in (0, 1)], axis=1)
        alike = self._distance(mixed) == self._distance(mine)[:, None]
        found = alike.any(axis=1)
        # A row without such a pair gets any: it is not used.
        chosen = mixed[rows, one_of(rng, alike | ~found[:, None])]
        return np.stack([chosen, mine], axis=1), found

    def _fitted(self, rng: np.random.Generator, free: np.ndarray, n_points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a walk over free points for each row, and which rows have found one; their points are free no more."""
        walks = np.zeros((len(free), n_points), dtype=np.int64)
        fitted = np.zeros(len(free), dtype=bool)
        for _ in range(TRIES):
            todo = np.flatnonzero(~fitted)
            if not len(todo):
                break
            tried, done, left = self._walked(rng, free[todo], n_points)
            walks[todo[done]], free[todo[done]], fitted[todo[done]] = tried[done], left[done], True
        return walks, fitted

    def _walked(
        self, rng: np.random.Generator, free: np.ndarray, n_points: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Walk from a free point of each row; return the walks, which of them ended, and the points still free."""
        free, walks = free.copy(), np.zeros((len(free), n_points), dtype=np.int64)
        rows, here = np.arange(len(free)), one_of(rng, free)
        walks[:, 0], free[rows, here] = here, False
        for i in range(1, n_points):
            ways = self._neighbours[here]
            passable = free[rows[:, None], ways]
            goes_on = passable.any(axis=1)
            rows, ways, passable = rows[goes_on], ways[goes_on], passable[goes_on]
            here = ways[np.arange(len(rows)), one_of(rng, passable)]
            walks[rows, i], free[rows, here] = here, False
        done = np.zeros(len(free), dtype=bool)
        done[rows] = True
        return walks, done, free

    def _distance(self, pairs: np.ndarray) -> np.ndarray:
        """Return rows plus columns between two lattice points: (..., 2) to (...)."""
        row, column = np.divmod(pairs, self._side)
        return np.abs(row[..., 0] - row[..., 1]) + np.abs(column[..., 0] - column[..., 1])

    def _drawn(self, rng: np.random.Generator, paths: list[np.ndarray], dots: np.ndarray) -> np.ndarray:
        """Return the pictures, pixel after pixel, int64 (n, image_size²)."""
        n = len(dots)
        pictures = np.full((n, self.image_size**2), DARK, dtype=np.int64)
        # The lattice covers all but a few rows and columns, which lie at random on its two sides.
        spare = self.image_size - (SPACING * (self._side - 1) + 1)
        corner = rng.integers(spare + 1, size=(n, 2)) @ np.array([self.image_size, 1])
        row, column = np.divmod(np.arange(self._side**2), self._side)
        pixel_of = SPACING * (row * self.image_size + column)
        for path in paths:
            pixels = pixel_of[path] + corner[:, None]
            step = np.diff(pixels, axis=1) // SPACING
            for k in range(1, SPACING):
                np.put_along_axis(pictures, pixels[:, :-1] + k * step, DASH, axis=1)
        np.put_along_axis(pictures, pixel_of[dots] + corner[:, None], DOT, axis=1)
        return pictures
