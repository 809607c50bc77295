"""Scenarios (what is sent to which model) and arrivals (when), read from their TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

HERE = Path(__file__).parent
T = TypeVar("T", bound="Part")


class ScenarioError(Exception):
    """There is no such file, or it cannot be used; the text says why."""


class Part(BaseModel):
    """A frozen table of a file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Requests(Part):
    """Requests of one kind to one model."""

    name: str
    """The model's name in the URL."""
    model: str = ""
    """What `serve --model` takes. Default: the name."""
    inputs: Literal["photographs", "texts", "series"] | None = None
    """Real inputs of this kind,"""
    samples: tuple[dict[str, Any], ...] = ()
    """or these, as JSON."""
    weight: Annotated[float, Field(gt=0)] = 1
    """How often, relative to the others."""
    tolerance: Annotated[float, Field(gt=0)] = 1e-3
    """How far a number of an answer may be off, relative to the answer's largest."""

    @model_validator(mode="after")
    def _has_inputs(self) -> Self:
        if (self.inputs is None) == (not self.samples):
            raise ValueError(f"{self.name}: give `inputs` or `samples`, one of the two")
        return self


class Scenario(Part):
    """What is sent."""

    about: str
    flags: tuple[str, ...] = ()
    """More flags for `serve`, the same on every side."""
    requests: tuple[Requests, ...]

    @property
    def serve_flags(self) -> list[str]:
        """To serve the models of this scenario."""
        models = {one.name: one.model or one.name for one in self.requests}
        named = [("--model", f"{name}={reference}") for name, reference in models.items()]
        return [*(flag for pair in named for flag in pair), *self.flags]


class Stage(Part):
    """One load: closed (`users`) or open (`rate`, or `share` of what was seen to be possible)."""

    users: Annotated[int, Field(ge=1)] | None = None
    """So many clients, each of which waits for its answer before it asks again."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """So many requests a second, whatever becomes of those before."""
    share: Annotated[float, Field(gt=0)] | None = None
    """The same, as a share of the most that the faster side answered in the warm-up."""
    burst: Annotated[int, Field(ge=1)] = 1
    """So many of them come at once."""

    @model_validator(mode="after")
    def _is_one_load(self) -> Self:
        if sum(value is not None for value in (self.users, self.rate, self.share)) != 1:
            raise ValueError("a stage has one of `users`, `rate` and `share`")
        return self


class Arrivals(Part):
    """When it is sent: the stages, one after another, in every round."""

    about: str
    stages: tuple[Stage, ...]


def read_scenario(name: str) -> Scenario:
    """By its name in `scenarios/`, or by a path. Raises ScenarioError."""
    return _read(Scenario, name, HERE / "scenarios")


def read_arrivals(name: str) -> Arrivals:
    """By its name in `arrivals/`, or by a path. Raises ScenarioError."""
    return _read(Arrivals, name, HERE / "arrivals")


def _read(kind: type[T], name: str, folder: Path) -> T:
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    try:
        return kind.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise ScenarioError(
            f"{name}: no such file; there is {known}, or a path to a .toml"
        ) from None
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ScenarioError(f"{path}: {error}") from None
