"""torch's state of a thread that its compiler guards on, kept while a user's code runs.

A model that leaves gradients on, or changes the default dtype or the thread count, would make every
compiled model compile again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept() -> Iterator[None]:
    """Leaves grad mode, default dtype and thread count as they were, whatever runs inside."""
    before = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
    try:
        yield
    finally:
        grad, dtype, threads = before
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
