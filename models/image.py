"""Images: bytes to pixels, pixels to a model's input, logits to labels.

Follows the eval transforms of torchvision and timm to the float. Knows no torch, no model's
numbers, and no limit on the size of an image: whoever calls `decode` has asked `pixels` before.
"""

from __future__ import annotations

import base64
import io
import struct
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator

from models.base import Arrays, BadSample, ModelError, ModelSource, ServedModel, TensorSpec
from models.checkpoint import check_weights
from models.scores import softmax

TOP = 5
MAX_ASPECT = 100
DATA = Path(__file__).parent / "data"

# Each of these decodes to the size in its header, in peace. Others do not (ICO), start programs
# (EPS), or have a library print to standard error what it thinks of the file (TIFF).
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_EXPECTED = "expected a JPEG, PNG, WebP, GIF or BMP image"
# What Pillow raises over a damaged file, depending on the format and on where the damage is.
_DAMAGED = (OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, struct.error)

# NOTE: the server has a limit of its own. Pillow's would be a second one, and warn below it.
Image.MAX_IMAGE_PIXELS = None
# Pillow warns of every oddity in a file, which clients could fill a log with.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

Array = np.ndarray[Any, Any]


def _from_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise ValueError(
            f"expected the image file in base64, without line breaks: {error}"
        ) from None


Base64Image = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class ImageSample(BaseModel):
    """One image: a whole image file in base64."""

    model_config = ConfigDict(extra="forbid")

    image: Base64Image


def pixels(data: bytes) -> int:
    """Width times height, from the header alone. Raises BadSample when this is no image."""
    image = _open(data)
    return image.width * image.height


def decode(data: bytes) -> Image.Image:
    """The first frame in RGB, upright. Raises BadSample when it cannot be read to its end."""
    image = _open(data)
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except _DAMAGED as error:
        raise BadSample(f"image: damaged or cut short ({error}); {_EXPECTED}") from error
    return _to_rgb(image)


def _open(data: bytes) -> Image.Image:
    if not data:
        raise BadSample(f"image: empty; {_EXPECTED}")
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError as error:
        raise BadSample(f"image: not an image of a known format; {_EXPECTED}") from error
    except _DAMAGED as error:
        raise BadSample(f"image: damaged header ({error}); {_EXPECTED}") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode == "P":
        # Straight to RGB, Pillow warns of a palette with several transparent colours.
        image = image.convert("RGBA")
    return image.convert("RGB")


class Transform(BaseModel):
    """From an RGB image to a model's input: resize, centre crop, scale to 0..1, normalise."""

    model_config = ConfigDict(frozen=True)

    resize: int | tuple[int, int]
    """Of the shorter side; or height and width, whatever the aspect ratio."""
    crop: tuple[int, int]
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @model_validator(mode="after")
    def _crops_from_the_image(self) -> Transform:
        sides = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        if sides[0] < self.crop[0] or sides[1] < self.crop[1]:
            raise ModelError(
                f"a crop of {self.crop} from an image resized to {self.resize} would need a "
                "border, which is not served"
            )
        return self

    def __call__(self, image: Image.Image) -> Array:
        resampling = Image.Resampling[self.interpolation.upper()]
        height, width = self._resized(image.height, image.width)
        top, left = round((height - self.crop[0]) / 2), round((width - self.crop[1]) / 2)
        box = (left, top, left + self.crop[1], top + self.crop[0])
        return self._normalised(np.asarray(image.resize((width, height), resampling).crop(box)))

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.resize, int):
            return self.resize
        shorter, longer = min(height, width), max(height, width)
        if longer > MAX_ASPECT * shorter:
            # 1 by 50,000 pixels, enlarged to 256 on its shorter side, would take 13 GB.
            raise BadSample(
                f"image: {width} by {height} pixels; expected at most {MAX_ASPECT} times as long "
                "as wide"
            )
        longer = self.resize * longer // shorter
        return (self.resize, longer) if height <= width else (longer, self.resize)

    def _normalised(self, rgb: Array) -> Array:
        mean, std = (np.array(v, np.float32)[:, None, None] for v in (self.mean, self.std))
        channels = np.ascontiguousarray(rgb.transpose(2, 0, 1))  # [3, H, W]
        normalised: Array = np.multiply(channels, 1 / (255 * std), dtype=np.float32)
        normalised -= mean / std
        return normalised


def imagenet_labels() -> tuple[str, ...]:
    """The 1000 classes of ImageNet-1k in the order all its models have them."""
    return read_labels(DATA / "imagenet.txt")


def read_labels(path: str | Path) -> tuple[str, ...]:
    """The class names of a text file, one a line. Raises ModelError."""
    try:
        labels = tuple(Path(path).expanduser().read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"labels = {path}: cannot be read ({error})") from None
    if not all(label.strip() for label in labels) or not labels:
        raise ModelError(f"labels = {path}: expected one class name a line, and no empty line")
    return labels


def top_labels(logits: Array, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The likeliest labels, best first, with their softmax scores."""
    scores = softmax(logits)
    best = np.argsort(-scores, kind="stable")[:TOP]
    return [
        {"label": labels[index], "index": int(index), "score": float(scores[index])}
        for index in best
    ]


class ImageModel(ServedModel):
    """A model of one image: a classifier, or without labels something that embeds it.

    A subclass's `load` ends with `_is_ready`, which completes the declaration.
    """

    sample = ImageSample
    raw_bodies: ClassVar[Mapping[str, str]] = {"image/*": "image"}

    def __init__(self, source: ModelSource) -> None:
        check_weights(source)
        self.name = source.name
        self.source = source
        self.random_weights = source.weights == "random"
        self.own_labels = read_labels(source.labels) if source.labels else None

    def _is_ready(self, transform: Transform, labels: Sequence[str], width: int) -> None:
        """`width` is how many numbers the module returns for an image."""
        if self.own_labels is not None and len(self.own_labels) != width:
            raise ModelError(
                f"labels = {self.source.labels}: {len(self.own_labels)} names, but "
                f"{self.source.reference} has {width} outputs; give one name for each"
            )
        self._transform = transform
        self._labels = self.own_labels or tuple(labels)
        self._width = width
        self.inputs = (TensorSpec("image", "float32", ("batch", 3, *transform.crop)),)
        kind = "logits" if self._labels else "embedding"
        self.outputs = (TensorSpec(kind, "float32", ("batch", width)),)

    def describe(self) -> dict[str, Any]:
        transform = self._transform.model_dump(mode="json")
        return {"transform": transform, "labels": list(self._labels), "width": self._width}

    def configure(self, facts: Mapping[str, Any]) -> None:
        transform = Transform.model_validate(facts["transform"])
        self._is_ready(transform, facts["labels"], facts["width"])

    def preprocess(self, payload: Mapping[str, Any]) -> Arrays:
        return {"image": self._transform(decode(payload["image"]))}

    def postprocess(self, outputs: Arrays) -> Any:
        if not self._labels:
            return {"embedding": outputs["embedding"].tolist()}
        return {"labels": top_labels(outputs["logits"], self._labels)}

    def example(self, batch: int, seq: int) -> Arrays:
        generator = np.random.default_rng(0)
        # Enlarged from 8 by 8 pixels: smooth as photographs are, which noise is not.
        colours = generator.integers(0, 256, (batch, 8, 8, 3), dtype=np.uint8)
        return {"image": np.stack([self._transform(Image.fromarray(c)) for c in colours])}
