"""An environment for each peer that needs packages of its own, made once below `.bench/`.

It sees this interpreter's packages behind its own, so that torch is the same and is there once; a
peer that wants another version of something brings it and keeps it to itself.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from loadtest.processes import ROOT

CACHE = ROOT / ".bench"
SHARED = "shared.pth"


class NotInstalled(Exception):
    """A peer's packages could not be installed; the text is the installer's last word."""


def python_with(packages: Sequence[str]) -> Path:
    """The interpreter that has `packages`. Raises NotInstalled."""
    if not packages:
        return Path(sys.executable)
    name = sha256("\n".join([sys.prefix, *packages]).encode()).hexdigest()[:8]
    directory = CACHE / f"{packages[0].partition('[')[0].partition('=')[0]}-{name}"
    python = directory / "bin" / "python"
    done = directory / "installed"
    if not done.exists():
        venv.create(directory, clear=True, with_pip=True)
        site = directory / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
        (site / SHARED).write_text(f"{sysconfig.get_path('purelib')}\n")
        _install(python, packages)
        done.touch()
    return python


def _install(python: Path, packages: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    ended = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NotInstalled(ended.stderr.strip().splitlines()[-1])
