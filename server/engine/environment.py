"""torch's environment and configuration: set once, the same in every process that compiles.

`prepare_environment` comes before torch is imported; `configure_thread` runs on the executor
thread, as torch's compiler configuration is per thread since 2.12. Nothing changes either later:
grad mode, thread count and precision are guards, and a change would recompile.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from server.config import ConfigError, Settings

# Activations are freed and wanted again at every batch: the C library is to keep their memory. By
# default it gives it back and gets it again page by page. Read when the worker is started.
KEEP_MEMORY = ":".join(
    (
        "glibc.malloc.arena_max=1",
        "glibc.malloc.mmap_threshold=1073741824",
        "glibc.malloc.trim_threshold=4294967296",
    )
)
# One compiled entry a bucket and model: we decide how many. At torch's own limit of 8 it would go
# on in eager without a word.
RECOMPILE_LIMIT = 4096


def prepare_environment(settings: Settings) -> None:
    """The compiler's cache directory, private to this user, and the thread counts.

    Raises ConfigError when others can write to the directory. One that cannot be made is left to
    preflight: eager serves without it.
    """
    cache = cache_directory(settings)
    if cache is not None:
        _make(cache)
        _refuse_others(cache)
        os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    # torch makes this directory when it is imported, also to run eager: it has to get one.
    inductor = Path("/") if cache is None else _make(cache / "inductor")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(cpu_count()))
    os.environ["OMP_NUM_THREADS"] = str(thread_count(settings))
    os.environ.setdefault("GLIBC_TUNABLES", KEEP_MEMORY)
    # Some of torch's modules ask getpass for a user, which fails for a uid without a name.
    os.environ.setdefault("USER", f"uid-{os.getuid()}")


def thread_count(settings: Settings) -> int:
    """torch's CPU threads in each worker."""
    return settings.threads or max(1, cpu_count() // settings.workers)


def cache_directory(settings: Settings) -> Path | None:
    """`compile.cache_dir`; None where it is below `~` and this user has no home."""
    try:
        return settings.compile.cache_dir.expanduser()
    except RuntimeError:
        return None


def _make(path: Path) -> Path:
    """`path`, made with mode 0700; where it cannot be made, the nearest directory above it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return next(above for above in path.parents if os.path.isdir(above))
    return path


def _refuse_others(path: Path) -> None:
    """Code that is loaded from `path` is trusted: nobody else may put any there."""
    if not os.path.isdir(path):
        return
    found = path.stat()
    # What root owns is as safe as the interpreter; that it cannot be written to, preflight says.
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"compile.cache_dir = {path}: others can write to it, and its content is run as code; "
            "name one that only this user can write to (mode 0700)"
        )


def cpu_count() -> int:
    """CPUs this process may use: those it may run on, or fewer where a cgroup limits its time."""
    usable = len(os.sched_getaffinity(0))
    return min(usable, cgroup_cpus() or usable)


def cgroup_cpus(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Whole CPUs, at least one, that the tightest `cpu.max` around this process allows."""
    lines = own.read_text().splitlines() if own.exists() else []
    paths = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    limits = [
        limit
        for path in paths
        for level in (root / path, *(root / path).parents)
        if level.is_relative_to(root) and (limit := _read_limit(level / "cpu.max")) is not None
    ]
    return min(limits, default=None)


def _read_limit(file: Path) -> int | None:
    """`max 100000` is no limit; `150000 100000`, one and a half CPUs, is one whole CPU."""
    quota, _, period = (file.read_text() if file.exists() else "max").partition(" ")
    return None if quota.strip() == "max" else max(1, int(quota) // int(period))


def _keep_temporary_files_private(settings: Settings) -> None:
    """Compilers' temporary files beside the cache, where they are private and outlive the process.

    torch keeps its precompiled header, which takes seconds to make, in a directory of the system's
    temporary one that others can guess and a container does not keep.
    """
    cache = cache_directory(settings)
    if cache is None or _make(cache / "tmp") != cache / "tmp":
        return  # preflight says why
    os.environ["TMPDIR"] = tempfile.tempdir = str(cache / "tmp")


def configure_thread(settings: Settings) -> None:
    """torch's settings for the calling thread, which from then on runs every model."""
    _keep_temporary_files_private(settings)
    import torch
    import torch._dynamo.config

    torch.set_num_threads(thread_count(settings))
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision(settings.matmul_precision)
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    torch._dynamo.config.accumulated_recompile_limit = RECOMPILE_LIMIT
    # oneDNN has an LSTM kernel that Inductor calls; on CUDA it would unroll the time steps.
    torch._dynamo.config.allow_rnn = settings.device == "cpu" or not torch.cuda.is_available()
