"""Image classifiers of the transformers library.

Their numbers come from preprocessor_config.json, as the image processors of transformers read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image

from models import hub, pretrained
from models.base import ModelError
from models.image import ImageModel, Transform
from models.scores import labels_of

if TYPE_CHECKING:
    from torch import nn

PROCESSORS = (
    "Beit, Bit, CLIP, ConvNext, DeiT, MobileNetV1, MobileNetV2, PoolFormer, Pvt, Segformer, "
    "Siglip, ViT"
)
"""What `read_transform` reads as they do; the others have steps of their own."""
WARPED_FROM = 384
"""ConvNeXt's processor stops cropping at this size."""


class ImageClassification(ImageModel):
    """The likeliest labels of an image."""

    def load(self, device: str, dtype: str) -> nn.Module:
        snapshot = hub.find(self.source, hub.WEIGHTS)
        model = pretrained.load("AutoModelForImageClassification", snapshot, self.source.weights)
        config = model.config
        labels = labels_of(config)
        self._is_ready(self._transform_of(snapshot, config), labels, len(labels))
        return pretrained.positional(model, ["pixel_values"], pretrained.logits, device, dtype)

    def _transform_of(self, snapshot: hub.Snapshot, config: Any) -> Transform:
        if settings := snapshot.read("preprocessor_config.json"):
            return read_transform(settings)
        if not self.random_weights:
            raise ModelError(
                f"{self.source.reference}: no preprocessor_config.json in {snapshot.directory}; "
                "write one with the model's image processor: save_pretrained(directory)"
            )
        size = getattr(config, "image_size", 224)
        return read_transform({"image_processor_type": "ViTImageProcessor", "size": size})


def read_transform(settings: Mapping[str, Any]) -> Transform:
    """The transform that a preprocessor_config.json means. Raises ModelError."""
    kind = settings.get("image_processor_type") or settings.get("feature_extractor_type") or ""
    if re.sub("(ImageProcessor|FeatureExtractor).*", "", kind) not in PROCESSORS.split(", "):
        raise ModelError(
            f"preprocessor_config.json: image_processor_type = {kind!r}; "
            f"served are the image processors of {PROCESSORS}"
        )
    resize, crop = _sizes(settings)
    normalized = settings.get("do_normalize", True)
    return Transform(
        resize=resize,
        crop=crop,
        interpolation=Image.Resampling(settings.get("resample", 2)).name.lower(),
        mean=settings.get("image_mean", (0.5,) * 3) if normalized else (0.0,) * 3,
        std=settings.get("image_std", (0.5,) * 3) if normalized else (1.0,) * 3,
    )


def _sizes(settings: Mapping[str, Any]) -> tuple[int | tuple[int, int], tuple[int, int]]:
    """How to resize, and what to crop from that."""
    size = settings.get("size", 224)
    shorter = size.get("shortest_edge") if isinstance(size, dict) else None
    if shorter is None:
        resize: int | tuple[int, int] = _height_width(size)
        crop = _height_width(size)
    else:
        resize, crop = shorter, (shorter, shorter)
        if share := settings.get("crop_pct"):
            resize = int(shorter / share) if shorter < WARPED_FROM else crop
    if settings.get("do_center_crop"):
        crop = _height_width(settings["crop_size"])
    return resize, crop


def _height_width(size: Any) -> tuple[int, int]:
    return (size["height"], size["width"]) if isinstance(size, dict) else (size, size)
