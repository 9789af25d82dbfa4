"""Actions posted as a form, or as a JSON object of the same fields (see ``app``).

Rule 1: all are POST, by an admin, from our own pages or not from a page.
Rule 2: an action that cannot be undone needs the name of the topic or channel, typed.
Rule 3: every action is logged with its user, and notified.
Rule 4: an action by which a reader would miss messages also needs ``force``; the pages ask for it
        and name the reader.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl

from penstock.admin import dead_letters, peek, policies
from penstock.admin.access import Access
from penstock.admin.actions import Actions, DaemonResult, Outcome
from penstock.admin.addresses import Addresses
from penstock.admin.cluster import NothingKnownError
from penstock.admin.notifications import Notifier
from penstock.admin.seeks import checked_place
from penstock.net.http_message import HttpError, Request
from penstock.wire.names import is_valid_name

if TYPE_CHECKING:
    from penstock.admin.sampler import Sampler

log = logging.getLogger(__name__)

BODY_SIZE_MAX = 2 << 20
# The form of a policy has three for each key; that of dead letters up to 50, one for each message.
FIELD_COUNT_MAX = 64
DEFER_MS_MAX = 366 * 24 * 3600 * 1000
PEEK_COUNT = 10

ACTIONS = (
    *("create", "pause", "unpause", "empty", "delete", "tombstone", "publish", "peek", "clear"),
    *("forget", "policy", "preview", "seek", "drain", "undrain", "kick", "move", "discard", "stop"),
)
# Actions on a node, not on a topic or channel.
ON_NODE = frozenset(("clear", "drain", "undrain"))
CONFIRMED = frozenset(("empty", "delete", "tombstone", "forget", "seek", "discard"))
_FORM = b"application/x-www-form-urlencoded"
_NUMBER = re.compile(r"[0-9]{1,15}")


class Posted:
    """Checks and runs posted actions."""

    def __init__(
        self,
        actions: Actions,
        addresses: Addresses,
        access: Access,
        notifier: Notifier,
        sampler: Sampler,
    ) -> None:
        self._actions = actions
        self._addresses = addresses
        self._access = access
        self._notifier = notifier
        self._sampler = sampler

    async def form(self, request: Request) -> Outcome:
        """Run the action of a page's form.  Raises HttpError."""
        self._access.check_change(request)
        fields = form_fields(request)
        self._access.check_token(request, fields.get("token", ""))
        # Browsers send each line end of a text field as CR LF; the user typed no CR.
        fields["body"] = fields.get("body", "").replace("\r\n", "\n")
        return await self._do(request, fields)

    async def object(self, request: Request) -> Outcome:
        """Run the action of a script.  Raises HttpError.

        Another site's page cannot post application/json without a CORS preflight.
        """
        self._access.check_change(request)
        return await self._do(request, json_fields(request))

    async def _do(self, request: Request, fields: Mapping[str, str]) -> Outcome:
        action, topic, channel = (fields.get(name, "") for name in ("action", "topic", "channel"))
        node = fields.get("node", "")
        if action not in ACTIONS:
            raise HttpError(400, "INVALID_ACTION")
        if action in ON_NODE:
            topic = channel = ""
        elif action == "forget":
            topic = ""
        elif not is_valid_name(topic):
            raise HttpError(400, "INVALID_TOPIC")
        if (channel or action == "forget") and not is_valid_name(channel):
            raise HttpError(400, "INVALID_CHANNEL")
        if action in CONFIRMED and fields.get("confirm", "") != (channel or topic):
            raise HttpError(400, "CONFIRM_NAME")
        if action == "drain" and node and fields.get("confirm", "") != node:
            raise HttpError(400, "CONFIRM_NAME")
        try:
            outcome = await self._act(action, topic, channel, node, fields)
        except NothingKnownError as error:
            log.warning("%s: %s failed: %s", _named(topic, channel), action, error)
            raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None
        failed = [result for result in outcome.results if result.error]
        log.info(
            "%s: %s%s by %s (%s): done on %d, failed on %d",
            _named(topic, channel, action),
            action,
            f" on {node}" if node else "",
            self._access.user(request) or "-",
            request.remote_address,
            len(outcome.results) - len(failed),
            len(failed),
        )
        self._notifier.notify(notice_of(action, channel), request, topic, channel, node)
        if action not in ("peek", "preview"):
            self._sampler.refresh(topic)
        return outcome

    async def _act(
        self, action: str, topic: str, channel: str, node: str, fields: Mapping[str, str]
    ) -> Outcome:
        actions = self._actions
        if action == "peek":
            return await self._peek(topic, channel, node, _number(fields, "count", PEEK_COUNT))
        if action == "publish":
            return await self._publish(topic, node, fields)
        if action in ("tombstone", *ON_NODE) and not node:
            raise HttpError(400, "INVALID_NODE")
        force = _flag(fields, "force")
        if action == "tombstone":
            return await actions.tombstone(topic, node, force=force)
        if action == "clear":
            return await actions.clear(await self._addresses.of(node))
        address = await self._addresses.of(node) if node else ""
        if action == "drain":
            to = fields.get("to", "")
            return await actions.drain(address, await self._addresses.of(to) if to else "")
        if action == "undrain":
            return await actions.undrain(address)
        if action == "forget":
            return await self._forget(channel, address)
        if action == "create":
            start = checked_place(fields.get("start", ""), node, start=True)
            if start and not channel:
                raise HttpError(400, "INVALID_CHANNEL")
            nodes = (await self._sampler.first()).nodes.values()
            foreign = {part.address for part in nodes if part.answered and not part.own}
            return await actions.create(topic, channel, address, start, foreign)
        if action in ("preview", "seek"):
            return await self._seek(action, topic, channel, address, fields)
        if action in dead_letters.DONE:
            if not channel:
                raise HttpError(400, "INVALID_CHANNEL")
            return await actions.dead(
                topic, channel, dead_letters.wanted(action, topic, fields), address
            )
        if action == "stop":
            act = fields.get("act", "")
            if not channel or act not in dead_letters.DONE:
                raise HttpError(400, "INVALID_ACTION" if channel else "INVALID_CHANNEL")
            return await actions.stop(topic, channel, act, address)
        if action == "policy":
            changes = policies.changes_of(fields, channel)
            if not changes:
                raise HttpError(400, "NO_CHANGES", detail="no key was changed")
            return await actions.policy(topic, channel, changes, address)
        if action == "delete":
            return await actions.delete(topic, channel, address, force=force)
        return await actions.change(action, topic, channel, address, force=force)

    async def _seek(
        self, action: str, topic: str, channel: str, address: str, fields: Mapping[str, str]
    ) -> Outcome:
        if not channel:
            raise HttpError(400, "INVALID_CHANNEL")
        to = checked_place(fields.get("to", ""), address)
        if action == "preview":
            return await self._actions.preview(topic, channel, to, address)
        partial = _flag(fields, "partial")
        return await self._actions.seek(topic, channel, to, address, partial=partial)

    async def _forget(self, channel: str, address: str) -> Outcome:
        sample = await self._sampler.first()
        having = [
            part.address
            for part in sample.nodes.values()
            if part.answered and any(each.channel == channel for each in part.patterns)
        ]
        if not address and not having:
            raise HttpError(404, "PATTERN_NOT_FOUND")
        return await self._actions.forget(channel, [address] if address else having)

    async def _peek(self, topic: str, channel: str, node: str, count: int) -> Outcome:
        if not channel:
            raise HttpError(400, "INVALID_CHANNEL")
        sample = await self._sampler.first()
        count = max(1, min(count, peek.COUNT_MAX))
        upstream = self._actions.upstream
        messages, failures = await peek.peek(upstream, sample, topic, channel, node, count)
        results = [DaemonResult(name, error.text, error.short) for name, error in failures.items()]
        return Outcome(results, messages=messages)

    async def _publish(self, topic: str, node: str, fields: Mapping[str, str]) -> Outcome:
        body = fields.get("body", "").encode("utf-8", "surrogateescape")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        defer_ms = _number(fields, "defer_ms", 0)
        if defer_ms > DEFER_MS_MAX:
            raise HttpError(400, "INVALID_DEFER")
        if node:
            address = await self._addresses.of(node)
        else:
            sample = await self._sampler.first()
            found = sample.topics.get(topic)
            up = [part.node for part in sample.nodes.values() if part.answered]
            chosen = (found.nodes if found is not None else None) or up
            if not chosen:
                raise HttpError(502, "UPSTREAM_ERROR: no nsqd responds")
            address = sample.nodes[chosen[0]].address
        return await self._actions.publish(topic, body, defer_ms, address)


