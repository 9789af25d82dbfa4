"""Loads the functions that a pipeline names, and sends them to the workers.

Workers may not have the user's files.  So modules beside the pipeline's file are sent by value with
the functions; installed modules are sent by name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import PipelineError


def load(reference: Any, folder: Path) -> Callable[..., Any]:
    """Return the function of ``module:function``, or the function itself."""
    if not isinstance(reference, str):
        _send_by_value(sys.modules.get(getattr(reference, "__module__", "")), folder)
        return reference  # type: ignore[no-any-return]
    name, _, attribute = reference.partition(":")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise PipelineError(f"{reference}: {type(error).__name__}: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise PipelineError(f"{reference}: no function {attribute} in {module.__file__}")
    _send_by_value(module, folder)
    return function  # type: ignore[no-any-return]


def _send_by_value(module: ModuleType | None, folder: Path) -> None:
    """Send this module by value, and those beside the pipeline's file that it has imported."""
    from pyspark import cloudpickle

    if module is None:
        return
    for other in (module, *list(sys.modules.values())):
        file = getattr(other, "__file__", None)
        if file is not None and Path(file).is_relative_to(folder) and _is_users(Path(file)):
            cloudpickle.register_pickle_by_value(other)  # type: ignore[no-untyped-call]


def _is_users(file: Path) -> bool:
    """Whether it is not installed: an environment may also be beside a pipeline's file."""
    return not {"site-packages", "dist-packages"} & set(file.parts) and not any(
        file.is_relative_to(Path(root)) for root in (sys.prefix, sys.base_prefix)
    )
