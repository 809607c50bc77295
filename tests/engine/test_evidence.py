"""Compiled means proven: what is compiled says how much of it, what is not says why, and nothing
compiles any more once the engine is ready."""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest
import torch

from server.engine.tensors import rows_of
from tests.engine import faults
from tests.fakes import Colors, Double, Tokens

ONES = {"x": np.ones(4, np.float32)}


def compiles_while_serving(running, model, rows) -> int:
    time.sleep(1.1)  # device records come at most once a second, with a batch
    running.run(model, rows)
    running.engine.close(30)
    return running.devices[-1].compiles_serving


def test_a_proven_bucket_comes_with_its_evidence(start):
    running = start([Tokens()], mode="compiled")
    for bucket in running.statuses["tokens"].buckets:
        assert (bucket.state, bucket.reason, bucket.note) == ("compiled", None, None)
        assert (bucket.graphs, bucket.graph_breaks) == (1, 0)
        assert bucket.replays_per_call is None  # no CUDA here
        assert bucket.graph_pool_bytes is None
        assert bucket.parity_rule == "float64"
        assert bucket.parity_rmse <= 2 * bucket.parity_eager_rmse + 1e-4
        assert bucket.parity_cosine > 0.99999


@pytest.mark.parametrize(
    ("model", "expected", "note"),
    [
        (
            faults.GraphBreak,
            3,
            r"partial: 2 graphs, 1 breaks; as a whole: cannot be compiled: Unsupported: Call to "
            r"`torch._dynamo.graph_break.*faults.py:\d+: torch._dynamo.graph_break\(\)\)",
        ),
        (
            faults.Branches,
            2,
            r"partial: 2 graphs, 1 breaks; as a whole: cannot be compiled: .*faults.py:\d+: return",
        ),
    ],
)
def test_a_model_that_breaks_the_graph_is_compiled_in_parts_and_says_where(
    start, model, expected, note
):
    running = start([model()], mode="compiled")
    for bucket in running.statuses["double"].buckets:
        assert (bucket.state, bucket.reason) == ("compiled", None)
        assert bucket.note is not None
    assert re.match(note, running.statuses["double"].buckets[0].note)
    replies = running.run("double", [ONES, ONES])
    assert [reply.outputs["y"].tolist() for reply in replies] == [[expected] * 4] * 2
    assert {(reply.mode, reply.fallback) for reply in replies} == {("compiled", None)}
    assert compiles_while_serving(running, "double", [ONES]) == 0


def test_the_other_way_of_a_branch_that_warm_up_never_took_runs_eager_and_is_counted(start):
    running = start([faults.Branches()], mode="compiled")
    (reply,) = running.run("double", [{"x": -np.ones(4, np.float32)}])
    assert reply.outputs["y"].tolist() == [-3] * 4
    assert (reply.mode, reply.fallback) in [("eager", "recompile_prevented"), ("compiled", None)]
    assert compiles_while_serving(running, "double", [ONES]) == 0


def test_more_buckets_than_torchs_own_limit_are_all_compiled(start):
    sizes = list(range(1, 13))
    running = start(
        [Double()],
        mode="compiled",
        batching={"max_batch_size": 12},
        compile={"batch_buckets": sizes},
    )
    assert running.buckets("double") == {str(size): "compiled" for size in reversed(sizes)}
    for size in sizes:
        rows = rows_of(Double().example(size, 0))
        for row, reply in zip(rows, running.run("double", rows), strict=True):
            assert reply.mode == "compiled"
            np.testing.assert_allclose(reply.outputs["y"], 2 * row["x"])
    assert compiles_while_serving(running, "double", [ONES]) == 0


@pytest.mark.parametrize(
    "pixels",
    [
        np.random.default_rng(1).random((8, 8, 3), np.float32).transpose(2, 0, 1),
        np.random.default_rng(1).random((3, 16, 16), np.float32)[:, ::2, ::2],
        np.asfortranarray(np.random.default_rng(1).random((3, 8, 8), np.float32)),
    ],
    ids=["channels last", "every other pixel", "column-major"],
)
def test_the_memory_order_of_an_input_does_not_matter(start, pixels):
    running = start([Colors()], mode="compiled")
    (reply,) = running.run("colors", [{"pixels": pixels}])
    assert (reply.mode, reply.fallback) == ("compiled", None)
    np.testing.assert_allclose(reply.outputs["means"], pixels.mean((1, 2)), rtol=1e-5)
    assert compiles_while_serving(running, "colors", [{"pixels": pixels}]) == 0


