"""torchvision's classification models, by name.

Numbers and labels come from the library's own metadata, which needs no download.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from models.base import ModelError, ModelSource
from models.checkpoint import UNREADABLE, load_weights, seeded, settle, shorten
from models.image import DATA, ImageModel, Transform

if TYPE_CHECKING:
    from torch import nn

# What these builders set themselves, but only when they download the weights.
_OWN_ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"transform_input": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "init_weights": False},
    "vit_h_14": {"image_size": 518},
}


def names() -> list[str]:
    """Every classification model, without asking torchvision, which would import torch."""
    return (DATA / "torchvision.txt").read_text(encoding="utf-8").split()


class TorchvisionModel(ImageModel):
    """One of torchvision's classifiers."""

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source)
        if source.reference not in names():
            close = difflib.get_close_matches(source.reference, names(), n=5)
            hint = f"; close: {', '.join(close)}" if close else ""
            raise ModelError(
                f"{source.reference}: torchvision has no such classification model{hint}"
            )

    def load(self, device: str, dtype: str) -> nn.Module:
        from torchvision import models as zoo

        weights = zoo.get_model_weights(self.source.reference).DEFAULT
        labels = weights.meta["categories"]
        if self.source.weights == "default":
            module = self._download(weights)
            width = len(labels)
        else:
            width = len(self.own_labels or labels)
            module = self._build(width)
        self._is_ready(_transform(weights.transforms()), labels, width)
        return settle(module, device, dtype)

    def _download(self, weights: Any) -> nn.Module:
        from torch import hub
        from torchvision import models as zoo

        try:
            module: nn.Module = zoo.get_model(
                self.source.reference, weights=weights, progress=False
            )
        except UNREADABLE as error:
            file = weights.url.rsplit("/", 1)[-1]
            raise ModelError(
                f"{self.source.reference}: {file} is not in {hub.get_dir()}/checkpoints and cannot "
                f"be had from {weights.url} ({shorten(error)}). Put the file there, set weights to "
                'its path, or weights = "random" for a speed test'
            ) from error
        return module

    def _build(self, width: int) -> nn.Module:
        from torchvision import models as zoo

        arguments = _OWN_ARGUMENTS.get(self.source.reference, {})
        with seeded():
            module: nn.Module = zoo.get_model(
                self.source.reference, weights=None, num_classes=width, **arguments
            )
        if self.source.weights != "random":
            load_weights(module, self.source.weights, rename=_modern)
        return module


def _transform(preset: Any) -> Transform:
    return Transform(
        resize=preset.resize_size[0],
        crop=(preset.crop_size[0], preset.crop_size[0]),
        interpolation=preset.interpolation.value,
        mean=preset.mean,
        std=preset.std,
    )


def _modern(name: str) -> str:
    """torchvision's files of densenets are older than the names in its code."""
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d\.)", r"\1\2", name)
