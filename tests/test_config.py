"""The configuration: what wins, what is refused and how, and that file and docs name every key."""

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from server import config, sources

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _clean_world(tmp_path, monkeypatch):
    """No config file around and nothing in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(config.ENV_PREFIX)]:
        monkeypatch.delenv(name)


def write(text: str, name: str = "config.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def refusal(text: str = "", flags: dict | None = None) -> list[str]:
    with pytest.raises(config.ConfigError) as caught:
        sources.load(write(text), flags)
    return str(caught.value).splitlines()


# What wins


def test_nothing_given_is_the_defaults():
    assert sources.load() == config.Settings()


def test_flags_win_over_the_environment_over_the_file_over_the_defaults(monkeypatch):
    write('dtype = "float16"\n[server]\nport = 2001\npreprocess_threads = 2\nmax_pixels = 5')
    monkeypatch.setenv("GEARSHIFT_SERVER__PORT", "2002")
    monkeypatch.setenv("GEARSHIFT_SERVER__PREPROCESS_THREADS", "3")
    settings = sources.load(flags={"server": {"port": 2003}})
    assert settings.server.port == 2003
    assert settings.server.preprocess_threads == 3
    assert settings.server.max_pixels == 5
    assert settings.dtype == "float16"
    assert settings.server.host == "127.0.0.1"


def test_every_key_has_an_environment_variable_of_its_type(monkeypatch):
    monkeypatch.setenv("GEARSHIFT_MODE", "compiled")
    monkeypatch.setenv("GEARSHIFT_THREADS", "2")
    monkeypatch.setenv("GEARSHIFT_BATCHING__BATCH_TIMEOUT_MS", "1.5")
    monkeypatch.setenv("GEARSHIFT_COMPILE__DYNAMIC", "true")
    monkeypatch.setenv("GEARSHIFT_COMPILE__BATCH_BUCKETS", "[1, 8]")
    monkeypatch.setenv("GEARSHIFT_MODELS", '[{"model": "lstm", "name": "sea"}]')
    settings = sources.load()
    assert (settings.mode, settings.threads) == ("compiled", 2)
    assert settings.batching.batch_timeout_ms == 1.5
    assert settings.compile.dynamic is True
    assert settings.compile.batch_buckets == (1, 8)
    assert settings.models == (config.ModelSection(model="lstm", name="sea"),)


def test_the_environment_may_name_the_file(monkeypatch):
    write("threads = 3", "other.toml")
    write("threads = 4")
    monkeypatch.setenv("GEARSHIFT_CONFIG", "other.toml")
    assert sources.load().threads == 3
    assert sources.load(Path("config.toml")).threads == 4


def test_a_model_named_again_by_a_flag_keeps_its_options():
    write('[[models]]\nmodel = "lstm"\nname = "sea"\n[[models]]\nmodel = "resnet50"')
    models = sources.load(flags={"models": [{"model": "lstm", "weights": "random"}]}).models
    assert models == (config.ModelSection(model="lstm", name="sea", weights="random"),)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("resnet50", "resnet50"),
        ("timm:tf_efficientnet_lite0", "tf_efficientnet_lite0"),
        ("transformers:google-bert/bert-base-uncased", "bert-base-uncased"),
        ("folder/my model.pt2", "my-model"),
        ("package.module:Net", "Net"),
    ],
)
def test_a_model_without_a_name_is_served_under_the_last_part_of_its_reference(model, name):
    assert config.ModelSection(model=model).served_name == name


# What is refused


def test_every_problem_gets_a_line_with_key_value_remedy_and_origin(monkeypatch):
    monkeypatch.setenv("GEARSHIFT_DTYPE", "int8")
    assert refusal("[server]\nport = 80\n[log]\nlevel = 3", {"threads": -1}) == [
        "dtype = 'int8': input should be 'auto', 'float32', 'bfloat16' or 'float16'"
        " (from the environment)",
        "threads = -1: input should be greater than or equal to 0 (from the command line)",
        "server.port = 80: input should be greater than or equal to 1024 (from config.toml)",
        "log.level = 3: input should be 'debug', 'info', 'warning' or 'error' (from config.toml)",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("moed = 1", "moed: unknown key; did you mean mode? (from config.toml)"),
        ("port = 1", "port: unknown key; did you mean server.port? (from config.toml)"),
        ("[servr]", "servr: unknown key; did you mean server? (from config.toml)"),
        ("[log]\nlvel = 1", "log.lvel: unknown key; did you mean log.level? (from config.toml)"),
        ("zzz = 1", "zzz: unknown key (from config.toml)"),
        ("[[models]]", "models.0.model: has to be given (from config.toml)"),
        (
            '[[models]]\nmodel = "a"\nweigths = "b"',
            "models.0.weigths: unknown key; did you mean models.weights? (from config.toml)",
        ),
        (
            "models = []",
            "models = []: nothing to serve; add a [[models]] table or leave `models` out"
            " (from config.toml)",
        ),
        (
            'mode = "auto"',
            "mode = 'auto': not available yet; use 'eager' or 'compiled' (from config.toml)",
        ),
        (
            '[compile]\ndynamic = "seq"',
            "compile.dynamic = 'seq': input should be 'auto', True, False or 'batch' (from "
            "config.toml)",
        ),
        (
            "[compile]\nbatch_buckets = [1, 4]",
            "compile.batch_buckets = [1, 4]: the largest must be batching.max_batch_size = 8;"
            " add 8 or change max_batch_size",
        ),
        (
            "[server]\napi_processes = 3\n[batching]\nmax_queue = 2",
            "batching.max_queue = 2: at least 1 for each of server.api_processes = 3;"
            " raise it or lower api_processes",
        ),
        (
            "[server]\nrequest_timeout_s = inf",
            "server.request_timeout_s = inf: input should be a finite number (from config.toml)",
        ),
    ],
)
def test_a_wrong_file_is_refused(text, line):
    assert refusal(text) == [line]


def test_two_models_of_one_name_are_refused():
    (line,) = refusal('[[models]]\nmodel = "lstm"\n[[models]]\nmodel = "timm:lstm"')
    assert "served twice: lstm; give each its own `name`" in line


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "GEARSHIFT_SERVR__PORT",
            "1",
            "GEARSHIFT_SERVR__PORT: unknown key; did you mean GEARSHIFT_SERVER__PORT?",
        ),
        (
            "GEARSHIFT_COMPILE__SEQ_BUCKETS",
            "1,2",
            "GEARSHIFT_COMPILE__SEQ_BUCKETS = '1,2': write it as JSON, for example [1, 2]",
        ),
    ],
)
def test_a_wrong_environment_is_refused(monkeypatch, name, value, line):
    monkeypatch.setenv(name, value)
    assert refusal() == [line]


def test_a_file_that_is_not_there_or_not_toml_is_refused():
    with pytest.raises(config.ConfigError, match=r"none\.toml: cannot be read \(No such file"):
        sources.load(Path("none.toml"))
    assert refusal("mode =")[0].startswith("config.toml: not valid TOML: ")


# What is not shown

SECRET = "correct-horse-battery"


def test_a_key_is_read_from_file_and_environment_and_never_written(monkeypatch):
    monkeypatch.setenv("GEARSHIFT_SERVER__ADMIN_KEY", SECRET)
    settings = sources.load(write(f'[server]\napi_key = "{SECRET}"'))
    assert settings.server.api_key.get_secret_value() == SECRET
    assert settings.server.admin_key.get_secret_value() == SECRET
    written = sources.to_toml(settings)
    assert "Set, and not shown: server.api_key, server.admin_key" in written
    assert SECRET not in written + repr(settings) + str(settings)
    assert sources.load(write(written, "written.toml")).server.api_key is None


@pytest.mark.parametrize(
    "text",
    ['[server]\napi_key = "too short, me"', '[[server]]\napi_key = "too short, me"'],
)
def test_a_key_that_is_refused_is_not_shown_either(text):
    (line,) = refusal(text)
    assert line.startswith(("server.api_key = ...: ", "server = ...: "))
    assert "too short" not in line


# What is written down


def test_settings_survive_being_written_as_toml():
    settings = sources.load(
        flags={
            "mode": "compiled",
            "compile": {"batch_buckets": [2, 8], "cache_dir": 'ä "quoted" \\ path'},
            "models": [{"model": "lstm"}, {"model": "resnet50", "labels": "l.txt", "max_seq": 4}],
        }
    )
    assert sources.load(write(sources.to_toml(settings), "written.toml")) == settings


def test_config_toml_is_the_defaults():
    assert sources.load(ROOT / "config.toml") == config.Settings()


def test_config_toml_has_every_key_and_no_other():
    text = (ROOT / "config.toml").read_text()
    # `#key = value` is a key without a default, `# text` is prose.
    tables = tomllib.loads(re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE))
    written = []
    for name, value in tables.items():
        below = value[0] if name == "models" else value
        written += [f"{name}.{key}" for key in below] if isinstance(below, dict) else [name]
    assert sorted([*written, "models"]) == sorted(config.dotted_keys())


@pytest.mark.parametrize("key", config.dotted_keys())
def test_configuration_md_has_a_row_for_each_key(key):
    assert row(key) in (ROOT / "docs/configuration.md").read_text().splitlines()


def test_configuration_md_has_no_other_rows():
    text = (ROOT / "docs/configuration.md").read_text()
    assert re.findall(r"^\| `([a-z_.]+)` \|", text, flags=re.MULTILINE) == config.dotted_keys()


def row(key: str) -> str:
    """The row of docs/configuration.md that is true of a key."""
    info = config.field(key)
    assert info.description is not None, f"{key} has no attribute docstring"
    meaning = " ".join(info.description.split()).replace("|", "\\|")
    cells = [f"`{key}`", type_name(info.annotation), default(info.default), meaning]
    if not key.startswith("models."):
        cells.append(f"`{config.env_name(key)}`")
    return f"| {' | '.join(cells)} |"


def type_name(annotation) -> str:
    kinds = [kind for kind in get_args(annotation) if kind not in (type(None), ...)]
    if get_origin(annotation) is tuple:
        return f"list of {type_name(kinds[0])}"
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{json.dumps(kind)}`" for kind in kinds)
    names = {str: "text", int: "integer", float: "number", bool: "boolean", Path: "path"}
    names[SecretStr] = "secret"
    plain = kinds[0] if kinds else annotation
    return names.get(getattr(plain, "__origin__", plain), "table")


def default(value) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if value and isinstance(value, tuple):
        return " ".join(f"`{model.model}`" for model in value)
    shown = {True: "true", False: "false", (): "[]"} if isinstance(value, bool | tuple) else {}
    text = f'"{value}"' if isinstance(value, str | Path) else shown.get(value, str(value))
    return f"`{text}`"
