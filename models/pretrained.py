"""The torch side of transformers models: from weights to a module that takes tensors by position.

Runs in the worker; torch and transformers are imported by the first call. Knows nothing of texts,
images or answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from models.base import ModelError
from models.checkpoint import read_weights, seeded, settle
from models.hub import Snapshot

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig

Select = Callable[..., "Tensor | tuple[Tensor, ...]"]
"""Picks what is served, from the model's output and its inputs."""


def load(auto_class: str, snapshot: Snapshot, weights: str) -> Any:
    """The pretrained model as `auto_class` makes it, in float32. Raises ModelError."""
    from safetensors import SafetensorError
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    # Its table of missing and needless weights: the missing ones are refused below.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        return _load(auto_class, snapshot, weights)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        where = snapshot.directory if weights == "default" else f"weights = {weights!r}"
        raise ModelError(
            f"{where}: cannot be loaded as {auto_class}: {error}; expected safetensors weights "
            "of an architecture that transformers itself has, or another `task`"
        ) from error


def _load(auto_class: str, snapshot: Snapshot, weights: str) -> Any:
    import torch
    import transformers

    # attn_implementation is left alone: that is sdpa, and eager for the architectures that have
    # no sdpa (MPNet, DeBERTa, ResNet) and refuse it by name.
    factory = getattr(transformers, auto_class)
    config = _config(snapshot)
    if weights == "random":
        with seeded():
            return factory.from_config(config, dtype=torch.float32)
    options = {"config": config, "dtype": torch.float32, "output_loading_info": True}
    if weights == "default":
        model, info = factory.from_pretrained(
            snapshot.directory,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            **options,
        )
    else:
        with torch.device("meta"):
            architecture = type(factory.from_config(config))
        model, info = architecture.from_pretrained(
            None, state_dict=read_weights(weights), **options
        )
    _refuse_missing(info["missing_keys"])
    return model


def _config(snapshot: Snapshot) -> PretrainedConfig:
    from transformers import AutoConfig

    if snapshot.directory is None:
        return AutoConfig.for_model(**snapshot.config)
    config: PretrainedConfig = AutoConfig.from_pretrained(
        snapshot.directory, trust_remote_code=False
    )
    return config


def _refuse_missing(keys: set[str]) -> None:
    # A bare encoder's own pooler is used by no task here, and sentence-transformers leaves it out.
    missing = sorted(key for key in keys if not key.startswith("pooler."))
    if missing:
        raise ValueError(f"the weights have no {', '.join(missing[:3])} ({len(missing)} missing)")


def positions(model: nn.Module) -> int | None:
    """How many tokens its table of position embeddings is good for; None without such a table.

    RoBERTa and its kin start counting after the padding index.
    """
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
            skipped = 0 if module.padding_idx is None else module.padding_idx + 1
            return int(module.num_embeddings - skipped)
    return None


def positional(
    model: nn.Module, names: Sequence[str], select: Select, device: str, dtype: str
) -> nn.Module:
    """`model` called by position with the inputs `names`; gives what `select` picks.

    Inputs beyond `names` go to `select` alone.
    """
    import torch

    class Positional(torch.nn.Module):
        """A pretrained model as it is served."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
            output = self.model(**dict(zip(names, inputs, strict=False)))
            return select(output, *inputs)

    return settle(Positional(), device, dtype)


def logits(output: Any, *_: Tensor) -> Tensor:
    """The logits as they are."""
    result: Tensor = output.logits
    return result


def logits_and_last_input(output: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
    """The logits, and the last input unchanged."""
    return output.logits, inputs[-1]


def pooled(mode: str, normalized: bool) -> Select:
    """One vector of each text from those of its tokens: `mean` of the real ones, or `cls`."""

    def select(output: Any, _: Tensor, attention_mask: Tensor, *__: Tensor) -> Tensor:
        hidden = _precise(output.last_hidden_state)  # [B, S, H]
        if mode == "mean":
            mask = attention_mask.unsqueeze(-1)  # [B, S, 1]
            vector = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)  # [B, H]
        else:
            vector = hidden[:, 0]
        if normalized:
            vector = vector / vector.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        result: Tensor = vector
        return result

    return select


def best_at(mask_id: int, count: int) -> Select:
    """Probabilities and ids of the `count` best tokens where the input is `mask_id`, else zeros."""

    def select(output: Any, input_ids: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        scores = _precise(output.logits)  # [B, S, vocabulary]
        best = scores.topk(count, dim=-1)  # [B, S, count]
        chances = (best.values - scores.logsumexp(-1, keepdim=True)).exp()
        wanted = (input_ids == mask_id).unsqueeze(-1)  # [B, S, 1]
        return chances * wanted, best.indices * wanted

    return select


def _precise(tensor: Tensor) -> Tensor:
    """Sums in half precision lose digits; what is wider stays as it is."""
    return tensor.float() if tensor.element_size() < 4 else tensor
