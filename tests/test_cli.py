"""The command line as somebody at a terminal meets it, and what processes write to stderr."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server import __version__, config, sources

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(config.ENV_PREFIX)},
    "PYTHONPATH": str(ROOT),
    "COLUMNS": "120",
    "NO_COLOR": "1",
}


def python(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, **options)


@pytest.fixture
def serve(tmp_path):
    """Runs `serve` with flags, in an empty directory."""

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "server.cli", *flags, cwd=tmp_path)

    return run


def on_a_terminal(*arguments: str) -> str:
    """What a Python process shows to a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    command = [sys.executable, *arguments]
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says EIO when the other end is closed
        return b""


# serve


def test_help_names_every_flag(serve):
    shown = serve("--help")
    assert shown.returncode == 0
    flags = set(re.findall(r"--[a-z-]+", shown.stdout))
    assert flags >= {
        *("--config", "--model", "--weights", "--mode", "--device", "--dtype", "--threads"),
        *("--host", "--port", "--api-processes", "--max-batch-size", "--log-format"),
        *("--log-level", "--check", "--version"),
    }
    assert "models" in shown.stdout


def test_version(serve):
    assert serve("--version").stdout == f"gearshift {__version__}\n"


def test_check_prints_a_config_file_of_the_same_meaning(serve, tmp_path):
    flags = ("--mode", "compiled", "--port", "9000", "--max-batch-size", "4", "--threads", "1")
    models = ("--model", "big=resnet50", "--model", "lstm", "--log-level", "debug")
    printed = serve("--check", *flags, *models)
    assert (printed.returncode, printed.stderr) == (0, "")
    file = tmp_path / "printed.toml"
    file.write_text(printed.stdout)
    assert serve("--check", "--config", str(file)).stdout == printed.stdout
    settings = sources.load(file)
    assert (settings.mode, settings.server.port, settings.threads) == ("compiled", 9000, 1)
    assert (settings.batching.max_batch_size, settings.log.level) == (4, "debug")
    assert [model.served_name for model in settings.models] == ["big", "lstm"]


def test_weights_are_those_of_the_one_model_beside_them(serve):
    assert 'weights = "random"' in serve("--check", "--model", "lstm", "--weights", "random").stdout
    for models in ((), ("--model", "lstm", "--model", "resnet50")):
        refused = serve("--check", "--weights", "random", *models)
        assert refused.returncode == 2
        assert refused.stderr == (
            "serve: --weights random: needs exactly one --model, the one it is for\n"
        )


def test_a_wrong_configuration_is_exit_code_2_and_a_line_for_each_problem(serve, tmp_path):
    (tmp_path / "config.toml").write_text("[server]\nprot = 9000\n")
    refused = serve("--mode", "auto", "--host", "localhost")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "serve: mode = 'auto': not available yet; use 'eager' or 'compiled'"
        " (from the command line)",
        "serve: server.host = 'localhost': input should be '127.0.0.1', '0.0.0.0' or '::'"
        " (from the command line)",
        "serve: server.prot: unknown key; did you mean server.port? (from config.toml)",
    ]


def test_an_unknown_model_is_exit_code_2(serve):
    refused = serve("--model", "resnet5000")
    assert refused.returncode == 2
    assert refused.stderr.startswith("serve: ")
    assert "resnet5000" in refused.stderr


def test_a_port_in_use_is_exit_code_3_and_says_which(serve):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = serve("--port", str(port))
    assert refused.returncode == 3
    assert refused.stderr == (
        f"serve: port {port} on 127.0.0.1: Address already in use;"
        " stop what listens there, or choose another with --port\n"
    )


def test_models_are_listed_in_columns_for_a_script_and_in_a_table_for_a_person(serve):
    listed = serve("models")
    assert listed.returncode == 0
    rows = [line.split("\t") for line in listed.stdout.splitlines()]
    assert len({len(row) for row in rows}) == 1
    assert any("efficientnet-lite0" in cell for row in rows for cell in row)
    assert "efficientnet-lite0" in on_a_terminal("-m", "server.cli", "models")


# What processes write to stderr

STARTING = """
import logging, sys, warnings
from dataclasses import replace
from server import log
from server.progress import progress as make_progress
from server.config import LogSection
from server.types import BucketStatus, ModelStatus

section = LogSection(format={form!r}, level={level!r})
log.configure(section, "worker")
"""
THREE_BUCKETS = """
progress = make_progress(section)
done = [
    BucketStatus("4", "compiled", compile_s=9.0, warmup_s=1.0, parity_max_abs_error=1e-6),
    BucketStatus(
        "2", "eager", "parity: [0] is off", compile_s=5.0, parity_max_abs_error=float("nan")
    ),
    BucketStatus("1", "compiled", compile_s=3.0, warmup_s=3.0, parity_max_abs_error=0.0),
]
status = ModelStatus("net", mode="compiled", device="cpu", dtype="float32")
progress.update(status)
status = replace(status, load_s=1.25, buckets=tuple(BucketStatus(b) for b in "421"))
progress.update(status)
progress.update(replace(status, state="warming"))
for n in (1, 2, 3):
    status = replace(status, state="warming", buckets=(*done[:n], *status.buckets[n:]))
    progress.update(status)
progress.update(replace(status, state="ready", warmup_s=20.0))
progress.close()
"""


