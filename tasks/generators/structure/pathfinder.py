"""Pathfinder: decide whether two dots are the ends of one dashed path."""

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
"""Pixels from a lattice point to the next: two for a dash, one for a gap."""

TRIES = 8
"""Attempts to fit a path into a picture before the picture is restarted."""


class Pathfinder(Task):
    """Decide whether the two dots of a picture, read pixel by pixel, are the ends of the same dashed path.

    Definition: a picture of image_size x image_size pixels, row after row, contains two long paths of path_length
    dashes and n_distractors short paths of distractor_length dashes. Tokens are 0 (dark), 1 (dash) and 2 (dot). If the
    label is 1, the dots are the two ends of one long path; if it is 0, one end of each. Both labels are equally likely;
    the label is at the last pixel. In each picture both choices of dots have the same distance in rows plus columns, so
    the distance reveals nothing.

    Paths run on a square lattice with a point every 3 pixels, whose offset in the picture is also random. A dash is the
    two pixels between neighbouring points; the point itself stays dark (a gap) unless it is a dot. Each path is a walk
    in random directions towards unused points, so no point is used twice. One rule therefore reads a picture: lit
    pixels whose rows and columns both differ by at most 2 belong to one path; pixels of different paths are 3 or more
    apart.

    At another length, which must be a square number, the picture is larger or smaller and the paths keep their sizes.

    Source: Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units", arXiv
    1805.08315; 32 x 32 pixels as in Tay et al., "Long Range Arena", arXiv 2011.04006, with their numbers of paths and
    dashes as defaults. Their paths are smooth curves in grey levels, and their dots are discs. Ours are fast to draw,
    several thousand pictures per second, and their labels can be checked.

    Prediction: Neighbours in the picture are far apart in the sequence. A mixer must carry information over rows of
    image_size positions and join it step by step, so depth and a long memory count. On the published pictures S4
    reaches 94 %; attention without special training stays between 70 and 80 %.

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
        image_size: pixels per row and column.
        path_length: number of dashes of each long path.
        distractor_length: number of dashes of each short path.
        n_distractors: number of short paths.
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
        # Longer walks get trapped, and walks rarely fit into a fuller lattice: drawing them would take forever.
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
        """The points to the right, the left, below and above each point, int64 (side², 4).

        Outside the lattice this is point side², which is never free.
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
        """Return the points of every path, int64 (n, dashes + 1) each, and the dots for each label, (n, 2, 2).

        A row is restarted if a path does not fit, or if no two pairs of ends are equally far apart.
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
        """Return one end of each path, then both ends of one path, (n, 2, 2), and whether the distances agree, (n,).

        The path whose ends form the second pair is random, because the path drawn first had more room.
        """
        rows = np.arange(len(one))
        ends = np.stack([one[:, [0, -1]], other[:, [0, -1]]], axis=1)[rows[:, None], shuffled(rng, len(one), 2)]
        mine = ends[:, 0]
        mixed = np.stack([ends[:, [0, 1], [i, j]] for i in (0, 1) for j in (0, 1)], axis=1)
        alike = self._distance(mixed) == self._distance(mine)[:, None]
        found = alike.any(axis=1)
        # A row without such a pair gets an arbitrary one, which is not used.
        chosen = mixed[rows, one_of(rng, alike | ~found[:, None])]
        return np.stack([chosen, mine], axis=1), found

    def _fitted(self, rng: np.random.Generator, free: np.ndarray, n_points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a walk over free points for each row, and whether one was found; mark its points as used in `free`."""
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
        """Walk from a free point of each row; return the walks, whether each is complete, and the points still free."""
        free, walks = free.copy(), np.zeros((len(free), n_points), dtype=np.int64)
        rows, here = np.arange(len(free)), one_of(rng, free)
        walks[:, 0], free[rows, here] = here, False
        for i in range(1, n_points):
            ways = self._neighbours[here]
            passable = free[rows[:, None], ways]
            continues = passable.any(axis=1)
            rows, ways, passable = rows[continues], ways[continues], passable[continues]
            here = ways[np.arange(len(rows)), one_of(rng, passable)]
            walks[rows, i], free[rows, here] = here, False
        done = np.zeros(len(free), dtype=bool)
        done[rows] = True
        return walks, done, free

    def _distance(self, pairs: np.ndarray) -> np.ndarray:
        """Return the distance of two lattice points in rows plus columns: (..., 2) to (...)."""
        row, column = np.divmod(pairs, self._side)
        return np.abs(row[..., 0] - row[..., 1]) + np.abs(column[..., 0] - column[..., 1])

    def _drawn(self, rng: np.random.Generator, paths: list[np.ndarray], dots: np.ndarray) -> np.ndarray:
        """Return the pictures as sequences of pixels, int64 (n, image_size²)."""
        n = len(dots)
        pictures = np.full((n, self.image_size**2), DARK, dtype=np.int64)
        # The lattice covers all but a few rows and columns, which are divided at random between its two sides.
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
