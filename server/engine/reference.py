"""The model in float64: the truth that eager and compiled answers are both held against.

Made for one model at a time and dropped after its warm-up. Knows nothing of how it is compared.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import psutil
import torch

from server.engine.contract import Loaded
from server.engine.parity import Precision

log = logging.getLogger(__name__)

ROOM = 3  # times the weights in float64: beside them, what runs needs some


def in_float64(loaded: Loaded) -> Loaded | None:
    """A float64 copy of `loaded`; None where memory is short or the module cannot be copied."""
    needed = ROOM * 8 * sum(tensor.numel() for tensor in loaded.module.parameters())
    free = _free_bytes(loaded.device)
    if needed > free:
        log.info("no float64 reference: it needs %d bytes, %d are free", needed, free)
        return None
    try:
        module = copy.deepcopy(loaded.module).double()
    except Exception as error:  # whatever a module's own __deepcopy__ raises
        log.info("no float64 reference: %s: %s", type(error).__name__, error)
        return None
    return replace(loaded, module=module, dtype=torch.float64)


def precision_of(dtype: torch.dtype) -> Precision:
    """What a matrix product in `dtype` is really computed in."""
    if dtype == torch.float32:
        # NOTE: "medium" computes in bfloat16 where the hardware does.
        by_setting: dict[str, Precision] = {"high": "tf32", "medium": "bfloat16"}
        return by_setting.get(torch.get_float32_matmul_precision(), "float32")
    return "bfloat16" if dtype == torch.bfloat16 else "float16"


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
