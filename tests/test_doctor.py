"""`serve doctor` as a user meets it: what it prints and how it exits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache") / "private"


@pytest.fixture
def doctor(cache, tmp_path):
    """Run the doctor; its exit code and the rows of its tables, stderr as the last."""

    def run(*flags: str, **environment: str) -> tuple[int, list[list[str]], str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GEARSHIFT_")}
        done = subprocess.run(
            [sys.executable, "-m", "server.cli", "doctor", "--threads", "1", *flags],
            env={
                **kept,
                "PYTHONPATH": str(ROOT),
                "GEARSHIFT_CONFIG": os.devnull,
                "GEARSHIFT_COMPILE__CACHE_DIR": str(cache),
                **environment,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
        )
        return done.returncode, [line.split("\t") for line in done.stdout.splitlines()], done.stderr

    return run


def named(rows, name):
    return next(row for row in rows if row[0] == name)


def test_a_good_machine_and_a_model_that_breaks(doctor):
    flags = ["--model", "tests.engine.faults:GraphBreak", "--seconds", "0.2"]
    code, rows, _ = doctor(*flags, "--device", "cpu")
    assert code == 0, rows
    assert rows[0] == ["check", "state", "found", "remedy"]
    assert named(rows, "device") == ["device", "ok", "cpu", ""]
    assert named(rows, "probe")[1] == "ok"
    assert "blocking" not in {row[1] for row in rows}
    graphs, verdict = [row for row in rows if row[0] == "GraphBreak"]
    assert graphs[1] == "2"
    assert "faults.py:" in graphs[2]
    assert verdict[1] == "1"
    assert verdict[5].startswith(("compile:", "no difference", "stay eager"))


def test_what_blocks_is_named_with_its_remedy(doctor):
    variables = {"TORCH_COMPILE_DISABLE": "1", "CXX": "nocompiler"}
    code, rows, _ = doctor("--device", "cpu", **variables)
    assert code == 1
    finding = ["C++ compiler", "blocking", "no nocompiler in PATH", "install g++, or set CXX"]
    assert named(rows, "C++ compiler") == finding
    found = "TORCH_COMPILE_DISABLE=1 turns torch.compile off"
    assert named(rows, "environment")[1:3] == ["blocking", found]
    assert "probe" not in {row[0] for row in rows}


def test_a_compiler_that_fails_is_found_by_the_probe(doctor, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] && echo 13 && exit\nexit 1\n")
    compiler.chmod(0o700)
    code, rows, _ = doctor("--device", "cpu", CXX=str(compiler), TORCHINDUCTOR_MAX_AUTOTUNE="1")
    assert code == 1
    assert named(rows, "environment")[1:3] == ["warning", "TORCHINDUCTOR_MAX_AUTOTUNE=1"]
    assert named(rows, "probe")[1] == "blocking"
    assert "Error" in named(rows, "probe")[2]


def test_a_device_that_is_not_there_blocks(doctor):
    code, rows, _ = doctor("--device", "cuda:99")
    assert code == 1
    assert named(rows, "device")[1] == "blocking"
    assert "cuda:99" in named(rows, "device")[2]


def test_a_cache_that_others_can_write_to_is_refused(doctor, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    code, rows, error = doctor(GEARSHIFT_COMPILE__CACHE_DIR=str(shared))
    assert (code, rows) == (2, [])
    assert "others can write to it" in error
