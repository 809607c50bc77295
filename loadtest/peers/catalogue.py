"""The servers that are compared: how each is started, asked and read, and what was changed.

Every one starts the way its documentation shows. Knows no machine and no measurement.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.closed_loop import Request
from loadtest.peers.workloads import Payload, Workload

BATCH = 8
CORES = len(os.sched_getaffinity(0))

Command = Callable[[int, Workload, int], list[str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One server. `command` is for its Python: port, workload and largest batch to arguments."""

    name: str
    command: Command
    request: Callable[[Payload], Request]
    answer: Callable[[bytes], Any]
    note: str
    packages: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False
    in_bfloat16: bool = False


def _gearshift(mode: str, workers: int, dtype: str | None) -> Command:
    def command(port: int, workload: Workload, _: int) -> list[str]:
        flags = {
            "port": port,
            "mode": mode,
            "model": f"{workload.name}={workload.model}",
            "threads": 1,
            "workers": workers,
        }
        if dtype is not None:
            flags["dtype"] = dtype
        if workload.weights != "default":
            flags["weights"] = workload.weights
        given = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        return ["-m", "server.cli", *given]

    return command


def _program(name: str) -> Command:
    def command(port: int, workload: Workload, batch: int) -> list[str]:
        return ["-m", f"loadtest.peers.servers.{name}", str(port), workload.name, str(batch)]

    return command


def plain(payload: Payload, path: str = "/predict") -> Request:
    """A picture as the body it is, everything else as JSON."""
    if "image" in payload:
        return Request(path, {"Content-Type": "image/jpeg"}, payload["image"])
    return _json(payload, path)


def _json(payload: Payload, path: str = "/predict") -> Request:
    return Request(path, {"Content-Type": "application/json"}, json.dumps(payload).encode())


def _to_mosec(payload: Payload) -> Request:
    return plain(payload, "/inference")


def _base64(payload: Payload) -> Request:
    if "image" in payload:
        payload = {"image": base64.b64encode(payload["image"]).decode()}
    return _json(payload)


def _kserve(payload: Payload) -> Request:
    """The V2 protocol with its binary extension: a JSON header, then the tensor's bytes."""
    body = payload["image"] if "image" in payload else json.dumps(payload).encode()
    tensor = struct.pack("<I", len(body)) + body
    described = {
        "name": "body",
        "shape": [1, 1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(tensor)},
    }
    header = json.dumps({"inputs": [described]}).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(header)),
    }
    return Request("/v2/models/model/infer", headers, header + tensor)


def _prediction(body: bytes) -> Any:
    return json.loads(body)["prediction"]


def _kserve_answer(body: bytes) -> Any:
    return json.loads(json.loads(body)["outputs"][0]["data"][0])


def _ours(mode: str, workers: int = 1, dtype: str | None = None) -> Peer:
    several = f" --workers {workers}" if workers > 1 else ""
    cast = f" --dtype {dtype}" if dtype else ""
    names = [f"Gearshift {mode}", *filter(None, (dtype, several and f"{workers} workers"))]
    return Peer(
        name=", ".join(names),
        command=_gearshift(mode, workers, dtype),
        request=plain,
        answer=_prediction,
        note=f"`serve --mode {mode} --threads 1{several}{cast}`, else its defaults",
        environment={"GEARSHIFT_CONFIG": "/dev/null"},
        ours=True,
        in_bfloat16=dtype is not None,
    )


EAGER, COMPILED = _ours("eager"), _ours("compiled")
# As FastAPI's thread pool uses every core.
EVERY_CORE = [_ours(mode, CORES) for mode in ("eager", "compiled")] if CORES > 1 else []
STARLETTE = Peer(
    name="Starlette",
    command=_program("starlette"),
    request=plain,
    answer=json.loads,
    note="on uvicorn, reads and writes the JSON: the floor in Python",
)
FASTAPI = Peer(
    name="FastAPI",
    command=_program("fastapi"),
    request=plain,
    answer=json.loads,
    note="a plain function that calls the model, in its thread pool; no batches",
)
LITSERVE = Peer(
    name="LitServe",
    command=_program("litserve"),
    request=_base64,
    answer=json.loads,
    note="batches of 8, 10 ms; images in base64, as it takes JSON alone",
)
MOSEC = Peer(
    name="mosec",
    command=_program("mosec"),
    request=_to_mosec,
    answer=json.loads,
    note="batches of 8, 10 ms; a process that preprocesses and one that infers",
    packages=("mosec==0.9.8",),
)
RAY = Peer(
    name="Ray Serve",
    command=_program("ray"),
    request=plain,
    answer=json.loads,
    note="`@serve.batch` of 8, 10 ms; `max_ongoing_requests` 100 instead of 5, which could not "
    "fill a batch",
    packages=("ray[serve]==2.60.0",),
    environment={"RAY_USAGE_STATS_ENABLED": "0"},
)
TRITON = Peer(
    name="Triton",
    command=_program("triton"),
    request=_kserve,
    answer=_kserve_answer,
    note="nvidia-pytriton, its dynamic batcher, batches of 8; V2 protocol with binary tensors",
    packages=("nvidia-pytriton==0.7.0",),
    # Its stub finds another Python's library otherwise, where there is one.
    environment={"LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR")},
)

COMPARED = (EAGER, COMPILED, *EVERY_CORE, FASTAPI, LITSERVE, MOSEC, RAY, TRITON)
# Other answers, and slow on a CPU that has no such instructions: for whoever asks for it.
BFLOAT16 = tuple(_ours(mode, CORES, "bfloat16") for mode in ("eager", "compiled"))
