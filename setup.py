"""Build entry point; everything static is in pyproject.toml.

The native extension is optional: where it does not compile, the install works without it, and
`native.why_not` says so.
"""

from glob import glob

from setuptools import setup

try:
    from pybind11.setup_helpers import Pybind11Extension, build_ext
except ImportError:  # built without isolation, in an environment that has no pybind11
    setup()
else:
    extension = Pybind11Extension(
        "native._core",
        sorted(glob("native/src/*.cpp")),
        depends=sorted(glob("native/src/*.hpp")),
        cxx_std=20,
        extra_compile_args=["-O3", "-Wall", "-Wextra"],
        optional=True,
    )
    setup(ext_modules=[extension], cmdclass={"build_ext": build_ext})
