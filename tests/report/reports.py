"""Small reports, made by hand."""

from datetime import UTC, datetime

from report.schema import Bench, BucketBench, Load, Machine, Report, Run, Side, Variant

MACHINE = Machine(cpu="a CPU", cpus=2, memory_bytes=2**30, system="Linux", versions={"torch": "2"})


def rounds(seconds: float) -> tuple[tuple[float, ...], ...]:
    """Seven rounds that differ a little."""
    return tuple((seconds * (1 + n / 1000),) * 3 for n in range(7))


def bucket(batch: int, eager_s: float, compiled_s: float | None, **variant) -> BucketBench:
    """Compiled in a second and a half, or (None) not at all."""
    known = {"first_call_s": 1.0, "warmup_s": 0.5, "parity_max_abs_error": 2e-6, **variant}
    if compiled_s is None:
        known = {"reason": "0 graphs: Dynamo took no part of the model"}
    eager = Variant(name="eager", rounds=rounds(eager_s))
    compiled = Variant(
        name="reduce-overhead", rounds=rounds(compiled_s) if compiled_s else (), **known
    )
    return BucketBench(batch=batch, variants=(eager, compiled))


def bench(*buckets: BucketBench, model: str = "net") -> Report:
    one = Bench(
        model=model, device="cpu", dtype="float32", threads=1, weight_bytes=2**20, buckets=buckets
    )
    return Report(created=datetime.now(UTC), command="serve bench", machine=MACHINE, benches=(one,))


def load(*sides: Side) -> Report:
    one = Load(scenario="image", arrivals="open", sides=sides)
    return Report(created=datetime.now(UTC), command="compare", machine=MACHINE, loads=(one,))


def run(number: int, rate: float, latency_s: float, answered: float = 1.0, **more) -> Run:
    """Ten seconds of `rate`, of which a share was answered."""
    count = int(10 * rate * answered)
    return Run(
        round=number,
        offered_rps=rate,
        seconds=10,
        start_s=tuple(n / rate for n in range(count)),
        latency_s=(latency_s,) * count,
        bucket=("1",) * count,
        **more,
    )