def logged(code: str, form: str = "text", level: str = "info") -> list[str]:
    """The lines that `code` writes to stderr, with logging as a worker has it."""
    done = python("-c", STARTING.format(form=form, level=level) + code)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()


def test_a_text_line_says_when_how_bad_where_and_what():
    (line,) = logged("logging.getLogger('x').warning('late', extra={'request_id': 'r1'})")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING worker  late  request_id=r1", line
    )


def test_a_json_line_is_an_object_with_what_was_passed_beside_the_message():
    code = """
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("a.b").exception("bad %s", "day", extra={"request_id": "r1"})
"""
    (line,) = logged(code, "json")
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("ts"))
    assert entry.pop("exc_info").endswith("ZeroDivisionError: division by zero")
    assert entry == {
        "level": "error",
        "process": "worker",
        "logger": "a.b",
        "message": "bad day",
        "request_id": "r1",
    }


def test_libraries_and_warnings_speak_through_the_same_lines():
    code = """
library = logging.getLogger("litserve")
library.addHandler(logging.StreamHandler(sys.stdout))
library.propagate = False
log.configure(section, "worker")
library.info("of no interest")
logging.getLogger("uvicorn.error").warning("odd")
library.warning("broken")
warnings.warn("careful")
"""
    messages = [json.loads(line)["message"] for line in logged(code, "json")]
    assert messages[:2] == ["odd", "broken"]
    assert "UserWarning: careful" in messages[2]


def test_less_severe_levels_are_left_out():
    code = "[logging.getLogger('x').log(level, 'm') for level in (10, 20, 30, 40)]"
    assert [line.split()[2] for line in logged(code, level="warning")] == ["WARNING", "ERROR"]


def test_starting_up_is_a_line_for_each_step_and_a_summary():
    lines = [line.partition("worker  ")[2] for line in logged(THREE_BUCKETS)]
    assert lines == [
        "net: loading",
        "net: loaded in 1.2 s, warming up",
        "net: bucket 4 compiled in 10.0 s (1 of 3), about 20 s left",
        "net: bucket 2 stays eager (2 of 3), about 8 s left: parity: [0] is off",
        "net: bucket 1 compiled in 6.0 s (3 of 3)",
        "net: ready (compiled, cpu, float32): loaded in 1.2 s, warmed up in 20.0 s",
        "bucket  state     compile s  warm-up s  cache  graphs  breaks  replays  pool MB  "
        "parity error  judged by  remark",
        "4       compiled  9.0        1.0        -      -       -       no CUDA  no CUDA  "
        "1.0e-06       -",
        "2       eager     5.0        -          -      -       -       no CUDA  no CUDA  "
        "nan           -          parity: [0] is off",
        "1       compiled  3.0        3.0        -      -       -       no CUDA  no CUDA  "
        "0.0e+00       -",
    ]


def test_starting_up_ends_in_one_object_where_lines_are_json():
    *_, last = logged(THREE_BUCKETS, "json")
    entry = json.loads(last, parse_constant=pytest.fail)
    assert entry["model"] == "net"
    assert [bucket["state"] for bucket in entry["buckets"]] == ["compiled", "eager", "compiled"]
    assert entry["buckets"][1]["parity_max_abs_error"] == "nan"


def test_an_eager_model_has_no_buckets_to_sum_up():
    code = """
progress = make_progress(section)
pending = (BucketStatus("1"), BucketStatus("2"))
status = ModelStatus("net", "ready", device="cpu", dtype="float32", load_s=1, buckets=pending)
progress.update(replace(status, warmup_s=0.1))
"""
    (line,) = logged(code)
    assert line.endswith("net: ready (eager, cpu, float32): loaded in 1.0 s, warmed up in 0.1 s")


def test_a_model_that_failed_says_why():
    code = "make_progress(section).update(ModelStatus('net', 'failed', detail='no such file'))"
    (line,) = logged(code)
    assert "ERROR" in line
    assert line.endswith("net: failed: no such file")


def test_on_a_terminal_the_summary_is_a_table():
    shown = on_a_terminal("-c", STARTING.format(form="auto", level="info") + THREE_BUCKETS)
    assert "net: bucket 4 compiled in 10.0 s (1 of 3), about 20 s left" in shown
    assert re.search(r"│ 2 +│ eager +│ 5.0 +│ - +│", shown)
