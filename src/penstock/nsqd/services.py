"""What every client of an nsqd uses."""

from __future__ import annotations

import asyncio

from penstock.engine.components import Components
from penstock.net.admission import Admission
from penstock.net.body_budget import BodyBudget
from penstock.net.poller import Poller
from penstock.nsqd.clients import Clients
from penstock.nsqd.security import Security
from penstock.record import record


@record
class Services:
    """The same for all clients of one nsqd."""

    components: Components
    clients: Clients
    loop: asyncio.AbstractEventLoop
    poller: Poller
    security: Security
    admission: Admission
    bodies: BodyBudget
