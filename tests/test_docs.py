# SPDX-License-Identifier: Apache-2.0
"""README and docs are true as far as a machine can tell: snippets run, names exist, lists are complete.

Each python block runs in a process of its own, in an empty folder, on Numba's simulator. A comment in the
line above it changes that: ``<!-- codegen -->`` runs it without the simulator, with real code generation. A
text block below ``<!-- output -->`` is what the snippet before it prints.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import enum
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import nvmath_device as nd
from nvmath_device import __main__ as command_line
from nvmath_device import host

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page: page.read_text() for page in PAGES}
ALL_TEXT = "\n".join(TEXT.values())

FENCE = re.compile(r"^(?:<!-- (?P<mark>.+?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = {"python": {None, "codegen"}, "text": {None, "output"}, "sh": {None}, "console": {None}}


@dataclass(frozen=True)
class Snippet:
    page: Path
    line: int
    language: str
    mark: str | None
    body: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def snippets(*languages: str) -> Iterator[Snippet]:
    for page, text in TEXT.items():
        for match in FENCE.finditer(text):
            if match["language"] in languages:
                line = text.count("\n", 0, match.start("body")) + 1
                yield Snippet(page, line, match["language"], match["mark"], match["body"])


def with_output() -> Iterator[tuple[Snippet, str | None]]:
    """Every python snippet and what it must print, None if that is open."""
    blocks = list(snippets("python", "text"))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language == "python":
            wanted = following.body if following is not None and following.mark == "output" else None
            yield block, wanted


def run(snippet: Snippet, folder: Path) -> str:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment.pop("NUMBA_ENABLE_CUDASIM", None)
    if snippet.mark != "codegen":  # which may use the store of this run; the others get an empty one
        environment |= {"NUMBA_ENABLE_CUDASIM": "1", "NVMATH_DEVICE_CACHE_DIR": str(folder / "store")}
    program = folder / "snippet.py"  # a file, because Numba looks at the source of kernels
    program.write_text(snippet.body)
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{snippet}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("snippet", "wanted"), list(with_output()), ids=lambda x: str(x) if isinstance(x, Snippet) else ""
)
def test_python_snippet_runs(snippet, wanted, tmp_path):
    printed = run(snippet, tmp_path)
    if wanted is not None:
        assert printed == wanted


def test_the_pages_have_snippets_of_each_kind_and_no_mark_is_mistyped():
    python = list(snippets("python"))
    assert sum(s.mark is None for s in python) >= 10
    assert sum(s.mark == "codegen" for s in python) >= 1
    assert all(s.mark in MARKS[s.language] for s in snippets(*MARKS))
    for page, text in TEXT.items():
        fences = re.findall(r"^```", text, re.MULTILINE)
        assert len(fences) == 2 * len(list(FENCE.finditer(text))), f"{page.name}: a fence is not closed"
        known = {*MARKS, "markdown"}
        assert {m["language"] for m in FENCE.finditer(text)} <= known, page.name


def test_readme_leads_with_the_two_commands_and_a_short_kernel():
    first, second = list(FENCE.finditer(TEXT[ROOT / "README.md"]))[:2]
    shown = [line.split("#")[0].strip() for line in first["body"].splitlines()]
    assert shown == ["make quickstart", "make test"]
    body = second["body"]
    kernel = body[body.index("@cuda.jit") :].split("\n\n")[0]
    assert len(kernel.splitlines()) <= 15


# -- commands ----------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    for snippet in snippets("sh", "console"):
        for line in snippet.body.splitlines():
            text = line.split("#")[0].removeprefix("$ ").strip()
            if text and (snippet.language == "sh" or line.startswith("$ ")):
                words = re.findall(r'"[^"]*"|\S+', text)
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                yield f"{snippet}: {text}", [word.strip('"') for word in words]


@pytest.mark.parametrize(("where", "words"), list(commands()), ids=lambda x: x if isinstance(x, str) else "")
def test_command_exists(where, words):
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "pip":
        action, *packages = arguments
        assert action == "install"
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for package in packages:
            name, extra = re.fullmatch(r"([a-z-]+)\[(\w+)\]", package).groups()
            assert (name, extra in extras) == ("nvmath-device", True), where
    elif program == "python" and arguments[:2] == ["-m", "nvmath_device"]:
        command_line._parser().parse_args(arguments[2:])  # exits for a command that is not there
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    else:
        assert shutil.which(program), where


def test_every_command_of_the_package_is_documented():
    def leaves(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
        actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if not actions:
            yield path
        for action in actions:
            for name, child in action.choices.items():
                yield from leaves(child, f"{path} {name}")

    for command in leaves(command_line._parser(), "python -m nvmath_device"):
        assert command in ALL_TEXT


# -- names -------------------------------------------------------------------------------------------------

CODE = "\n".join(
    [m["body"] for m in FENCE.finditer(ALL_TEXT) if m["language"] == "python"]
    + re.findall(r"`([^`\n]+)`", FENCE.sub("", ALL_TEXT))
)


@pytest.mark.parametrize("name", nd.__all__)
def test_public_name_is_documented(name):
    if name != "__version__":
        assert re.search(rf"\bnd\.{name}\b", CODE), f"nd.{name} stands in no code of README.md or docs/"


def test_names_in_the_docs_exist():
    unknown = {name for name in re.findall(r"\bnd\.(\w+)", CODE) if name not in nd.__all__}
    assert not unknown


@pytest.mark.parametrize(("variable", "owner"), [("mm", "Matmul"), ("fft", "FFT")])
def test_attributes_in_the_docs_exist(variable, owner):
    used = set(re.findall(rf"(?<!np\.)\b(?:{variable}|{owner})\.(?!py\b)(\w+)", CODE))
    instance_attributes = getattr(nd, owner).__annotations__
    assert used
    assert {name for name in used if not hasattr(getattr(nd, owner), name)} <= set(instance_attributes)


@pytest.mark.parametrize("owner", ["Matmul", "FFT"])
def test_public_attribute_is_documented(owner):
    words = set(re.findall(r"\w+", CODE))
    public = {name for name in dir(getattr(nd, owner)) if not name.startswith("_")}
    assert public - words == set()


def test_every_exception_is_documented():
    own = {name for name, value in vars(nd.errors).items() if isinstance(value, type)}
    text = TEXT[ROOT / "docs" / "errors-and-limits.md"]
    for name in own:
        assert f"`{name}`" in text
    for name, builtin in re.findall(r"^\| `(\w+Error)` \| `(\w+)` \|", text, re.MULTILINE):
        assert issubclass(getattr(nd.errors, name), getattr(builtins, builtin))


def sources() -> list[Path]:
    return [path for layer in ("nvmath_device", "lto", "host") for path in sorted((ROOT / layer).rglob("*.py"))]


def test_environment_variables_are_those_the_package_reads():
    pattern = re.compile(r"NVMATH_DEVICE_[A-Z_]+")
    read = {name for path in sources() for name in pattern.findall(path.read_text())}
    assert set(pattern.findall(ALL_TEXT)) == read


# -- the host layer -----------------------------------------------------------------------------------------

HOST_PAGE = TEXT[ROOT / "docs" / "host.md"]


@pytest.mark.parametrize("name", host.__all__)
def test_public_name_of_the_host_layer_is_documented(name):
    assert re.search(rf"\bhost\.{name}\b", CODE), f"host.{name} stands in no code of README.md or docs/"


def test_names_of_the_host_layer_in_the_docs_exist():
    assert set(re.findall(r"\bhost\.(?!(?:md|py)\b)(\w+)", CODE)) <= set(host.__all__)


def first_cells(heading: str) -> list[set[str]]:
    """Names in code in the first column of each table below a heading."""
    section = HOST_PAGE[HOST_PAGE.index(f"\n## {heading}\n") + 1 :]
    section = section[: section.find("\n## ", 1)]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) for table in tables]


@pytest.mark.parametrize(("table", "cls"), [(0, host.MatmulOptions), (1, host.MatmulPlanPreferences)])
def test_tables_of_options_are_complete(table, cls):
    assert first_cells("Options")[table] == {field.name for field in dataclasses.fields(cls)}


def test_defaults_in_the_tables_of_options_are_right():
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", HOST_PAGE, re.MULTILINE)
    both = host.MatmulOptions, host.MatmulPlanPreferences
    defaults = {field.name: field.default for cls in both for field in dataclasses.fields(cls)}
    told = {name: words for name, words in rows if name in defaults}
    assert {"copies", "memory_limit", "blocking"} <= told.keys()
    for name, words in told.items():
        if name == "logger":
            assert words == "nvmath_device"
        elif isinstance(defaults[name], enum.Flag):
            assert defaults[name] == type(defaults[name])[words]
        else:
            assert ast.literal_eval(words) == defaults[name]


def test_table_of_epilogs_is_complete():
    assert first_cells("Epilogs")[0] == {epilog.name for epilog in host.MatmulEpilog} - {"DEFAULT"}


# -- the house and the links -------------------------------------------------------------------------------


def drawn_files() -> list[str]:
    """The paths in the tree of docs/architecture.md, folders with a slash."""
    drawing = next(s.body for s in snippets("text") if s.page.name == "architecture.md")
    paths, folders = [], []
    for line in drawing.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        del folders[depth:]
        paths.append("".join(folders) + name)
        if name.endswith("/"):
            folders.append(name)
    return paths


def test_the_house_is_drawn_as_it_is():
    drawn = drawn_files()
    for path in drawn:
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path
    assert {p for p in drawn if p.endswith(".py")} == {str(path.relative_to(ROOT)) for path in sources()}


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", TEXT[page]))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert file.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"
