"""Machines at fault, caused for real in a child process: each ends in an answer and a reason."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.engine.environment import cgroup_cpus

ROOT = Path(__file__).parents[2]
UNKNOWN_UID = 54321


def namespaces_work() -> bool:
    """Whether a namespace may be made: mounts and users of our own, no matter who we are."""
    if shutil.which("unshare") is None:
        return False
    mount = "mount -t tmpfs test /mnt"
    tried = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True)
    return tried.returncode == 0


needs_namespaces = pytest.mark.skipif(
    not namespaces_work(), reason="unshare may not make namespaces here"
)


def serve(
    tables: list[dict[str, str]], *before: str, without: tuple[str, ...] = (), **environment: str
):
    """What `serve_one` answers for each `[compile]` table, run behind the command `before`."""
    dropped = ("GEARSHIFT_", *without)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    arguments = list(map(json.dumps, tables))
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.engine.serve_one", *arguments],
        env={**kept, "PYTHONPATH": str(ROOT), "GEARSHIFT_CONFIG": os.devnull, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return [answers[argument] for argument in arguments]


def assert_served_eager(answer: dict[str, Any], *said: str) -> None:
    assert answer["y"] == [2, 2, 2, 2]
    assert answer["mode"] == "eager"
    for part in said:
        assert part in answer["reason"]


CACHES = {  # where: how it is mounted, and what is said of it
    "read-only": ("ro,mode=700", "cannot be written to (Read-only file system)"),
    "unmade/cache": ("ro", "cannot be made (Read-only file system)"),
    "filled": ("size=100k,mode=700", "cannot be written to (No space left on device)"),
    "tight": ("size=1m,mode=700", "1 MiB free, full"),
    "noexec": ("noexec,mode=700", "mounted noexec"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """The answers with each cache directory of CACHES, from one process that has them all."""
    root = tmp_path_factory.mktemp("mounts")
    script = ["set -e"]
    for name, (options, _) in CACHES.items():
        at = root / Path(name).parts[0]
        script += [f"mkdir {at}", f"mount -t tmpfs -o {options} test {at}"]
    script += [f"cat /dev/zero > {root}/filled/zeros 2> /dev/null || true", 'exec "$@"']
    tables = [{"cache_dir": str(root / name)} for name in CACHES]
    found = serve(tables, "unshare", "-rm", "sh", "-c", "\n".join(script), "sh")
    return dict(zip(CACHES, found, strict=True))


@needs_namespaces
@pytest.mark.parametrize("cache", CACHES)
def test_a_cache_that_cannot_be_used_is_served_eager(answers, cache):
    assert_served_eager(answers[cache], f"/{cache}: {CACHES[cache][1]}", "set compile.cache_dir")


@needs_namespaces
def test_a_user_without_a_name_or_a_home(tmp_path):
    unknown = ["unshare", "-U", f"--map-user={UNKNOWN_UID}", f"--map-group={UNKNOWN_UID}"]
    tables = [{}, {"cache_dir": str(tmp_path / "cache")}]
    homeless, named = serve(tables, *unknown, without=("HOME", "USER", "LOGNAME"))
    assert_served_eager(homeless, f"uid {UNKNOWN_UID} has no home", "set HOME")
    assert named == {"y": [2, 2, 2, 2], "mode": "compiled", "reason": None}


def test_no_compiler(tmp_path):
    cache = {"cache_dir": str(tmp_path / "cache")}
    tables = [cache, {**cache, "on_failure": "refuse"}]
    answer, refusal = serve(tables, PATH="/nowhere", without=("CXX",))
    assert_served_eager(answer, "no g++ in PATH", "install g++, or set CXX")
    assert "double: bucket 1: C++ compiler: no g++ in PATH" in refusal["failure"]


def test_a_compiler_that_fails_is_found_by_warm_up(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] && echo 13 && exit\nexit 1\n")
    compiler.chmod(0o700)
    (answer,) = serve([{"cache_dir": str(tmp_path / "cache")}], CXX=str(compiler))
    assert_served_eager(answer, "cannot be compiled")


@pytest.mark.parametrize(
    ("limits", "cpus"),
    [
        ({}, None),
        ({"": "max 100000"}, None),
        ({"pod/box": "250000 100000"}, 2),
        ({"pod/box": "50000 100000"}, 1),
        ({"pod": "300000 100000", "pod/box": "max 100000"}, 3),
        ({"": "200000 100000", "pod/box": "400000 100000"}, 2),
        ({"another": "100000 100000"}, None),
    ],
)
def test_cpus_are_as_many_as_the_tightest_cgroup_allows(tmp_path, limits, cpus):
    own = tmp_path / "own"
    own.write_text("4:memory:/old\n0::/pod/box\n")
    for group, limit in limits.items():
        (tmp_path / "cgroup" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / group / "cpu.max").write_text(f"{limit}\n")
    assert cgroup_cpus(tmp_path / "cgroup", own) == cpus
