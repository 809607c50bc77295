"""What compiling needs of a machine, one check a function: directories, compilers, variables.

Each says what it found and, where that is not good, the remedy. Compiles nothing and needs no
torch; `preflight` says which checks are made.
"""

from __future__ import annotations

import os
import platform
import pwd
import shlex
import shutil
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from server.config import Settings
from server.engine.environment import cache_directory, cpu_count

LEAST_FREE = 64 * 2**20
GOOD_FREE = 2 * 2**30
OFF_SWITCHES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
TORCH_VARIABLES = ("TORCH", "PYTORCH", "TRITON_", "CUDA_LAUNCH_BLOCKING")
EXPECTED_VARIABLES = {
    "TORCHINDUCTOR_CACHE_DIR",  # these three are set by prepare_environment
    "TORCHINDUCTOR_COMPILE_THREADS",
    "TRITON_CACHE_DIR",
    "TORCH_HOME",  # these two change nothing that is compiled
    "PYTORCH_VERSION",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. "blocking": nothing can be compiled; `remedy` is empty when ok."""

    check: str
    state: Literal["ok", "warning", "blocking"]
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join(part for part in (f"{self.check}: {self.found}", self.remedy) if part)


def cache(settings: Settings) -> Finding:
    """The directory that compiled code is written to and loaded from."""
    path = cache_directory(settings)
    remedy = "set compile.cache_dir to a private directory on a disk that is writable and not full"
    if path is None:
        found = f"{settings.compile.cache_dir}: uid {os.getuid()} has no home directory"
        return Finding("cache directory", "blocking", found, f"set HOME, or {remedy}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        noexec = os.statvfs(path).f_flag & os.ST_NOEXEC
    except OSError as error:
        found = f"{path}: cannot be made ({error.strerror})"
        return Finding("cache directory", "blocking", found, remedy)
    if noexec:
        found = f"{path}: mounted noexec, so compiled code cannot be loaded from it"
        return Finding("cache directory", "blocking", found, "set compile.cache_dir to another")
    return _room("cache directory", path, remedy)


def _room(check: str, path: Path, remedy: str) -> Finding:
    try:
        # Mode bits tell little: root passes them, and a read-only mount does not show in them.
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            file.write(bytes(4096))
        system = os.statvfs(path)
    except OSError as error:
        return Finding(
            check, "blocking", f"{path}: cannot be written to ({error.strerror})", remedy
        )
    free = system.f_bavail * system.f_frsize
    found = f"{path}: {free / 2**20:,.0f} MiB free"
    if free < LEAST_FREE:
        return Finding(check, "blocking", f"{found}, full", remedy)
    if free < GOOD_FREE:
        return Finding(check, "warning", found, f"have {GOOD_FREE // 2**30} GiB free: it may fill")
    return Finding(check, "ok", found)


def cxx_compiler() -> Finding:
    """What Inductor builds kernels for a CPU with: $CXX, or g++."""
    return _compiler("C++ compiler", "CXX", ["g++"])


def c_compiler() -> Finding:
    """What Triton builds its launchers with: $CC, or gcc, or clang."""
    return _compiler("C compiler", "CC", ["gcc", "clang"])


def _compiler(check: str, variable: str, usual: Sequence[str]) -> Finding:
    names = [os.environ[variable]] if variable in os.environ else usual
    programs = [next(iter(shlex.split(name)), "") for name in names]
    found = next(filter(None, map(shutil.which, programs)), None)
    if found is not None:
        return Finding(check, "ok", found)
    missing = f"no {' or '.join(names)} in PATH"
    return Finding(check, "blocking", missing, f"install {usual[0]}, or set {variable}")


def python_headers() -> Finding:
    """Compiled kernels are Python extensions."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    if header.exists():
        return Finding("Python headers", "ok", str(header))
    remedy = "install Python's development files (python3-dev)"
    return Finding("Python headers", "blocking", f"no {header}", remedy)


def user() -> Finding:
    """A name and a home: torch and Triton ask for both."""
    uid, home = os.getuid(), os.environ.get("HOME")
    known = uid in {entry.pw_uid for entry in pwd.getpwall()}
    found = f"uid {uid}{'' if known else ' (no passwd entry)'}, HOME={home or 'not set'}"
    if home is not None and Path(home).is_dir():
        return Finding("user", "ok", found)
    return Finding("user", "warning", found, "set HOME to a directory of this user")


def threads(settings: Settings) -> Finding:
    """torch's threads against the CPUs that the scheduler and the cgroup allow."""
    wanted, usable = settings.threads or cpu_count(), cpu_count()
    found = f"{wanted} for torch; {usable} CPUs usable of {os.cpu_count()}"
    if wanted <= usable:
        return Finding("CPU threads", "ok", found)
    return Finding("CPU threads", "warning", found, f"set threads to {usable} or less, or to 0")


def versions() -> Finding:
    """Those that this package was tested with, as its own metadata says."""
    try:
        needs = {need.name: need for need in map(Requirement, metadata.requires("gearshift") or [])}
        python = SpecifierSet(metadata.metadata("gearshift")["Requires-Python"])
    except metadata.PackageNotFoundError:
        remedy = "install it, so that its dependencies are checked"
        return Finding("versions", "warning", "gearshift is not installed as a package", remedy)
    ranges = {name: needs[name].specifier for name in ("torch", "transformers")}
    actual = {name: metadata.version(name) for name in ranges}
    ranges["python"], actual["python"] = python, platform.python_version()
    found = ", ".join(f"{name} {version}" for name, version in actual.items())
    untested = [n for n, r in ranges.items() if not r.contains(actual[n], prereleases=True)]
    if not untested:
        return Finding("versions", "ok", found)
    remedy = ", ".join(f"{name}{ranges[name]}" for name in untested)
    return Finding("versions", "warning", found, f"tested with {remedy}")


def variables() -> Finding:
    """Environment variables that switch torch's compiler off or change what it does."""
    off = [f"{name}=1" for name in OFF_SWITCHES if os.environ.get(name) == "1"]
    if off:
        found = f"{', '.join(off)} turns torch.compile off"
        return Finding("environment", "blocking", found, "unset it, or use mode = 'eager'")
    given = sorted(name for name in os.environ if name.startswith(TORCH_VARIABLES))
    odd = [f"{name}={os.environ[name]}" for name in given if name not in EXPECTED_VARIABLES]
    if odd:
        remedy = "unset those that are not meant: they change what torch does"
        return Finding("environment", "warning", ", ".join(odd), remedy)
    return Finding("environment", "ok", "no variable that changes torch")
