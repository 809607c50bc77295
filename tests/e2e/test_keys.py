"""Keys, and shifting gears with one: who gets in, and what changes at once."""

from __future__ import annotations

import pytest

from tests.e2e.processes import children, wait_for_workers, wait_until
from tests.e2e.test_requests import metric

pytestmark = pytest.mark.e2e

DOUBLE = ("--model", "double=tests.fakes:Double", "--max-batch-size", "1")
KEY = "a-key-of-the-server"
ADMIN_KEY = "a-key-of-the-admin"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    """Compiled, with both keys, two workers, and two API processes of which any may be asked."""
    file = tmp_path_factory.mktemp("keys") / "config.toml"
    file.write_text(f'[server]\napi_key = "{KEY}"\nadmin_key = "{ADMIN_KEY}"\napi_processes = 2')
    server = start("--config", str(file), *DOUBLE, "--mode", "compiled", "--workers", "2")
    server.http.headers.update(bearer(KEY))
    return server


@pytest.mark.parametrize("path", ["/predict", "/info", "/metrics", "/docs", "/openapi.json", "/no"])
def test_whatever_is_no_probe_needs_the_key(server, path):
    for sent in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer ключ"):
        answer = server.http.get(path, headers={"Authorization": sent.encode()})
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:gearshift:problem:unauthorized"


def test_with_the_key_everything_is_there_and_without_it_the_probes(server):
    assert server.http.post("/predict", json={"x": [1, 2, 3, 4]}).status_code == 200
    for path in ("/info", "/metrics", "/docs", "/openapi.json"):
        assert server.http.get(path).status_code == 200
    for path in ("/livez", "/readyz"):
        assert server.http.get(path, headers={"Authorization": ""}).status_code == 200
    assert KEY not in server.http.get("/info").text + server.http.get("/openapi.json").text
    assert KEY not in server.log.read_text()


def shift(server, mode: object, key: str = ADMIN_KEY):
    return server.http.post("/admin/mode", json={"mode": mode}, headers=bearer(key))


def served_in(server) -> set[str]:
    """The mode as everything tells it, some requests long: they go to either API process."""
    told = set()
    for _ in range(8):
        answer = server.http.post(
            "/predict", json={"x": [1, 2, 3, 4]}, headers={"Connection": "close"}
        )
        assert answer.json()["prediction"] == [2, 4, 6, 8]
        assert "X-Gearshift-Fallback" not in answer.headers
        told.add(answer.headers["X-Gearshift-Mode"])
        told.add(server.http.get("/readyz").json()["models"]["double"]["mode"])
    (model,) = server.http.get("/info").json()["models"]
    assert [bucket["state"] for bucket in model["buckets"]] == ["compiled"]
    for mode in ("eager", "compiled"):
        active = metric(server, "gearshift_mode_active", model="double", mode=mode)
        assert active == (mode in told)
    return {*told, model["mode"]}


def test_a_compiled_server_shifts_down_to_eager_at_once_and_up_again(server):
    assert served_in(server) == {"compiled"}
    for mode in ("eager", "compiled", "compiled", "eager", "compiled"):
        answer = shift(server, mode)
        assert (answer.status_code, answer.json()) == (200, {"mode": mode})
        assert served_in(server) == {mode}
    assert metric(server, "gearshift_compiles_total", phase="serving") == 0
    assert metric(server, "gearshift_worker_restarts_total") == 0


def test_only_the_admin_key_shifts_and_only_to_a_mode(server):
    assert shift(server, "eager", key=KEY).status_code == 401
    for wrong in ("auto", "", None, 1):
        answer = shift(server, wrong)
        assert (answer.status_code, "eager" in answer.json()["detail"]) == (422, True)
    assert served_in(server) == {"compiled"}


def test_a_shift_holds_for_every_worker_and_for_one_that_starts_again(server):
    wait_for_workers(server, 2)
    assert shift(server, "eager").status_code == 200
    first, second = children(server, "worker")
    for worker in (first, second):  # the other one answers meanwhile
        worker.kill()
        wait_for_workers(server, 1)
        assert served_in(server) == {"eager"}
        wait_for_workers(server, 2)
    assert served_in(server) == {"eager"}
    assert shift(server, "compiled").status_code == 200


def test_a_shift_while_a_worker_warms_up_holds_for_it_too(server):
    wait_for_workers(server, 2)
    first, second = children(server, "worker")
    warming = server.log.read_text().count("warming up")
    first.kill()
    wait_until(lambda: server.log.read_text().count("warming up") > warming)
    assert shift(server, "eager").status_code == 200
    wait_for_workers(server, 2)
    second.kill()  # so that the other one alone answers
    wait_for_workers(server, 1)
    assert served_in(server) == {"eager"}
    wait_for_workers(server, 2)
    assert shift(server, "compiled").status_code == 200
    assert served_in(server) == {"compiled"}
    assert "Traceback" not in server.log.read_text()


def test_without_an_admin_key_there_are_no_admin_routes_and_eager_cannot_shift_up(start, tmp_path):
    plain = start(*DOUBLE, "--mode", "eager")
    assert plain.http.post("/admin/mode", json={"mode": "eager"}).status_code == 404
    assert "/admin/mode" not in plain.http.get("/openapi.json").json()["paths"]
    plain.stop()
    file = tmp_path / "config.toml"
    file.write_text(f'[server]\nadmin_key = "{ADMIN_KEY}"')
    eager = start("--config", str(file), *DOUBLE, "--mode", "eager")
    assert eager.http.get("/info").status_code == 200
    assert shift(eager, "eager").json() == {"mode": "eager"}
    refused = shift(eager, "compiled")
    assert refused.status_code == 409
    assert "start the server with --mode compiled" in refused.json()["detail"]