def test_ids_of_a_narrower_type_do_not_compile_again(start):
    running = start([Tokens()], mode="compiled")
    wide = {"ids": np.arange(1, 11), "mask": np.ones(10, np.int64)}
    narrow = {name: array.astype(np.int32) for name, array in wide.items()}
    one, two = running.run("tokens", [wide, narrow])
    assert (two.mode, two.fallback) == ("compiled", None)
    np.testing.assert_array_equal(one.outputs["scores"], two.outputs["scores"])
    assert compiles_while_serving(running, "tokens", [narrow]) == 0


def test_a_module_left_in_train_mode_with_gradients_is_served_as_for_inference(start):
    running = start([faults.LeftInTraining()], mode="compiled")
    assert set(running.buckets("double").values()) == {"compiled"}
    first, second = (running.run("double", [ONES])[0] for _ in range(2))
    np.testing.assert_array_equal(first.outputs["y"], second.outputs["y"])
    assert np.count_nonzero(first.outputs["y"]) == 4  # nothing dropped out
    assert compiles_while_serving(running, "double", [ONES]) == 0


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_module_that_changes_torchs_state_does_not_disturb_the_others(start):
    running = start([faults.LeavesState(), Tokens()], mode="compiled")
    assert set(running.buckets("tokens").values()) == {"compiled"}
    tokens = rows_of(Tokens().example(1, 10))
    for _ in range(3):
        assert running.run("double", [ONES])[0].outputs["y"].tolist() == [2] * 4
        (reply,) = running.run("tokens", tokens)
        assert (reply.mode, reply.fallback) == ("compiled", None)
    assert compiles_while_serving(running, "tokens", tokens) == 0


def test_threads_that_submit_at_once_each_get_their_own_answer(start):
    running = start([Double()], mode="compiled")
    wrong: list[float] = []

    def ask(value: float) -> None:
        for _ in range(50):
            (reply,) = running.run("double", [{"x": np.full(4, value, np.float32)}])
            if reply.mode != "compiled" or reply.outputs["y"].tolist() != [2 * value] * 4:
                wrong.append(value)

    threads = [threading.Thread(target=ask, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert compiles_while_serving(running, "double", [ONES]) == 0


def test_integer_outputs_are_compared_too(start):
    running = start([faults.Classes()], mode="compiled", dtype="bfloat16")
    assert set(running.buckets("double").values()) == {"compiled"}


def test_a_module_with_a_dtype_of_its_own_is_judged_by_eager(start):
    running = start([faults.PinnedDtype()], mode="compiled")
    rules = {bucket.parity_rule for bucket in running.statuses["double"].buckets}
    assert rules == {"eager"}
    assert set(running.buckets("double").values()) == {"compiled"}


@pytest.mark.parametrize(("dynamic", "compiled_for"), [(True, 2), ("batch", 4)])
def test_one_compile_may_serve_several_buckets_each_proven(start, dynamic, compiled_for):
    torch._dynamo.reset()
    running = start(
        [Tokens()],
        mode="compiled",
        batching={"max_batch_size": 4},
        compile={"dynamic": dynamic},
    )
    buckets = running.statuses["tokens"].buckets
    assert {bucket.state for bucket in buckets} == {"compiled"}
    assert {bucket.graphs for bucket in buckets} == {1}
    assert all(bucket.parity_max_abs_error is not None for bucket in buckets)
    assert sum(bucket.cache is not None for bucket in buckets) == compiled_for
    for size in range(1, 5):
        rows = rows_of(Tokens().example(size, 10 * size - 9))
        assert {reply.fallback for reply in running.run("tokens", rows)} == {None}


def test_a_skipped_bucket_is_served_eager_for_the_reason_given(start):
    running = start([Double()], mode="compiled", skipped={("double", "2"): "took too long"})
    assert running.buckets("double") == {"2": "eager", "1": "compiled"}
    assert running.statuses["double"].buckets[0].reason == "took too long"
    assert {reply.fallback for reply in running.run("double", [ONES] * 2)} == {
        "bucket_not_compiled"
    }


def test_the_precision_of_matrix_products_is_the_configured_one_and_compiles_nothing_later(start):
    running = start([faults.LeftInTraining()], mode="compiled", matmul_precision="high")
    assert torch.get_float32_matmul_precision() == "high"
    assert set(running.buckets("double").values()) == {"compiled"}
    assert compiles_while_serving(running, "double", [ONES]) == 0
