"""Build entry point; everything static is in pyproject.toml.

The native extension is optional: where it does not compile, the install works without it, and
`native.why_not` says so.
"""

from pathlib import Path

from setuptools import setup

try:
    from pybind11.setup_helpers import Pybind11Extension, build_ext
except ImportError:  # built without isolation, in an environment that has no pybind11
    setup()
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
    setup(ext_modules=[extension], cmdclass={"build_ext": build_ext})
