"""Real inputs: photographs, texts of real lengths, a real series. Bodies as clients send them.

The packages that hold the photographs and the series are imported where they are used: a scenario
with samples of its own needs neither.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from PIL import Image

SEED = 0
COUNT = 24
LONGEST_TEXT = 900  # characters; within the 256 tokens of a small embedding model
MONTHS = (12, 128)


@dataclass(frozen=True, slots=True)
class Body:
    """One request as it is sent."""

    content_type: str
    content: bytes


def photographs() -> list[Body]:
    """Two photographs, whole and in part, as JPEG files."""
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(SEED)
    images = [Image.fromarray(array) for array in load_sample_images().images]
    return [_crop(images[n % len(images)], random) for n in range(COUNT)]


def _crop(image: Image.Image, random: np.random.Generator) -> Body:
    share = random.uniform(0.4, 1)
    width, height = (int(side * share) for side in image.size)
    left = int(random.integers(0, image.width - width + 1))
    top = int(random.integers(0, image.height - height + 1))
    file = io.BytesIO()
    image.crop((left, top, left + width, top + height)).save(file, "JPEG", quality=90)
    return Body("image/jpeg", file.getvalue())


def texts() -> list[Body]:
    """Headings, paragraphs and what is between, from Python's own reference. Most are short; the
    few that are beyond the model are to be cut."""
    paragraphs = [" ".join(p.split()) for topic in topics.values() for p in topic.split("\n\n")]
    fitting = [p for p in paragraphs if 2 < len(p) <= LONGEST_TEXT and p[0].isalpha()]
    chosen = np.random.default_rng(SEED).choice(len(fitting), 4 * COUNT, replace=False)
    return json_bodies([{"text": fitting[n], "truncate": True} for n in chosen])


def series() -> list[Body]:
    """Windows of 12 to 128 months of sea surface temperatures."""
    from statsmodels.datasets import elnino

    random = np.random.default_rng(SEED)
    months = elnino.load_pandas().data.drop(columns="YEAR").to_numpy().ravel()
    lengths = random.integers(MONTHS[0], MONTHS[1] + 1, COUNT)
    starts = random.integers(0, len(months) - MONTHS[1], COUNT)
    windows = [
        months[start : start + length] for start, length in zip(starts, lengths, strict=True)
    ]
    return json_bodies([{"series": window.round(2).tolist()} for window in windows])


def json_bodies(samples: Sequence[Mapping[str, Any]]) -> list[Body]:
    """Samples as JSON."""
    return [Body("application/json", json.dumps(sample).encode()) for sample in samples]


SOURCES: dict[str, Callable[[], list[Body]]] = {
    "photographs": photographs,
    "texts": texts,
    "series": series,
}