def notice_of(action: str, channel: str) -> str:
    """The name of an action in notifications; NSQ's if it has one."""
    special = {
        "tombstone": "tombstone_topic_producer",
        "publish": "publish_message",
        "peek": "peek_channel",
        "clear": "clear_damage",
        "drain": "drain_node",
        "undrain": "cancel_drain",
        "forget": "delete_pattern",
        "stop": "stop_dead_letters",
        "preview": "preview_seek",
        "policy": f"change_policy_of_{'channel' if channel else 'topic'}",
    }
    return special.get(action) or f"{action}_{'channel' if channel else 'topic'}"


def answer(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON."""
    return {
        "message": outcome.warning,
        "results": [
            {"node": result.daemon, "error": result.short or result.error}
            for result in outcome.results
        ],
        "messages": outcome.messages,
        **({"plans": outcome.plans} if outcome.plans else {}),
    }


def form_fields(request: Request) -> dict[str, str]:
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != _FORM:
        raise HttpError(415, "UNSUPPORTED_MEDIA_TYPE")
    try:
        text = request.body.decode("ascii")
        pairs = parse_qsl(
            text, keep_blank_values=True, errors="surrogateescape", max_num_fields=FIELD_COUNT_MAX
        )
    except ValueError:
        raise HttpError(400, "INVALID_BODY") from None
    return dict(pairs)


def json_fields(request: Request) -> dict[str, str]:
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise HttpError(415, "UNSUPPORTED_MEDIA_TYPE")
    try:
        fields = json.loads(request.body, parse_constant=_refuse)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        return {name: _field(value) for name, value in fields.items() if value is not None}
    except (ValueError, RecursionError):
        raise HttpError(400, "INVALID_BODY") from None


def _field(value: object) -> str:
    """A member as a form's field.  Raises ValueError for lists, objects and invalid text."""
    if not isinstance(value, str | int | float):
        raise ValueError("neither text nor number")
    text = str(value)
    # A lone surrogate is valid JSON, but cannot be encoded.
    text.encode()
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _number(fields: Mapping[str, str], name: str, absent: int) -> int:
    text = fields.get(name, "")
    if not text:
        return absent
    if not _NUMBER.fullmatch(text):
        raise HttpError(400, f"INVALID_{name.upper()}")
    return int(text)


def _flag(fields: Mapping[str, str], name: str) -> bool:
    text = fields.get(name, "").lower()  # str() made True of JSON's true
    if text not in ("", "true", "false"):
        raise HttpError(400, f"INVALID_{name.upper()}")
    return text == "true"


def _named(topic: str, channel: str, action: str = "") -> str:
    if action in ("drain", "undrain"):
        return "node"
    if not topic:
        return f"pattern={channel}" if channel else "damage"
    return f"topic={topic} channel={channel}" if channel else f"topic={topic}"
