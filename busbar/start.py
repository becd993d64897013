"""Start a module of ours in a new interpreter that takes nothing from the working directory.

``python -m`` puts the working directory before all other places, so a ``bench.py`` or ``json.py``
there would run in place of ours. The switch against that, ``-P``, came with Python 3.11, and ``-I``
would also ignore PYTHONPATH and the user's own packages. Therefore this file is run as a script,
which takes its own folder off the search path before it imports anything. PYTHONPATH counts as in
any Python, with a working directory that it names.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder, whose modules have names of the standard library


def python(module: str, *words: str) -> list[str]:
    """Return the command line that runs ``module`` with ``words`` as its arguments.

    Every process of ours is started by it; `tests/test_security.py` looks for others.
    """
    return [sys.executable, __file__, module, *words]


def _run(module: str, words: list[str]) -> None:
    """Run a module as ``python -m`` does."""
    from pathlib import Path
    from runpy import run_module

    home = str(Path(__file__).resolve().parents[1])
    if home not in sys.path:  # a checkout that is not installed, whose commands run in it
        sys.path.insert(0, home)
    sys.argv = [module, *words]
    run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
