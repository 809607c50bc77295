"""Weights from files into a module: state dicts only, every name in its place, or a clear error.

torch is imported by the functions that a `load` calls. Knows nothing of what the module is.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from models.base import ModelError, ModelSource

if TYPE_CHECKING:
    import torch
    from torch import nn

UNREADABLE = (OSError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError)
"""What reading a file of weights raises when it is none."""


def check_weights(source: ModelSource) -> None:
    """Raises ModelError when `weights` is a path to nothing, or to what is never read."""
    if source.weights in ("default", "random"):
        return
    path = Path(source.weights).expanduser()
    if not path.is_file():
        raise ModelError(
            f"weights = {source.weights}: no such file; expected default, random, or a path to "
            "a .safetensors or .pth file"
        )
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise ModelError(
            f"weights = {source.weights}: expected a .safetensors file, or a .pth file with a "
            "state dict"
        )


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """The state dict of a file: safetensors, or a pickle that may hold tensors only."""
    import safetensors.torch
    import torch

    file = Path(path).expanduser()
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise ModelError(f"weights = {path}: not a file of weights: {shorten(error)}") from error
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise ModelError(
            f"weights = {path}: expected a state dict, names to tensors; write one with "
            "torch.save(module.state_dict(), PATH)"
        )
    return state


def load_weights(module: nn.Module, path: str, rename: Callable[[str], str] = str) -> None:
    """Fill the module with the weights of a file, every one of them. Raises ModelError."""
    state = read_weights(path)
    for name in list(state):
        state[rename(name)] = state.pop(name)
    try:
        module.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"weights = {path}: not the weights of this {type(module).__name__}: {shorten(error)}"
        ) from error


def shorten(error: Exception) -> str:
    """The beginning of what torch says, which may be a line for every layer."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]} ..."


@contextmanager
def seeded() -> Iterator[None]:
    """Inside, torch's random numbers are the same every time; outside, none are used up."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def settle(module: nn.Module, device: str, dtype: str) -> nn.Module:
    """The module as `ServedModel.load` promises it."""
    import torch

    return module.to(device=device, dtype=getattr(torch, dtype)).eval().requires_grad_(False)
