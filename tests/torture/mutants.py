"""Mutants of the algorithms: a schedule that the proof accepts computes the right result.

``python -m tests.torture.mutants --seconds 60 --seed 1 --keep DIR``. A case changes one place of an
algorithm's source (a constant, an operator, a comparison, a name, or a statement that goes), or one
move of the schedule that it builds. The judge is `tests.collectives.cases.naive`, which knows
nothing of the proof and carries the schedule out with a step's writes in either order.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import ModuleType

import numpy as np

from busbar.errors import ScheduleError, Unsupported
from collectives.schedule.catalogue import build, spec
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule
from collectives.schedule.verify import verify
from tests.collectives.cases import PAIRS, computes, fixed, placements, roots
from tests.torture.bounds import TooLong, bounded
from tests.torture.campaign import Failure, run_campaign

CHANGED = ("source", "source", "drop", "duplicate", "redirect", "rechunk", "flip", "swap")

_OTHER: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv, ast.Add),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitXor: (ast.BitOr, ast.Add),
    ast.BitAnd: (ast.BitOr,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}


@dataclass(frozen=True)
class Case:
    """A mutant, by what is changed and the seed of the change, and the schedule it has to build."""

    changed: str
    collective: str
    algorithm: str
    nranks: int
    seed: int


class _Change(ast.NodeTransformer):
    """Changes the node of this number. Counts the nodes if no node has it."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self._number, self._rng, self.count = number, rng, 0

    def _mine(self) -> bool:
        self.count += 1
        return self.count - 1 == self._number

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Change a number to another, a truth value to its opposite."""
        if isinstance(node.value, bool):
            return ast.Constant(not node.value) if self._mine() else node
        if isinstance(node.value, int):
            return ast.Constant(node.value + self._rng.choice((-1, 1, 2))) if self._mine() else node
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Add one to a variable that is read."""
        if isinstance(node.ctx, ast.Load) and len(node.id) <= 12 and self._mine():
            return ast.BinOp(node, ast.Add(), ast.Constant(1))
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Change operators to others; empty the body of a loop or branch."""
        for name, old in ast.iter_fields(node):
            if type(old) in _OTHER and self._mine():
                setattr(node, name, self._rng.choice(_OTHER[type(old)])())
            if isinstance(old, list) and old and type(old[0]) in _OTHER and self._mine():
                old[0] = self._rng.choice(_OTHER[type(old[0])])()
        if isinstance(node, (ast.For, ast.If)) and self._mine():
            node.body = [ast.Pass()]
        return super().generic_visit(node)


def mutant(module: ModuleType, rng: random.Random) -> ModuleType:
    """Return the module with one place changed."""
    source = inspect.getsource(module)
    count = _Change(-1, rng)
    count.visit(ast.parse(source))
    tree = _Change(rng.randrange(max(1, count.count)), rng).visit(ast.parse(source))
    made = ModuleType(module.__name__)
    made.__dict__.update({"__file__": module.__file__, "__package__": module.__package__})
    exec(compile(ast.fix_missing_locations(tree), "<mutant>", "exec"), made.__dict__)
    return made


def moved(schedule: Schedule, change: str, rng: random.Random) -> Schedule:
    """Return the schedule with one move changed, or two steps swapped."""
    steps = list(schedule.all_moves)
    at = rng.choice([i for i, step in enumerate(steps) if len(step)])
    table = steps[at].table.copy()
    i = rng.randrange(table.shape[1])
    if change == "drop":
        table = np.delete(table, i, axis=1)
    elif change == "duplicate":
        table = np.concatenate([table, table[:, [i]]], axis=1)
    elif change == "redirect":
        table[rng.choice([0, 1]), i] = rng.randint(0, schedule.nranks)
    elif change == "rechunk":
        table[rng.choice([3, 5]), i] += rng.choice([-1, 1, 2])
    elif change == "flip":
        table[7, i] ^= 1
    other = rng.randrange(len(steps)) if change == "swap" else at
    steps[at], steps[other] = steps[other], Moves(table)
    return fixed(schedule, steps)


def drawn(rng: random.Random) -> Iterator[Case]:
    """Cases without end."""
    while True:
        collective, algorithm = rng.choice(PAIRS)
        changed, n = rng.choice(CHANGED), rng.randint(2, 8)
        yield Case(changed, collective, algorithm, n, rng.randrange(1 << 30))


def play(case: Case) -> Failure | None:
    """Run a case: the mutant is refused, or computes the right result."""
    rng, what = random.Random(case.seed), spec(case.collective)
    name = f"collectives.algorithms.{case.collective}.{case.algorithm}"
    module = importlib.import_module(name)
    root, in_place = rng.choice(roots(what, case.nranks)), rng.choice(placements(what))
    try:
        with bounded(2.0, 512 << 20):
            if case.changed == "source":
                sys.modules[name] = mutant(module, rng)
            schedule = build(case.collective, case.algorithm, case.nranks, root=root)
            if case.changed != "source":
                schedule = moved(schedule, case.changed, rng)
            verify(schedule, what, root=root, in_place=in_place)
    except (ScheduleError, Unsupported):
        return None
    except (Exception, TooLong):
        if case.changed != "source":
            raise
        return None  # a changed source may fail as it likes, but not pass
    finally:
        sys.modules[name] = module
    if what.idempotent or computes(schedule, what, root, in_place=in_place):
        return None
    return Failure("proven, and computes something else", asdict(case), "")


if __name__ == "__main__":
    run_campaign(__doc__, "mutants", drawn, play, Case, kind=lambda case: case.collective)
