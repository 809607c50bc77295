"""timm's image models, by name or by hub id.

Numbers come from the model's `pretrained_cfg`, as timm's own eval transform takes them. A model
whose classes nobody has named is served as what it then is: something that embeds an image.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.base import ModelError
from models.checkpoint import UNREADABLE, seeded, settle, shorten
from models.image import ImageModel, Transform, imagenet_labels

if TYPE_CHECKING:
    from torch import nn

_HUB = "hf-hub:"


class TimmModel(ImageModel):
    """One of timm's image models."""

    def load(self, device: str, dtype: str) -> nn.Module:
        from timm.data.config import resolve_model_data_config

        module = self._create()
        config = resolve_model_data_config(module)  # type: ignore[no-untyped-call]
        width = module.num_classes or module.head_hidden_size
        self._is_ready(transform(config), _labels(module), width)
        return settle(module, device, dtype)

    def _create(self) -> Any:
        import timm

        name, weights = self.source.reference, self.source.weights
        _check_name(name)
        try:
            with seeded():
                return timm.create_model(name, **self._arguments())
        except UNREADABLE as error:
            if weights != "default":
                problem = f"weights = {weights}: not the weights of timm's {name}"
                raise ModelError(f"{problem}: {shorten(error)}") from error
            raise ModelError(
                f"{name}: {_origin(name)}: {shorten(error)}. Set weights to the path of a "
                '.safetensors or .pth file, or weights = "random" for a speed test'
            ) from error

    def _arguments(self) -> dict[str, Any]:
        weights = self.source.weights
        if weights == "default":
            return {"pretrained": True}
        size = {"num_classes": len(self.own_labels)} if self.own_labels else {}
        if weights == "random":
            return {"pretrained": False, **size}
        # As if downloaded: files from the hub may need timm's own filter to fit the module.
        file = {"file": str(Path(weights).expanduser()), **size}
        return {"pretrained": True, "pretrained_cfg_overlay": file, **size}


def transform(config: Mapping[str, Any]) -> Transform:
    """timm's eval transform from its data config."""
    channels, height, width = config["input_size"]
    resize = [math.floor(side / config["crop_pct"]) for side in (height, width)]
    squash = config["crop_mode"] == "squash"
    plain = squash or (config["crop_mode"] == "center" and height == width)
    if channels != 3 or not plain:
        raise ModelError(
            f"timm's crop_mode {config['crop_mode']!r} with input_size {config['input_size']} "
            "is not served; squash is, and center of a square in three colours"
        )
    return Transform(
        resize=(resize[0], resize[1]) if squash else resize[0],
        crop=(height, width),
        interpolation=config["interpolation"],
        mean=config["mean"],
        std=config["std"],
    )


def _check_name(name: str) -> None:
    import timm

    if name.startswith(_HUB) or timm.is_model(name):
        return
    known = timm.list_models() + timm.list_pretrained()
    close = difflib.get_close_matches(name, known, n=5)
    raise ModelError(
        f"{name}: timm {timm.__version__} has no such model; close: {', '.join(close) or 'none'}. "
        f"A model on the hub is written timm:{_HUB}ORGANISATION/NAME"
    )


def _origin(name: str) -> str:
    import timm
    from huggingface_hub import constants

    known = None if name.startswith(_HUB) else timm.get_pretrained_cfg(name)
    hub_id = known.hf_hub_id if known else name.removeprefix(_HUB)
    return f"weights of {hub_id}, from the hub or its cache in {constants.HF_HUB_CACHE}"


def _labels(module: Any) -> tuple[str, ...]:
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    if names := module.pretrained_cfg.get("label_names"):
        return tuple(names)
    if module.num_classes == 1000:
        return imagenet_labels()
    subset = infer_imagenet_subset(module)
    if subset is None:
        return ()
    descriptions = ImageNetInfo(subset).label_descriptions()
    return tuple(description.split(",")[0] for description in descriptions)
