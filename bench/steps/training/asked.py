"""The options of real gradients: problem, update rule, compression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.steps.training.codecs import Codec
from bench.steps.training.problem import ProblemShape, TrainingProblem
from bench.steps.training.rules import UpdateRule
from bench.steps.training.samples import SharedProblem


@dataclass(frozen=True)
class TrainingOptions:
    """The options. ``problem``: None where a model's gradients mean nothing.

    ``rule`` and ``rate`` as they were asked for; ``make_rule`` makes one for each shard.
    """

    problem: ProblemShape | None
    problem_text: str
    rule: str
    rate: float
    make_rule: Callable[[], UpdateRule]
    compress: str
    codec: Codec

    def shared(self, learners: int, seed: int) -> SharedProblem | None:
        """The problem with its data for so many learners; None without one."""
        if self.problem is None:
            return None
        return SharedProblem(TrainingProblem.of(self.problem, seed), self.make_rule, learners)

    @property
    def wire(self) -> str | None:
        """The element type of what all-reduces exchange, where it is not ``--precision``'s."""
        trained = self.problem is not None or self.compress != "none"
        return (self.codec.adds or "float") if trained else None

    @property
    def facts(self) -> dict[str, object]:
        """The options as a record keeps them."""
        facts: dict[str, object] = {}
        if self.problem is not None:
            facts = {"problem": self.problem_text, "rule": self.rule, "rate": self.rate}
        if self.compress != "none":
            facts["compress"] = self.compress
        return facts
