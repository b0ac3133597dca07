"""Images: classify pictures read pixel by pixel."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np

from tasks.base import DIVISION_SEED, Arrays, FiniteTask, named
from tasks.data.reading import OfSplits, content_hash, load_dataset
from tasks.generators.placing import LAST, labels_at
from tasks.spec import TaskSpec
from zoo.extras import require_extra

Colour = Literal["grey", "rgb"]


class Images(OfSplits, FiniteTask):
    """Classify an image after reading its pixels one by one, row after row.

    With `grey`, a position is a pixel's brightness as a token (256 levels; 17 for the digits below). With `rgb`, it is
    a vector of three numbers in [0, 1]. The only label, at the last position, is the class. The images are a data set
    of the Hugging Face hub (`dataset`), all of one size, or by default scikit-learn's 1,797 handwritten digits of 8 x 8
    pixels, which need no download. Each image belongs to only one split, and a split has each of its images at most
    once; the splits of a data set are kept. A data set may contain the same picture twice.

    Source: pixel sequences of Le, Jaitly and Hinton, "A Simple Way to Initialize Recurrent Networks", arXiv 1504.00941,
    and Tay et al., "Long Range Arena", arXiv 2011.04006; digits of Alpaydin and Kaynak, UCI 1998, by scikit-learn.

    Prediction: Vertical neighbours are a row's width apart in the sequence. State space models with slow poles carry
    them smoothly; attention needs positions, but attends to all pixels at once.

        >>> task = Images()
        >>> example = task.of_split("train").take(np.array([0]))
        >>> print(*(f"{pixel:3d}" for pixel in example["inputs"][0][:16]))
          0   0   1  13   7   0   0   0   0   0   7  14   2   0   0   0
        >>> int(example["labels"][0, -1])
        6

    Args:
        dataset: name of a data set on the hub, or a local folder with one.
        config: configuration of the data set.
        image_column: column of the pictures.
        label_column: column of the classes, as integers.
        colour: grey for tokens, rgb for vectors.
        validation: share of the images for validation, if the data has no validation split.
        test: share of the images for the test, if the data has no test split.
    """

    def __init__(
        self,
        dataset: str | None = None,
        config: str | None = None,
        image_column: str = "image",
        label_column: str = "label",
        colour: Colour = "grey",
        validation: float = 0.1,
        test: float = 0.1,
    ) -> None:
        self.dataset, self.config = dataset, config
        self.image_column, self.label_column = image_column, label_column
        self.colour: Colour = colour
        self._demand(colour in get_args(Colour), f"colour must be one of {', '.join(get_args(Colour))}")
        self._demand(dataset is not None or colour == "grey", "colour rgb needs a dataset, because the digits are grey")
        self._keep_shares(validation, test)

    @cached_property
    def _divided(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Pixels, uint8 (n, seq_len) or (n, seq_len, 3), and classes (n,), by split."""
        with named(self.name):
            found = self._digits() if self.dataset is None else self._loaded(self.dataset)
        pixels, classes = found["train"]
        order = np.random.default_rng(DIVISION_SEED).permutation(len(pixels))
        parts = self._parts(len(pixels), found).items()
        return found | {split: (pixels[order[part]], classes[order[part]]) for split, part in parts}

    def _digits(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        pixels, classes = require_extra("sklearn.datasets", "train").load_digits(return_X_y=True)
        return {"train": (np.asarray(pixels, dtype=np.uint8), np.asarray(classes, dtype=np.int64))}

    def _loaded(self, dataset: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        mode = {"grey": "L", "rgb": "RGB"}[self.colour]
        found, sizes = {}, set()
        for split, rows in load_dataset(dataset, self.config, (self.image_column, self.label_column)).items():
            pictures = [self._pixels(picture, mode) for picture in rows[self.image_column]]
            sizes |= {picture.shape[:2] for picture in pictures}
            if len(sizes) != 1:
                raise ValueError(f"the images of {dataset!r} must be of one size, got {len(sizes)} sizes")
            pixels = np.stack(pictures)
            flat = pixels.reshape(len(pixels), -1, *pixels.shape[3:])
            found[split] = flat, self._classes(split, list(rows[self.label_column]))
        return found

    def _pixels(self, picture: Any, mode: str) -> np.ndarray:
        own = getattr(picture, "mode", None)
        if own is None or own[0] in "IF":  # more bits would be cut off at 255
            got = "None" if own is None else f"mode {own}"
            raise ValueError(f"{self.image_column} must contain pictures with 8 bits per channel, got {got}")
        return np.asarray(picture.convert(mode))

    def _classes(self, split: str, labels: list[Any]) -> np.ndarray:
        for label in labels:
            if not isinstance(label, int) or label < 0:
                raise ValueError(f"{self.label_column} of {split} must be classes 0, 1, ..., got {label!r}")
        return np.asarray(labels, dtype=np.int64)

    @property
    def _here(self) -> tuple[np.ndarray, np.ndarray]:
        return self._divided[self._split]

    def of_split(self, split: str) -> Self:
        _ = self._divided  # read the images before the copy, so that all copies share them
        return super().of_split(split)

    def at_length(self, seq_len: int) -> Self:
        if seq_len != self._here[0].shape[1]:
            raise ValueError(f"images: the length is the number of pixels, {self._here[0].shape[1]}, got {seq_len}")
        return self

    def fingerprint(self) -> dict[str, Any]:
        parts = [array for split in sorted(self._divided) for array in self._divided[split]]
        return {"content": content_hash(*parts)}

    @property
    def spec(self) -> TaskSpec:
        pixels, classes = self._here
        every = np.concatenate([labels for _, labels in self._divided.values()])
        levels = 17 if self.dataset is None else 256
        return TaskSpec(
            input="tokens" if self.colour == "grey" else "vectors",
            seq_len=pixels.shape[1],
            n_outputs=int(every.max()) + 1,
            loss="cross_entropy",
            chance=float(np.bincount(classes).max() / len(classes)),
            vocab_size=levels if self.colour == "grey" else None,
            d_input=None if self.colour == "grey" else 3,
            labelled=1,
        )

    @property
    def size(self) -> int:
        return len(self._here[0])

    def take(self, rows: np.ndarray) -> Arrays:
        pixels, classes = self._here
        read = pixels[rows]
        inputs = read.astype(np.int64) if self.colour == "grey" else (read / 255).astype(np.float32)
        return {"inputs": inputs, "labels": labels_at(LAST, classes[rows][:, None], inputs.shape[1])}
