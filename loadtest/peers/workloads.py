"""What is asked of every server: real inputs, and how far an answer may be off.

Knows no server and no model code.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

SEED = 0
TEXTS = 64
WORDS = (5, 60)
IMAGES = 16
IMAGE_SIZE = (500, 375)
# Of an answer's largest number, as servers batch differently. No input's answer is so close to
# another's, so an answer to somebody else's question is found.
TOLERANCE = 1e-3

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """One model and what it is asked."""

    name: str
    model: str
    weights: str
    payloads: Callable[[], list[Payload]]
    bfloat16_tolerance: float = TOLERANCE
    """What bfloat16 may be off. Random weights magnify its rounding, up to where the answers to
    some of the inputs can be taken for each other."""


def _texts() -> list[Payload]:
    """Pieces of prose, 5 to 60 words: the descriptions that come with scikit-learn's data."""
    folder = files("sklearn.datasets.descr")
    pages = sorted((page for page in folder.iterdir() if page.name.endswith(".rst")), key=str)
    # Words alone: the numbers and rulers of a table are dozens of tokens each.
    words = [
        word
        for page in pages
        for word in page.read_text(encoding="utf-8").split()
        if re.fullmatch(r"[A-Za-z]+[.,]?", word)
    ]
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(*WORDS, TEXTS, endpoint=True)
    starts = rng.integers(0, len(words) - WORDS[1], TEXTS)
    pieces = zip(starts, lengths, strict=True)
    return [{"text": " ".join(words[start : start + length])} for start, length in pieces]


def _images() -> list[Payload]:
    """JPEGs of 500 by 375 pixels, cut from scikit-learn's two photographs."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(SEED)
    width, height = IMAGE_SIZE
    payloads: list[Payload] = []
    for photograph in load_sample_images().images * (IMAGES // 2):
        top = rng.integers(0, photograph.shape[0] - height)
        left = rng.integers(0, photograph.shape[1] - width)
        file = io.BytesIO()
        cut = photograph[top : top + height, left : left + width]
        Image.fromarray(cut).save(file, "JPEG", quality=90)
        payloads.append({"image": file.getvalue()})
    return payloads


def _vectors() -> list[Payload]:
    return [{"x": [float(n), 1.0, 2.0, 3.0]} for n in range(8)]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("text", "all-MiniLM-L6-v2", "default", _texts, 0.02),
        Workload("image", "resnet50", "random", _images, 0.1),
        Workload("nothing", "loadtest.peers.nothing:Nothing", "default", _vectors),
    )
}
