"""What the tests on a GPU share: engines on CUDA, or a skip that says there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.conftest import Start, engines


@pytest.fixture(scope="module")
def start_on_cuda(tmp_path_factory) -> Iterator[Start]:
    """Start an engine on a CUDA device; it ends with the module, as compiling is dear."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with engines(tmp_path_factory.mktemp("cache")) as start:
        yield lambda models, **flags: start(models, device="cuda", **flags)
