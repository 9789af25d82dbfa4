"""The exceptions of Penstock.

    PenstockError
    ├── ProtocolError     invalid input from a peer: a wire code, a text, fatal or not
    ├── StreamError       an encrypted or compressed stream cannot be decoded
    ├── HttpClientError   an HTTP server does not respond, or returns an error: a status
    ├── AuthError         an auth server cannot be reached, or its response is invalid
    ├── OptionError       a flag, environment variable or config file is wrong
    ├── PolicyError       a key or value of a policy is refused: a code, the key
    ├── ClientError       errors of Penstock's client
    │   ├── RefusedError         nsqd returned an error: a wire code and a text
    │   ├── NotConnectedError    no nsqd could be reached in time; nothing was sent
    │   ├── UnknownOutcomeError  the connection was lost before the response: stored or not
    │   ├── StoppedError         the producer or consumer was stopped
    │   └── DiscoveryError       nsqlookupd cannot be reached, or its response is invalid
    ├── MoveError         messages cannot be moved to a topic: a code
    ├── TopicFullError    a publish is refused at a bound of its topic
    ├── StagingError      a batch cannot be staged, decided or published in its state: a code
    ├── LoadError         a run of the load generator failed
    ├── SparkSetupError   Java or PySpark is missing, or too old
    ├── PipelineError     a pipeline's declaration is wrong, or its run failed
    │   ├── ParameterError        the pipeline does not have a given parameter
    │   ├── NotProvableError      cannot determine whether every message was written
    │   ├── AlreadyRunningError   another process runs this pipeline, or writes its folder
    │   └── DataWouldBeLostError  continuing would skip messages, or rows are missing
    ├── QueryError        a Spark query over topics failed
    │   ├── NodeError            an HttpClientError of a node: a status and a code
    │   └── DataLossError        messages that the query should have read may be lost
    └── StorageError      a file cannot be used in its state
        ├── CorruptError  data that was valid has changed
        ├── UncutError    a failed write left bytes that could not be truncated
        └── LockedError   another process owns the data path

Errors of the operating system (disk full, permission) stay ``OSError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class PenstockError(Exception):
    """Base class of all errors that Penstock raises."""


class ProtocolError(PenstockError):
    """A wire error.  After a fatal one the connection is closed."""

    def __init__(self, code: str, text: str = "", *, fatal: bool = True) -> None:
        super().__init__(f"{code} {text}" if text else code)
        self.code = code
        self.text = text
        self.fatal = fatal


class StreamError(PenstockError):
    """A peer's TLS, snappy or deflate stream cannot be decoded; the connection must be closed."""


class HttpClientError(PenstockError):
    """No response (unreachable, too slow, not HTTP), or an error response with a ``status``."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class AuthError(PenstockError):
    """No auth server returned a valid response; the text is for the log only."""


class OptionError(PenstockError):
    """A setting is unknown or out of range; the text names it and what is allowed."""


class PolicyError(PenstockError):
    """A key or value of a policy is refused; the text names the key and what is allowed."""

    def __init__(self, code: str, key: str, text: str, *, conflict: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.key = key[:80]
        self.conflict = conflict  # valid in itself, but not for this topic or channel


class ClientError(PenstockError):
    """Base class of the errors of producers and consumers."""


class RefusedError(ClientError):
    """nsqd returned an error; ``code`` is its first word, such as ``E_BAD_TOPIC``."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code} {text}" if text else code)
        self.code = code
        self.text = text


class NotConnectedError(ClientError):
    """No nsqd could be reached in time.  The message was not sent."""


class UnknownOutcomeError(ClientError):
    """The connection was lost after a publish, before its response: it may be stored, or not."""


class StoppedError(ClientError):
    """The producer or consumer was stopped."""


class DiscoveryError(ClientError):
    """An nsqlookupd cannot be reached, or its response is invalid."""


class TopicFullError(PenstockError):
    """A publish is refused because its topic is at a bound of its policy (R20); ``key`` is which.

    The publisher's connection stays open, and the same publish works once messages are finished.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"topic is full ({key})")
        self.key = key


class StagingError(PenstockError):
    """A request on a staging is refused; the code is for programs, the text for people."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text


class MoveError(PenstockError):
    """Messages cannot be moved to a topic; the code is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class LoadError(PenstockError):
    """A run of the load generator failed; the text says why."""


class SparkSetupError(PenstockError):
    """A requirement of Spark is missing; the text says what to install."""


class PipelineError(PenstockError):
    """A pipeline's file is wrong, or its run failed; the text says where and what to do.

    ``status`` is the exit status of `penstock pipeline`: 2 is a wrong command line.
    ``passing`` names what is unavailable if a retry may succeed without any change.
    """

    status = 1
    passing = ""


class ParameterError(PipelineError):
    """The pipeline does not have a given parameter; the text lists those it has."""

    status = 2


class NotProvableError(PipelineError):
    """Cannot determine whether every message was written: no ledger yet, or a node is down."""

    status = 3


class AlreadyRunningError(PipelineError):
    """Another process runs the pipeline, or writes to its folder under its name."""

    status = 4


class DataWouldBeLostError(PipelineError):
    """Messages or rows that the pipeline should have are missing; the text says what to run."""

    status = 5


class QueryError(PenstockError):
    """A Spark query that reads or writes topics failed; the text says what to do."""


class NodeError(QueryError, HttpClientError):
    """A node does not respond (``status`` 0), or refuses the request."""

    def __init__(self, text: str, status: int = 0, code: str = "") -> None:
        HttpClientError.__init__(self, text, status)
        self.code = code


class DataLossError(QueryError):
    """Messages that the query should have read may be lost, and failOnDataLoss is set.

    ``losses`` are ``penstock.spark.loss.Loss``; the text lists them too.
    """

    def __init__(self, text: str, losses: Iterable[Any] = ()) -> None:
        super().__init__(text)
        self.losses = list(losses)


class StorageError(PenstockError):
    """A file or folder cannot be used in its state."""


class CorruptError(StorageError):
    """A checksum or structure is wrong in data that was known to be valid."""


class UncutError(StorageError):
    """A write failed partway and truncating it failed too: append nothing more to that file."""


class LockedError(StorageError):
    """Another process holds the data path."""
