"""torch's environment and configuration: set once, the same in every process that compiles.

`prepare_environment` comes before torch is imported; `configure_thread` runs on the executor
thread, as torch's compiler configuration is per thread since 2.12. Nothing changes either later:
grad mode, thread count and precision are guards, and a change would recompile.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from server.config import ConfigError, Settings

# One compiled entry a bucket and model: we decide how many. At torch's own limit of 8 it would go
# on in eager without a word.
RECOMPILE_LIMIT = 4096


def prepare_environment(settings: Settings) -> None:
    """The compiler's cache directory, private to this user, and the thread counts.

    Raises ConfigError when the directory cannot be made or is open to others.
    """
    cache = private_directory(settings.compile.cache_dir.expanduser())
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(cpu_count()))
    os.environ["OMP_NUM_THREADS"] = str(settings.threads or cpu_count())
    # Some of torch's modules ask getpass for a user, which fails for a uid without a name.
    os.environ.setdefault("USER", f"uid-{os.getuid()}")


def private_directory(path: Path) -> Path:
    """`path`, made with mode 0700: code that is loaded from it is trusted."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigError(
            f"compile.cache_dir = {path}: cannot be made ({error.strerror}); name a writable one"
        ) from None
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"compile.cache_dir = {path}: others can write to it, and its content is run as code; "
            "name one that only this user can write to (mode 0700)"
        )
    return path


def cpu_count() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def configure_thread(settings: Settings) -> None:
    """torch's settings for the calling thread, which from then on runs every model."""
    import torch
    import torch._dynamo.config
    import torch._inductor.config

    torch.set_num_threads(settings.threads or cpu_count())
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    torch._dynamo.config.accumulated_recompile_limit = RECOMPILE_LIMIT
    # oneDNN has an LSTM kernel that Inductor calls; on CUDA it would unroll the time steps.
    torch._dynamo.config.allow_rnn = not torch.cuda.is_available()
    # Strict: what cannot be in a CUDA graph is a reason, not a silent partition without one.
    torch._inductor.config.graph_partition = False
