"""A model onto its device, as every runner wants it: eval, no gradients, its best layout."""

from __future__ import annotations

import torch
from torch import nn

from models.base import ServedModel
from server.engine.thread_state import kept

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


def load_module(model: ServedModel, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module of `model`. Raises ModelError when it cannot be had."""
    with kept():
        module = model.load(str(device), str(dtype).removeprefix("torch."))
    module.requires_grad_(False)
    if any(part.training for part in module.modules()):
        module.eval()  # only where it is needed: an exported module refuses to be asked
    if layout_of(module) == torch.channels_last:
        module.to(memory_format=torch.channels_last)
    return module


def layout_of(module: nn.Module) -> torch.memory_format:
    """The layout of 4-d inputs: images next to convolutions run fastest with channels last,
    eager too, so both modes get it."""
    convolves = any(isinstance(part, CONVOLUTIONS) for part in module.modules())
    return torch.channels_last if convolves else torch.contiguous_format
