"""Start a module in a new interpreter that imports nothing from the working directory.

``python -m`` puts the working directory first on the search path, so a ``bench.py`` or ``json.py``
there would be loaded. The option against that, ``-P``, exists since Python 3.11, and ``-I`` would
also ignore PYTHONPATH and the user's own packages. Therefore this file is run as a script. It
removes its own folder from the search path before it imports anything. PYTHONPATH is used as usual,
even if it names the working directory.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder, whose modules have names of the standard library


def python(module: str, *words: str) -> list[str]:
    """Return the command line that runs ``module`` with ``words`` as its arguments.

    All Python processes of Busbar are started with it; `tests/test_security.py` checks that.
    """
    return [sys.executable, __file__, module, *words]


def _run(module: str, words: list[str]) -> None:
    """Run a module as ``python -m`` would."""
    from pathlib import Path
    from runpy import run_module

    home = str(Path(__file__).resolve().parents[1])
    if home not in sys.path:  # in a checkout that is not installed
        sys.path.insert(0, home)
    sys.argv = [module, *words]
    run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
