"""Build entry point; everything static is in pyproject.toml.

The native extension is optional: where it does not compile, the install works without it, and
`native.why_not` says so. What is packed knows the revision that it was packed from.
"""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent


def keep_revision(folder: str) -> None:
    """Write the checkout's revision into a copy of `busbar`; without a checkout there is none."""
    if not (HERE / ".git").exists():
        return
    git = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        (Path(folder) / "busbar" / "REVISION").write_text(done.stdout)


class Modules(build_py):
    """The modules of a wheel, and the revision that they are of; a checkout has its own."""

    def run(self) -> None:
        """Copy the modules, then write the revision beside them."""
        super().run()
        if not self.editable_mode:
            keep_revision(self.build_lib)


class Sources(sdist):
    """The sources, and the revision that they are of."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, then write the revision beside them."""
        super().make_release_tree(base_dir, files)
        keep_revision(base_dir)


commands = {"build_py": Modules, "sdist": Sources}
try:
    from pybind11.setup_helpers import Pybind11Extension, build_ext
except ImportError:  # built without isolation, in an environment that has no pybind11
    setup(cmdclass=commands)
else:
    source = Path("native/src")
    extension = Pybind11Extension(
        "native._core",
        sorted(map(str, source.glob("*.cpp"))),
        depends=sorted(map(str, source.glob("*.hpp"))),
        cxx_std=20,
        extra_compile_args=["-O3", "-Wall", "-Wextra"],
        optional=True,
    )
    setup(ext_modules=[extension], cmdclass={**commands, "build_ext": build_ext})
