# Only the compiled modules need code here; everything else is in pyproject.toml.
import os

from Cython.Build import cythonize
from setuptools import Extension, setup

CORES = os.cpu_count() or 1

setup(
    ext_modules=cythonize(
        # Without debugging symbols, which would make the wheel four times as large.
        [
            Extension("*", [place], extra_compile_args=["-O3", "-g0"])
            for place in ("src/penstock/*.pyx", "src/penstock/*/*.pyx")
        ],
        nthreads=CORES,
        language_level=3,
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    ),
    options={"build_ext": {"parallel": CORES}},
)
