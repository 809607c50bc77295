"""The same load in locust's own web page: `locust -f loadtest/locustfile.py --scenario text`.

Answers are held against those that the server gives to one request at a time, before the load.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from dataclasses import replace
from typing import Any

import gevent
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtest import drive
from loadtest.scenario import ScenarioError, read_scenario
from loadtest.servers import Server, ServerFailed


class Client(drive.ClosedLoop):
    """One of the users that the page asks for."""


def _add_scenario(parser: LocustArgumentParser) -> None:
    parser.add_argument("--scenario", default="image", help="name from loadtest/scenarios, or path")


def _ask_for_references(environment: Environment, **_: Any) -> None:
    options = environment.parsed_options
    assert isinstance(options, Namespace), "locust parsed its command line before it starts"
    server = Server("server", "", str(environment.host))
    try:
        kinds = [
            (weight, [replace(one, reference=server.ask(one.path, one.body)) for one in requests])
            for weight, requests in drive.make_requests(read_scenario(options.scenario))
        ]
    except (ScenarioError, ServerFailed) as error:
        sys.exit(f"locustfile: {error}")  # locust goes on after any other exception
    Client.requests = drive.endless(kinds)
    Client.records = drive.Records(time.perf_counter(), 0)  # locust keeps the figures itself


events.init_command_line_parser.add_listener(_add_scenario)  # type: ignore[no-untyped-call]
events.test_start.add_listener(_ask_for_references)  # type: ignore[no-untyped-call]
# gevent's clock stood still while all this was imported; --run-time would count from before.
gevent.get_hub().loop.update_now()
