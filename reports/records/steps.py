"""What a record says of training steps, beside what it says of any row."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Series = tuple[Real, ...]
Interval = tuple[Real, Real]


class LossCurve(Struct, frozen=True):
    """A curve of loss, column by column: one value a point in each."""

    seconds: Series
    updates: Series
    loss: Series

    @property
    def is_whole(self) -> bool:
        """Whether there are points, and every point has all three."""
        return len(self.seconds) == len(self.updates) == len(self.loss) > 0


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of one update of training steps. What its kind of update lacks is None or empty.

    ``kind``: ``synchronous``, or the protocol's name. ``update``: as it was asked for; ``fusion``:
    how its gradients were put into ``buckets``. ``compute``: the law of the compute, spent by
    ``compute_by`` (``sleep``, ``burn``), ``stragglers``: factors by rank. ``gradients``: ranks'
    gradients that a step takes in. ``compute_s``: seconds of the same steps without exchange;
    ``exchange_s``: of the exchange alone; ``one_rank_s``: of one rank alone. ``predicted_s``: by
    ``predicted_by``. ``plans_made_late``: during the steps. ``transports``: how often each carried
    a bucket. Of a training: ``problem``, ``rule``, ``rate``, ``curve``, ``apart`` (from what one
    process computes), ``ranks_agree``. Of compression (``compress``): ``bits_per_element``, seconds
    of coding, relative errors, ``sent_bytes_per_rank``.

    Of servers: ``needed`` gradients an update; ``update_s`` single updates, ``mean_s`` their mean,
    ``interval_s`` its interval; ``formula_s``, which may be a bound; ``drawn_s`` by the drawn
    times, ``with_server_s`` with the server's; ``staleness``: gradients by their staleness;
    ``dropped`` gradients, ``cancelled`` computations; ``utilisation`` of each server,
    ``queue_wait_s``, ``costs_s``; ``split_s``: parts of an update's time; ``exposed_s``; learners
    ``lost`` and ``joined``, with the time. ``stuck``: how far an update was that hung.
    """

    kind: str = ""
    model: str = ""
    tensors: Count | None = None
    update: str = ""
    compute: str = ""
    compute_by: str = ""
    batch: Real | None = None
    seed: int | None = None
    stragglers: dict[str, Real] = {}
    gradients: Real = 1.0
    compute_s: Series = ()
    messages: Count | None = None
    predicted_s: Real | None = None
    predicted_by: str = ""
    fusion: str = ""
    overlap: bool | None = None
    buckets: Real | None = None
    plans_made_late: Count | None = None
    one_rank_s: Real | None = None
    one_rank_interval_s: Interval | None = None
    exchange_s: Series = ()
    transports: dict[str, Count] = {}
    problem: str = ""
    rule: str = ""
    rate: Real | None = None
    curve: LossCurve | None = None
    apart: dict[str, Any] = {}
    ranks_agree: bool | None = None
    compress: str = ""
    bits_per_element: Real | None = None
    encode_s: Real | None = None
    decode_s: Real | None = None
    sum_error: Real | None = None
    gradient_error: Real | None = None
    sent_bytes_per_rank: Real | None = None
    learners: Count | None = None
    servers: Count | None = None
    needed: Count | None = None
    update_s: Series = ()
    mean_s: Real | None = None
    interval_s: Interval | None = None
    formula_s: Real | None = None
    formula_is_bound: bool | None = None
    drawn_s: Real | None = None
    with_server_s: Real | None = None
    sync_over_async: Real | None = None
    updates_per_s: Real | None = None
    staleness: dict[str, Count] = {}
    mean_staleness_formula: Real | None = None
    dropped: Count | None = None
    cancelled: Count | None = None
    utilisation: Series = ()
    queue_wait_s: dict[str, Real] = {}
    costs_s: dict[str, Real] = {}
    split_s: dict[str, Real] = {}
    exposed_s: Real | None = None
    exposed_interval_s: Interval | None = None
    lost: tuple[tuple[float, int, str], ...] = ()
    joined: tuple[tuple[float, int], ...] = ()
    stuck: dict[str, Any] = {}
