"""Options, and checks of options, that all daemons share."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Protocol, TypeVar

from penstock.errors import OptionError
from penstock.settings.table import choice, string

LOG = "Logging"

LOG_LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "fatal": 5}
TLS_REQUIRED = {"false": 0, "tcp-https": 1, "true": 2}
TLS_VERSIONS = {"tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}


def hostname() -> str:
    """Return the machine's name without importing ``socket``."""
    return os.uname().nodename


def log_level() -> Any:
    return choice(LOG, "info", "lowest level of log lines to write", LOG_LEVELS)


def log_prefix(program: str) -> Any:
    text = f"[{program}] "
    return string(LOG, text, "prefix of each log line", default_text=f'"{text}"')


def log_format() -> Any:
    help = "text: log lines in NSQ's format; json: one JSON object per line"
    return choice(LOG, "text", help, ("text", "json"), own=True)


def tls_client_auth_policy(group: str, whose: str, **more: Any) -> Any:
    help = f"require a certificate from {whose}, or a verified one; implies -tls-required"
    return choice(group, "", help, ("", "require", "require-verify"), **more)


def tls_required(group: str, whose: str, **more: Any) -> Any:
    return choice(
        group,
        "false",
        f"refuse {whose} without TLS; tcp-https: still allow plain HTTP",
        TLS_REQUIRED,
        aliases={"1": "true", "t": "true", "0": "false", "f": "false"},
        bare="true",
        **more,
    )


class TlsOptions(Protocol):
    """The options of nsqd and nsqlookupd that a TLS context is built from."""

    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_root_ca_file(self) -> str: ...
    @property
    def tls_client_auth_policy(self) -> str: ...
    @property
    def tls_required(self) -> str: ...
    @property
    def tls_min_version(self) -> str: ...


TlsT = TypeVar("TlsT", bound=TlsOptions)


def checked_tls(options: TlsT) -> TlsT:
    """Return ``options`` with the values that others imply; raises OptionError."""
    if options.tls_client_auth_policy and options.tls_required == "false":
        given: Any = options
        options = dataclasses.replace(given, tls_required="true")
    if options.tls_required != "false" and not (options.tls_cert or options.tls_key):
        raise OptionError("cannot require TLS client connections without TLS key and cert")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise OptionError("failed to build TLS config - --tls-cert and --tls-key go together")
    return options
