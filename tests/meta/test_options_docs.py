"""Every option is documented, and the generated page is the one in the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from penstock.admin.options import SETTINGS as ADMIN_SETTINGS
from penstock.cli import nsqadmin, nsqlookupd
from penstock.cli.docs import pages
from penstock.cli.nsqd import flag_table
from penstock.engine.options import SETTINGS, Options
from penstock.lookupd.options import SETTINGS as LOOKUPD_SETTINGS
from penstock.version import VERSION

REPOSITORY = Path(__file__).parents[2]

# The reference, written out so that a row cannot go missing unnoticed.
NSQ_FLAGS_TEXT = """
    auth-http-address auth-http-request-method broadcast-address broadcast-http-port
    broadcast-tcp-port config data-path deflate snappy e2e-processing-latency-percentile
    e2e-processing-latency-window-time enable-experiment http-address https-address
    http-client-connect-timeout http-client-request-timeout log-level log-prefix
    lookupd-tcp-address max-body-size max-bytes-per-file max-channel-consumers max-deflate-level
    max-heartbeat-interval max-msg-size max-msg-timeout max-output-buffer-size
    max-output-buffer-timeout min-output-buffer-timeout max-rdy-count max-req-timeout
    mem-queue-size msg-timeout node-id output-buffer-timeout queue-scan-selection-count
    queue-scan-worker-pool-max statsd-address statsd-exclude-ephemeral statsd-interval
    statsd-mem-stats statsd-prefix statsd-udp-packet-size sync-every sync-timeout tcp-address
    tls-cert tls-key tls-root-ca-file tls-client-auth-policy tls-min-version tls-required
    topology-region topology-zone version verbose worker-id
"""
NSQ_FLAGS = set(NSQ_FLAGS_TEXT.split())
LOOKUPD_FLAGS_TEXT = """
    broadcast-address config http-address inactive-producer-timeout log-level log-prefix
    tcp-address tombstone-lifetime version verbose
"""
LOOKUPD_FLAGS = set(LOOKUPD_FLAGS_TEXT.split())
ADMIN_FLAGS_TEXT = """
    acl-http-header admin-user allow-config-from-cidr base-path config dev-static-dir graphite-url
    http-address http-client-connect-timeout http-client-request-timeout http-client-tls-cert
    http-client-tls-insecure-skip-verify http-client-tls-key http-client-tls-root-ca-file log-level
    log-prefix lookupd-http-address notification-http-endpoint nsqd-http-address proxy-graphite
    statsd-counter-format statsd-gauge-format statsd-interval statsd-prefix version verbose
"""
ADMIN_FLAGS = set(ADMIN_FLAGS_TEXT.split())


def test_generated_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        stored = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
        assert stored == text, f"docs/{name}: run `python -m penstock.cli.docs`"


def test_every_option_has_help_and_a_group() -> None:
    for setting in (*SETTINGS, *LOOKUPD_SETTINGS, *ADMIN_SETTINGS):
        assert 10 < len(setting.help) < 100, setting.flag
        assert not setting.help.endswith("."), setting.flag
        assert "|" not in setting.help, setting.flag
        assert setting.group, setting.flag


def test_every_flag_of_nsq_is_known_and_only_ours_are_marked() -> None:
    table = flag_table()
    others = {"config", "version"} | {name for name, _ in table.ignored}
    flags = {setting.flag for setting in SETTINGS}
    assert flags | others >= NSQ_FLAGS
    assert {setting.flag for setting in SETTINGS if setting.own} == flags - NSQ_FLAGS


def test_every_flag_of_nsqlookupd_is_known_and_only_ours_are_marked() -> None:
    table = nsqlookupd.flag_table()
    others = {"config", "version"} | {name for name, _ in table.ignored}
    flags = {setting.flag for setting in LOOKUPD_SETTINGS}
    assert flags | others >= LOOKUPD_FLAGS
    assert {setting.flag for setting in LOOKUPD_SETTINGS if setting.own} == flags - LOOKUPD_FLAGS


def test_every_flag_of_nsqadmin_is_known_and_only_ours_are_marked() -> None:
    table = nsqadmin.flag_table()
    others = {"config", "version"} | {name for name, _ in table.ignored}
    flags = {setting.flag for setting in ADMIN_SETTINGS}
    assert flags | others >= ADMIN_FLAGS
    assert {setting.flag for setting in ADMIN_SETTINGS if setting.own} == flags - ADMIN_FLAGS


def test_names_are_unique_and_durations_say_their_unit() -> None:
    assert len({setting.flag for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.option for setting in SETTINGS}) == len(SETTINGS)
    for setting in SETTINGS:
        assert (setting.kind.kind == "duration") == setting.field.endswith("_ns"), setting.field
        assert re.fullmatch(r"[a-z0-9_]+", setting.option)
    assert len(SETTINGS) == len(Options.__dataclass_fields__)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == VERSION
    assert f"## {VERSION}" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
