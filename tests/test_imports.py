"""The boundaries of docs/architecture.md, read off the import statements themselves."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TREES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        path.read_text()
    )
    for package in ("loadtest", "models", "report", "server")
    for path in sorted((ROOT / package).rglob("*.py"))
}
SHARED = ["server.config", "server.errors", "server.log", "server.metrics", "server.types"]
HTTP = {"fastapi", "litserve", "starlette", "uvicorn"}
# Libraries that import torch themselves count as torch.
TORCH = {"torch", "torchvision", "timm", "transformers"}


def imports(module: str, *, at_start: bool = False) -> set[str]:
    """Full names of what a module imports; `at_start`: when it is imported itself."""
    nodes = _run_at_import(TREES[module]) if at_start else ast.walk(TREES[module])
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{module}: import by full name"
            names |= {_full_name(node.module, alias.name) for alias in node.names}
    return names - {module}


def _full_name(module: str, name: str) -> str:
    return f"{module}.{name}" if f"{module}.{name}" in TREES else module


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes outside function bodies and `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _run_at_import(node)


def tops(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def within(package: str) -> list[str]:
    return [name for name in TREES if name == package or name.startswith(f"{package}.")]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("server.api", "server.engine"),
        ("server.engine", "server.api"),
        ("server.engine", "server.link"),
        ("models", "server"),
        ("report", "server"),
        ("report", "loadtest"),
        ("loadtest", "server"),
        ("server", "loadtest"),
        ("report", "models"),
    ],
)
def test_a_side_never_imports_the_other(package, forbidden):
    crossing = {
        (module, name)
        for module in within(package)
        for name in imports(module)
        if f"{name}.".startswith(f"{forbidden}.")
    }
    assert not crossing


def test_what_both_sides_share_knows_neither_side():
    crossing = {
        (module, name)
        for module in SHARED
        if module in TREES
        for name in imports(module)
        if name.startswith(("server.api", "server.link", "server.engine", "server.cli"))
        or tops({name}) & (HTTP | TORCH)
    }
    assert not crossing


def test_torch_is_loaded_by_the_engine_alone():
    early = [module for module in TREES if tops(imports(module, at_start=True)) & TORCH]
    assert set(early) <= set(within("server.engine"))
    anywhere = [module for module in within("server") if tops(imports(module)) & TORCH]
    assert set(anywhere) <= set(within("server.engine"))


def test_the_engine_knows_nothing_of_http():
    assert not [module for module in within("server.engine") if tops(imports(module)) & HTTP]


def test_reports_are_read_and_written_without_torch_and_http():
    used = set[str]().union(*(tops(imports(module)) for module in within("report")))
    assert not used & (HTTP | TORCH)


def test_litserve_is_used_in_two_files_at_most():
    users = [module for module in within("server") if "litserve" in tops(imports(module))]
    assert len(users) <= 2, users


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: imports(module) & set(TREES) for module in TREES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize("module", TREES)
def test_every_module_says_what_it_does(module):
    assert ast.get_docstring(TREES[module])


def test_the_command_line_starts_without_anything_heavy():
    heavy = HTTP | TORCH | {"numba", "prometheus_client", "scipy"}
    code = "import sys, server.cli; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert not heavy & set(loaded.stdout.split())
