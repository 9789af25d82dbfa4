"""The exceptions of Penstock.

    PenstockError
    ├── ProtocolError     what a peer sent is wrong: a wire code, a text, fatal or not
    ├── StreamError       bytes of an encrypted or compressed stream that make no sense
    ├── HttpClientError   an HTTP server does not answer, or refuses: a status
    ├── AuthError         an auth server cannot be asked, or answers nonsense
    ├── OptionError       a flag, environment variable or config file is wrong
    ├── ClientError       what a program that uses Penstock's client meets
    │   ├── RefusedError         nsqd answered with an error: a wire code and a text
    │   ├── NotConnectedError    no nsqd could be reached in time; nothing was sent
    │   ├── UnknownOutcomeError  the connection was lost before the answer: stored or not
    │   ├── StoppedError         the producer or consumer was stopped
    │   └── DiscoveryError       nsqlookupd cannot be asked, or answers nonsense
    ├── StagingError      a batch cannot be staged, decided or published as things are: a code
    ├── LoadError         a load generator's run cannot go on
    ├── SparkSetupError   Java or PySpark is missing, or too old
    ├── PipelineError     a pipeline cannot be run as it is declared, or not any further
    │   ├── ParameterError        it was given a parameter that it does not have
    │   ├── NotProvableError      whether every message was written cannot be known
    │   ├── AlreadyRunningError   another process runs this pipeline, or writes its folder
    │   └── DataWouldBeLostError  to go on would leave out messages, or rows are missing
    ├── QueryError        a Spark query over topics cannot go on
    │   ├── NodeError            an HttpClientError of a node: a status and a code
    │   └── DataLossError        messages that the query should have read may be gone
    └── StorageError      a file cannot be used as it is
        ├── CorruptError  bytes that were once good are not any more
        ├── UncutError    a failed write left bytes behind that could not be cut off again
        └── LockedError   another process owns the data path

Errors of the operating system (disk full, permission) stay ``OSError``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class PenstockError(Exception):
    """Anything Penstock itself raises."""


class ProtocolError(PenstockError):
    """A wire error.  After a fatal one the connection is closed."""

    def __init__(self, code: str, text: str = "", *, fatal: bool = True) -> None:
        super().__init__(f"{code} {text}" if text else code)
        self.code = code
        self.text = text
        self.fatal = fatal


class StreamError(PenstockError):
    """A peer's TLS, snappy or deflate stream cannot be read; the connection is at its end."""


class HttpClientError(PenstockError):
    """No answer (unreachable, too slow, not HTTP), or a refusal with a ``status``."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class AuthError(PenstockError):
    """No auth server gave a valid reply; the text says why, for the log only."""


class OptionError(PenstockError):
    """A setting is unknown or outside its range; the text names it and what is allowed."""


class ClientError(PenstockError):
    """A producer or consumer cannot do what it was asked to."""


class RefusedError(ClientError):
    """nsqd answered with an error; ``code`` is its first word, such as ``E_BAD_TOPIC``."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code} {text}" if text else code)
        self.code = code
        self.text = text


class NotConnectedError(ClientError):
    """No nsqd could be reached in time.  What was to be published was not sent."""


class UnknownOutcomeError(ClientError):
    """The connection was lost between a publish and its answer: it may be stored, or not."""


class StoppedError(ClientError):
    """The producer or consumer was stopped."""


class DiscoveryError(ClientError):
    """An nsqlookupd cannot be asked, or what it answers makes no sense."""


class StagingError(PenstockError):
    """What was asked of a staging cannot be done; the code is for programs, the text for people."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text


class LoadError(PenstockError):
    """A run of the load generator cannot go on; the text says why in words for a person."""


class SparkSetupError(PenstockError):
    """What Spark needs is not there; the text says what to install."""


class PipelineError(PenstockError):
    """A pipeline's file is wrong, or its run cannot go on; the text says where and what to do.

    ``status`` is the exit status of `penstock pipeline`: 2 is a wrong command line.
    ``passing`` names what is away if the same may work a little later, without anybody's help.
    """

    status = 1
    passing = ""


class ParameterError(PipelineError):
    """A parameter was given that the pipeline does not have; the text names those it has."""

    status = 2


class NotProvableError(PipelineError):
    """Whether every message was written cannot be known: before the ledger, or a node is away."""

    status = 3


class AlreadyRunningError(PipelineError):
    """Another process runs the pipeline, or writes to its folder under its name."""

    status = 4


class DataWouldBeLostError(PipelineError):
    """Messages or rows are gone that the pipeline should have; the text says what to run."""

    status = 5


class QueryError(PenstockError):
    """A Spark query that reads or writes topics cannot go on; the text says what to do."""


class NodeError(QueryError, HttpClientError):
    """A node does not answer (``status`` 0), or answers that it will not."""

    def __init__(self, text: str, status: int = 0, code: str = "") -> None:
        HttpClientError.__init__(self, text, status)
        self.code = code


class DataLossError(QueryError):
    """Messages that the query should have read may be gone, and failOnDataLoss is set.

    ``losses`` are ``penstock.spark.loss.Loss``; the text has them too.
    """

    def __init__(self, text: str, losses: Iterable[Any] = ()) -> None:
        super().__init__(text)
        self.losses = list(losses)


class StorageError(PenstockError):
    """A file or folder cannot be used as it is."""


class CorruptError(StorageError):
    """A checksum or structure does not hold where the bytes were known to be good."""


class UncutError(StorageError):
    """A write failed half-way and so did cutting it back: append nothing more to that file."""


class LockedError(StorageError):
    """Another process holds the data path."""
