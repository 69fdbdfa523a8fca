"""Change one operator, constant or statement at a time, and count how many mutants the tests notice.

    OMP_NUM_THREADS=1 python tools/mutation_score.py decoding train --sample 60 --results mutants.jsonl

All tests are collected and run once, to find which tests run which line. Each mutant then gets a fork of
that process, in which the code of the functions is replaced and the tests of its line run until one fails,
so nothing is imported or written again. (mutmut leaves out functions with decorators, and cosmic-ray starts
Python for each mutant.)

Docstrings, annotations, assertions, decorators, logs and error messages are left out as equivalent. Code
that runs on import (class bodies, module constants) is left out as well. Tests that start a process do not
see mutants. Mutants in the results file are not tried again; `--again` repeats the survivors.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import hashlib
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[1]
PAIRS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot, ast.In: ast.NotIn,
    ast.And: ast.Or, ast.Add: ast.Sub, ast.Mult: ast.Div, ast.BitAnd: ast.BitOr,
}  # fmt: skip
SWAPS = PAIRS | {second: first for first, second in PAIRS.items()}
SWAPS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
LOGGERS = {"log", "logger", "logging", "warnings"}
BRANCHES = ast.IfExp | ast.If | ast.While
GIGABYTE = 2**30
UNCHANGED, KILLED = 3, 4  # exit statuses of the process of a mutant
STATUSES = "killed", "timeout", "survived"


class Mutant(NamedTuple):
    key: str  # the same as long as its line is, wherever that stands
    path: Path
    lines: range
    tree: ast.Module
    container: Any
    index: Any
    other: ast.AST  # what stands there in the mutant


def find_replacements(node: Any) -> Iterator[ast.AST]:
    """Replacements of a node."""
    changes: list[dict[str, Any]] = []  # to its fields
    if isinstance(node, ast.Compare):
        swapped = [SWAPS[type(operator)]() for operator in node.ops]
        changes = [{"ops": [*node.ops[:n], swapped[n], *node.ops[n + 1 :]]} for n in range(len(swapped))]
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        changes = [{"op": SWAPS[type(node.op)]()}]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        changes = [{"value": not node.value if isinstance(node.value, bool) else node.value + 1}]
    elif isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        changes = [{"value": ast.Constant(None)}]
    elif isinstance(node, ast.Continue | ast.Break):
        yield ast.Break() if isinstance(node, ast.Continue) else ast.Continue()
    elif isinstance(node, BRANCHES) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        changes = [{"test": ast.UnaryOp(ast.Not(), node.test)}]
    yield from (type(node)(**vars(node) | change) for change in changes)
    # Without the assignment of an attribute or an element, the name is still there.
    is_within = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if is_within or isinstance(node, ast.Expr | ast.Raise | ast.AugAssign):
        yield ast.Pass()


def is_left_out(parent: Any, field: str, node: Any) -> bool:
    if isinstance(parent, ast.ClassDef):
        return not isinstance(node, ast.FunctionDef | ast.ClassDef)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return any(getattr(part, "id", "") in LOGGERS for part in ast.walk(node.value.func))
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_of_types = field in ("annotation", "returns", "decorator_list", "type_comment")
    is_message = isinstance(parent, ast.Raise) or isinstance(node, ast.JoinedStr)
    is_inert = isinstance(node, ast.Assert | ast.Import | ast.ImportFrom)
    return is_docstring or is_of_types or is_message or is_inert


def find_mutants(path: Path) -> Iterator[Mutant]:
    source = path.read_text(encoding="utf-8")
    tree, lines, seen = ast.parse(source), source.splitlines(), Counter[str]()

    def visit(parent: ast.AST, is_in_function: bool) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(parent):
            nodes, container = (value, value) if isinstance(value, list) else ([value], vars(parent))
            for place, node in enumerate(nodes):
                if not isinstance(node, ast.AST) or is_left_out(parent, field, node):
                    continue
                for other in find_replacements(node) if is_in_function else ():
                    ast.fix_missing_locations(ast.copy_location(other, node))
                    texts = [" ".join(ast.unparse(part).split())[:60] for part in (node, other)]
                    is_branch = isinstance(node, BRANCHES) and isinstance(other, BRANCHES)
                    last: Any = node.test if is_branch else node
                    span = range(node.lineno, last.end_lineno + 1)
                    key = f"{path.relative_to(ROOT)}: {lines[span[0] - 1].strip()} :: {' -> '.join(texts)}"
                    seen[key] += 1
                    index = place if container is nodes else field
                    yield Mutant(f"{key} #{seen[key]}", path, span, tree, container, index, other)
                yield from visit(node, is_in_function or isinstance(node, ast.FunctionDef | ast.Lambda))

    yield from visit(tree, False)


def replace_functions(path: str, tree: ast.Module) -> bool:
    """Gives the functions of a file that is imported the code of `tree`; False if nothing changed by it."""
    codes = [compile(tree, path, "exec")]
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    named = defaultdict(list)
    for code in codes:
        named[code.co_filename, code.co_name, code.co_firstlineno].append(code)
    changed = False
    gc.unfreeze()  # tests/conftest.py freezes what is imported, and the next line would not see it
    for function in [one for one in gc.get_objects() if type(one) is types.FunctionType]:
        old = function.__code__
        match named.get((old.co_filename, old.co_name, old.co_firstlineno)):
            case [new] if new != old:
                function.__code__, changed = new, True
    return changed


def run_in_fork(function: Callable[[], int], limit: float) -> str:
    """End of a mutant: survived, killed (a test failed, or the process died), timeout, unchanged, broken."""

    def run() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a job in the background
        resource.setrlimit(resource.RLIMIT_DATA, (8 * GIGABYTE, 8 * GIGABYTE))
        os._exit(function())

    process: Any = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(limit)
    code = process.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what it started, too
    process.join()
    return {None: "timeout", 0: "survived", 1: "broken", UNCHANGED: "unchanged"}.get(code, "killed")


def run_tests(items: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The reports of each, which runs when they are asked for."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        yield item.nodeid, runtestprotocol(item, log=False, nextitem=following)


class Runner:
    """Within pytest, after it has collected the tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        rows = options.results.read_text().splitlines() if options.results.exists() else ()
        self.results = {row["key"]: row for row in map(json.loads, rows)}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        sources = {name: sorted((ROOT / "asr" / name).glob("*.py")) for name in self.options.packages}
        texts = {str(path): path.read_text() for paths in sources.values() for path in paths}
        state = hashlib.sha256("".join([*self.items, *texts.values()]).encode()).hexdigest()
        record = self.options.results.with_suffix(f".{state[:12]}.json")
        if not record.exists():
            print(f"{len(self.items)} tests; looking which lines each of them runs", flush=True)
            status = run_in_fork(lambda: self.record(texts.keys(), record), 7200)
            assert status == "survived", f"the tests could not be recorded ({status})"
        self.seconds, self.tests_of = json.loads(record.read_text())
        for package, paths in sources.items():
            found = [mutant for path in paths for mutant in find_mutants(path)]
            chosen = random.Random(self.options.seed).sample(found, min(self.options.sample, len(found)))
            for number, mutant in enumerate(chosen, 1):
                old = self.results.get(mutant.key)
                if old is None or (self.options.again and old["status"] == "survived"):
                    row = self.results[mutant.key] = self.try_mutant(mutant)
                    with self.options.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"{package} {number}/{len(chosen)} {row}", flush=True)
            print_report(package, len(found), [self.results[mutant.key] for mutant in chosen])
        return True

    def record(self, watched: Collection[str], path: Path) -> int:
        """Writes the seconds of each test that passes, and the tests of each line."""
        seconds: dict[str, float] = {}
        tests_of: dict[str, list[str]] = defaultdict(list)
        hit: set[str] = set()

        def trace(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in watched:
                return None
            hit.add(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            return trace

        threading.settrace(trace)
        sys.settrace(trace)
        for name, reports in run_tests([*self.items.values()]):
            if all(report.passed for report in reports):
                seconds[name] = sum(report.duration for report in reports)
                for line in hit:
                    tests_of[line].append(name)
            hit.clear()
        path.write_text(json.dumps([seconds, tests_of]))
        return 0

    def try_mutant(self, mutant: Mutant) -> dict[str, Any]:
        names = {name for line in mutant.lines for name in self.tests_of.get(f"{mutant.path}:{line}", ())}
        order, total = [], 0.0
        for name in sorted(names, key=self.seconds.__getitem__):  # the quickest first
            total += self.seconds[name]
            if total <= self.options.budget:
                order.append(self.items[name])

        def run() -> int:
            mutant.container[mutant.index] = mutant.other
            if not replace_functions(str(mutant.path), mutant.tree):
                return UNCHANGED
            return KILLED if any(one.failed for _, reports in run_tests(order) for one in reports) else 0

        started, limit = time.monotonic(), 20 + 5 * min(total, self.options.budget)
        status, place = run_in_fork(run, limit), f"{mutant.path.relative_to(ROOT)}:{mutant.lines[0]}"
        row = {"key": mutant.key, "place": place, "status": status, "tests": len(order)}
        return row | {"seconds": round(time.monotonic() - started, 1)}


def print_report(package: str, num_found: int, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["status"] == "survived":
            print(f"  survived ({row['tests']} tests): {row['place']} {row['key'].partition(' :: ')[2]}")
    killed, timeouts, survived = ([row["status"] for row in rows].count(one) for one in STATUSES)
    tried = killed + timeouts + survived
    share, spread = (killed + timeouts) / max(tried, 1), 1.96**2 / max(tried, 1)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4)  # of the interval of Wilson
    low, high = ((share + spread / 2 + side) / (1 + spread) for side in (-half, half))
    print(f"{package}: {num_found} mutants, {tried} tried: {killed} killed, {timeouts} timeouts,", end=" ")
    print(f"{survived} survived: {share:.1%} noticed (95 %: {low:.1%} to {high:.1%})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("packages", nargs="+", help="packages of asr, such as decoding")
    parser.add_argument("--sample", type=int, default=60, help="mutants per package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of tests per mutant")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--again", action="store_true", help="try survivors again")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="test files; default: all")
    options = parser.parse_args()
    options.results = options.results.resolve()
    os.chdir(ROOT)
    arguments = ["-p", "no:cacheprovider", "-m", "not slow and not gpu", *options.tests]
    sys.exit(pytest.main(arguments, plugins=[Runner(options)]))


if __name__ == "__main__":
    main()
