"""Change one operator, constant or statement at a time, and count how many mutants the tests notice.

    OMP_NUM_THREADS=1 python tools/mutation_score.py decoding train --sample 60 --results mutants.jsonl

The tests of the packages are collected once and run once, to know which tests run which line. Each mutant
then gets a fork of that process, in which the code of the functions is replaced and the tests of its line run
until one fails: nothing is imported or written anew. (mutmut leaves out functions with decorators, cosmic-ray
starts Python for each mutant.)

Left out as equivalent: docstrings, annotations, assertions, decorators, logs, messages of errors. What runs
on import (class bodies, constants of a module) is left out as well. A test that starts a process does not see
mutants. Mutants in the file of results are not tried again (`--again`: the survivors are).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import gc
import hashlib
import itertools
import json
import math
import operator as operator_module
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[1]
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.USub: ast.UAdd,
}  # fmt: skip
LOGGERS = {"log", "logger", "logging", "warnings"}
GIGABYTE = 2**30


class Mutant(NamedTuple):
    path: Path
    lines: range
    operator: str
    change: Callable[[], None]
    """Of the module's tree, for good."""
    tree: ast.Module
    key: str
    """The same as long as its line is, wherever that stands."""


def find_replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in place of a node."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[place] = SWAPS[type(operator)]()
            yield "comparison", other
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        other = copy.deepcopy(node)
        other.op = SWAPS[type(node.op)]()
        yield "arithmetic", other
    elif isinstance(node, ast.BoolOp):
        yield "boolean", ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield "boolean" if isinstance(node.op, ast.Not | ast.Invert) else "arithmetic", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and not (node.value is None or is_none(node.value)):
        yield "return value", ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Continue | ast.Break):
        yield "loop", ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
    elif isinstance(node, ast.IfExp | ast.If | ast.While) and not isinstance(
        node.test, ast.Compare | ast.BoolOp
    ):
        other = copy.copy(node)
        other.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition", other
    if isinstance(node, ast.Expr | ast.Raise | ast.AugAssign) or is_assignment_within(node):
        yield "removed statement", ast.Pass()


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def is_assignment_within(node: ast.AST) -> bool:
    """Of an attribute or an element: without it, the name is still there."""
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)


def is_left_out(parent: ast.AST, field: str, node: ast.AST) -> bool:
    if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(parent, ast.Raise) or field in ("annotation", "returns", "decorator_list", "type_comment"):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return any(isinstance(part, ast.Name) and part.id in LOGGERS for part in ast.walk(node.value.func))
    return isinstance(parent, ast.ClassDef) and not isinstance(node, ast.FunctionDef | ast.ClassDef)


def find_mutants(path: Path) -> Iterator[Mutant]:
    source = path.read_text(encoding="utf-8")
    tree, lines, seen = ast.parse(source), source.splitlines(), Counter[str]()

    def visit(parent: ast.AST, is_in_function: bool) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(parent):
            for place, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST) or is_left_out(parent, field, node):
                    continue
                container: Any = value if isinstance(value, list) else parent.__dict__
                index = place if isinstance(value, list) else field
                for operator, other in find_replacements(node) if is_in_function else ():
                    ast.fix_missing_locations(ast.copy_location(other, node))
                    first = node.lineno  # type: ignore[attr-defined]
                    past = node.test.end_lineno if operator == "condition" else node.end_lineno  # type: ignore[attr-defined]
                    before, after = (" ".join(ast.unparse(part).split())[:60] for part in (node, other))
                    key = f"{path.relative_to(ROOT)}: {lines[first - 1].strip()} :: {before} -> {after}"
                    seen[key] += 1
                    change = functools.partial(operator_module.setitem, container, index, other)
                    yield Mutant(path, range(first, past + 1), operator, change, tree, f"{key} #{seen[key]}")
                is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
                yield from visit(node, is_in_function or is_function)

    yield from visit(tree, False)


