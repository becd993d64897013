"""What all functions and methods for users share: the check of keywords, errors, signatures."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ForwardRef, TypeVar, cast

from busbar.aliases import ROOMS
from busbar.arguments import unknown
from busbar.errors import BusbarError

#: What a keyword may be called elsewhere.
ELSEWHERE = {
    "begin": "minbytes", "start": "minbytes", "end": "maxbytes", "stop": "maxbytes",
    "factor": "stepfactor", "iterations": "iters", "warmup": "warmup_iters", "nranks": "ranks",
    "type": "dtype", "algo": "algorithms",
}  # fmt: skip
# Packages whose frames tell a user nothing about a wrong call.
_OURS = {"busbar", *ROOMS, *sys.stdlib_module_names}
F = TypeVar("F", bound=Callable[..., object])


def public(function: F) -> F:
    """A decorator of what users call: its errors are raised at the call.

    A keyword that the function does not have raises Unsupported, which names the nearest one. The
    traceback of a BusbarError has none of our frames, whose number hides the message, but those of
    a user's function that we called.
    """
    parameters = inspect.signature(function).parameters.values()
    any_keyword = any(one.kind is one.VAR_KEYWORD for one in parameters)
    known = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL]
    known = [name for name in known if name != "self"]
    elsewhere = {name: ours for name, ours in ELSEWHERE.items() if ours in known}
    method = "." in function.__qualname__
    of = function.__name__ if method else f"busbar.{function.__name__}"

    @wraps(function)
    def called(*arguments: object, **named: object) -> object:
        try:
            for name in named:
                if name not in known and not any_keyword:
                    raise unknown("option", name, known, of, elsewhere)
            return function(*arguments, **named)
        except BusbarError as error:
            raise error.with_traceback(_of_others(error.__traceback__)) from error.__cause__

    return cast(F, called)


def _of_others(traceback: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback that are neither ours nor of Python's library."""
    if traceback is None:
        return None
    rest, frame = _of_others(traceback.tb_next), traceback.tb_frame
    if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS:
        return rest
    return TracebackType(rest, frame, traceback.tb_lasti, traceback.tb_lineno)


def with_keywords(keywords: type) -> Callable[[F], F]:
    """A decorator that adds keywords to the signature and docstring of what `public` returned.

    ``keywords``: a TypedDict of options, whose docstring lists them below its first line, if it
    does.
    """

    def add(function: F) -> F:
        own = list(inspect.signature(function).parameters.values())
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind,
            )
            for name, kind in keywords.__annotations__.items()
        ]
        function.__signature__ = inspect.Signature([*own[:-1], *more])  # type: ignore[attr-defined]
        options = inspect.cleandoc(keywords.__doc__ or "").partition("\n")[2].strip()
        if options:
            function.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:\n\n{options}\n"
        return function

    return add
