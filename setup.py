# Only the compiled core needs code here; everything else is in pyproject.toml.
from Cython.Build import cythonize
from setuptools import Extension, setup

setup(
    ext_modules=cythonize(
        [Extension("*", ["src/penstock/core/*.pyx"], extra_compile_args=["-O3"])],
        language_level=3,
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    )
)