def replace_functions(path: Path, tree: ast.Module) -> bool:
    """Gives the functions of a file that is imported the code of `tree`; False if nothing changed by it."""
    table: dict[tuple[str, int], list[Any]] = defaultdict(list)
    todo = [compile(tree, str(path), "exec")]
    while todo:
        for constant in todo.pop().co_consts:
            if hasattr(constant, "co_code"):
                todo.append(constant)
                table[constant.co_name, constant.co_firstlineno].append(constant)
    changed = False
    for function in [one for one in gc.get_objects() if isinstance(one, types.FunctionType)]:
        code = function.__code__
        new = table.get((code.co_name, code.co_firstlineno), ())
        if code.co_filename == str(path) and len(new) == 1 and new[0] != code:
            function.__code__ = new[0]
            changed = True
    return changed


class Runner:
    """Within pytest, after it has collected the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.results: dict[str, dict[str, Any]] = {}
        if options.results.exists():
            rows = map(json.loads, options.results.read_text().splitlines())
            self.results = {row["key"]: row for row in rows}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        print(f"{len(self.items)} tests; looking which lines each of them runs", flush=True)
        seconds, tests_of = self.record()
        for package in self.options.packages:
            found = [
                one for path in sorted((ROOT / "asr" / package).glob("*.py")) for one in find_mutants(path)
            ]
            chosen = random.Random(self.options.seed).sample(found, min(self.options.sample, len(found)))
            for number, mutant in enumerate(chosen):
                old = self.results.get(mutant.key)
                if old is None or (self.options.again and old["status"] == "survived"):
                    self.try_mutant(mutant, package, seconds, tests_of)
                    print(f"{package} {number + 1}/{len(chosen)} {self.results[mutant.key]}", flush=True)
            tried = [self.results[mutant.key] for mutant in chosen]
            print_report(package, len(found), tried)
        return True

    def record(self) -> tuple[dict[str, float], dict[tuple[str, int], list[str]]]:
        """Seconds of each test that passes, and the tests of each line of the packages."""
        sources = [p for name in self.options.packages for p in (ROOT / "asr" / name).glob("*.py")]
        state = hashlib.sha256("".join([*self.items, *(p.read_text() for p in sorted(sources))]).encode())
        cache = self.options.results.with_suffix(f".{state.hexdigest()[:12]}.json")
        if not cache.exists():
            watched = {str(path) for path in sources}
            status = self.fork(lambda: self.trace(watched, cache), 7200)
            assert status == "survived", f"the tests could not be recorded ({status})"
        seconds, lines_of = json.loads(cache.read_text())
        tests_of = defaultdict(list)
        for test, lines in lines_of.items():
            for path, line in lines:
                tests_of[path, line].append(test)
        return seconds, tests_of

    def trace(self, watched: set[str], cache: Path) -> None:
        seconds, lines_of = {}, {}
        hit: set[tuple[str, int]] = set()

        def on_line(frame: Any, event: str, _: Any) -> Any:
            hit.add((frame.f_code.co_filename, frame.f_lineno))
            return on_line

        def on_call(frame: Any, event: str, _: Any) -> Any:
            return on_line if frame.f_code.co_filename in watched else None

        items = list(self.items.values())
        for item, following in zip(items, [*items[1:], None], strict=True):
            hit.clear()
            started = time.monotonic()
            threading.settrace(on_call)
            sys.settrace(on_call)
            reports = runtestprotocol(item, log=False, nextitem=following)
            sys.settrace(None)
            if all(report.passed for report in reports):
                seconds[item.nodeid], lines_of[item.nodeid] = time.monotonic() - started, sorted(hit)
        cache.write_text(json.dumps([seconds, lines_of]))

    def try_mutant(
        self,
        mutant: Mutant,
        package: str,
        seconds: dict[str, float],
        tests_of: dict[tuple[str, int], list[str]],
    ) -> None:
        names = {name for line in mutant.lines for name in tests_of.get((str(mutant.path), line), ())}
        files: Counter[str] = Counter()
        for name in names:
            files[name.partition("::")[0]] += seconds[name]  # type: ignore[assignment]
        # Files as wholes, since tests of one share what they set up; first those that take least.
        names_by_cost = sorted(
            (name for name in self.items if name in names), key=lambda name: files[name.partition("::")[0]]
        )
        totals = itertools.accumulate(seconds[name] for name in names_by_cost)
        order = [n for n, total in zip(names_by_cost, totals, strict=True) if total <= self.options.budget]

        def run() -> None:
            mutant.change()
            if not replace_functions(mutant.path, mutant.tree):
                os._exit(3)
            items = [self.items[name] for name in order]
            for item, following in zip(items, [*items[1:], None], strict=True):
                if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                    os._exit(1)

        started = time.monotonic()
        limit = self.options.timeout + 5 * sum(seconds[name] for name in order)
        status = self.fork(run, limit) if order else "survived"
        place = f"{mutant.path.relative_to(ROOT)}:{mutant.lines[0]}"
        row = {"key": mutant.key, "place": place, "operator": mutant.operator, "status": status}
        row |= {"package": package, "tests": len(order), "seconds": round(time.monotonic() - started, 1)}
        self.results[mutant.key] = row
        with self.options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def fork(self, function: Callable[[], None], limit: float) -> str:
        """How it ended: survived, killed (a test failed, or the process died), timeout, unchanged, broken."""
        process = os.fork()
        if process == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (8 * GIGABYTE, 8 * GIGABYTE))
            null, errors = os.open(os.devnull, os.O_RDWR), os.dup(2)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.chdir(ROOT)
            try:
                function()
                os._exit(0)
            except BaseException:  # not of a test
                os.write(errors, traceback.format_exc().encode())
            finally:
                os._exit(2)
        until = time.monotonic() + limit
        done, code = 0, 0
        while not done and time.monotonic() < until:
            time.sleep(0.02)
            done, code = os.waitpid(process, os.WNOHANG)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)  # what it started, too
        if not done:
            os.waitpid(process, 0)
            return "timeout"
        return {0: "survived", 2: "broken", 3: "unchanged"}.get(os.waitstatus_to_exitcode(code), "killed")


def print_report(package: str, num_found: int, rows: list[dict[str, Any]]) -> None:
    counts = Counter(row["status"] for row in rows)
    tried = len(rows) - counts["unchanged"] - counts["broken"]
    noticed = counts["killed"] + counts["timeout"]
    low, high = wilson_interval(noticed, tried)
    for row in rows:
        if row["status"] == "survived":
            print(f"  survived ({row['tests']} tests): {row['place']} {row['key'].partition(' :: ')[2]}")
    print(
        f"{package}: {num_found} mutants, {tried} tried: {counts['killed']} killed, "
        f"{counts['timeout']} timeouts, {counts['survived']} survived: {noticed / max(tried, 1):.1%} noticed "
        f"(95 %: {low:.1%} to {high:.1%})",
        flush=True,
    )


def wilson_interval(successes: int, total: int, z: float = 1.96) -> tuple[float, float]:
    if not total:
        return 0.0, 1.0
    share, scale = successes / total, 1 + z**2 / total
    half = z * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    return (share + z**2 / (2 * total) - half) / scale, (share + z**2 / (2 * total) + half) / scale


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="+", help="of asr, such as decoding")
    parser.add_argument("--sample", type=int, default=60, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--timeout", type=float, default=20.0, help="seconds for a mutant, besides 5 times those of its tests"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=40.0,
        help="seconds of tests for a mutant; what would follow is left out",
    )
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--tests", nargs="+", type=Path, help="files; default: those that name a package")
    options = parser.parse_args()
    options.results = options.results.resolve()
    names = [f"asr.{package}" for package in options.packages]
    files = options.tests or [
        path
        for path in sorted((ROOT / "tests").glob("test_*.py"))
        if any(name in path.read_text() for name in names)
    ]
    os.chdir(ROOT)
    arguments = [
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not gpu",
        *map(str, files),
    ]
    sys.exit(pytest.main(arguments, plugins=[Runner(options)]))


if __name__ == "__main__":
    main()
