"""The further fields of a record of training steps."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]
Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Series = tuple[Real, ...]
Interval = tuple[Real, Real]


class LossCurve(Struct, frozen=True):
    """A loss curve as three columns, with one value per point in each."""

    seconds: Series
    updates: Series
    loss: Series

    @property
    def is_whole(self) -> bool:
        """True if there are points and all three columns have the same length."""
        return len(self.seconds) == len(self.updates) == len(self.loss) > 0


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of training steps with one kind of exchange. What does not apply is None or empty.

    - ``kind``: ``synchronous``, or the parameter server's protocol. ``update``: how gradients are
      exchanged, as requested. ``fusion``: how they were put into ``buckets``.
    - ``compute``: the distribution of compute times, spent by ``compute_by`` (``sleep``, ``burn``).
      ``stragglers``: factors by rank. ``gradients``: ranks' gradients per step.
    - ``compute_s``: seconds of the same steps without exchange; ``exchange_s``: of the exchange
      alone; ``one_rank_s``: of one rank alone. ``predicted_s``: by ``predicted_by``.
      ``port_s``: what its bytes take through the busiest port of ``port_rate`` bytes/s each way.
    - ``plans_made_late``: plans made during the steps. ``transports``: how many buckets each
      carried.
    - For a training: ``problem``, ``rule``, ``rate``, ``curve``, ``apart`` (difference to the
      result of one process), ``ranks_agree``.
    - For compression (``compress``): ``bits_per_element``, seconds to encode and decode, relative
      errors, ``sent_bytes_per_rank``.

    For parameter servers, where an update is one change of the weights:

    - ``needed``: gradients per update. ``update_s``: each update, in ``times_s`` as means of
      loops. ``formula_s``: may be a bound. ``drawn_s``: from the drawn
      times; ``with_server_s``: also with the server's.
    - ``staleness``: numbers of gradients by staleness. ``dropped``: gradients; ``cancelled``:
      computations.
    - ``utilisation`` of each server, ``queue_wait_s``, ``costs_s``. ``split_s``: parts of an
      update's time; ``exposed_s``: that which compute does not hide.
    - ``lost``, ``joined``: learners, with times. ``stuck``: the progress of an update that hung.
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
    port_s: Real | None = None
    port_rate: Real | None = None
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
