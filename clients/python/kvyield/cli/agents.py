"""``kvyield mcp``: the tools for agents over standard input and output."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import click

from kvyield._errors import ConfigError
from kvyield.cli._options import client_of, service_options, settings_of


@click.command()
@service_options
def mcp(**given: Any) -> None:
    """Serve the tools for agents (Model Context Protocol) over standard input and output.

    They are those of the service's /mcp: a service that KVYIELD_URL names, or with --local the ledger of this host.
    Ends when standard input ends. Needs kvyield[mcp].
    """
    if find_spec("mcp_types") is None:  # which no mcp before 2 brings, such as an engine's own
        raise ConfigError("the tools for agents need the package mcp, 2.3 or newer: pip install 'kvyield[mcp]'")
    from kvyield.agents import serve

    with client_of(settings_of(given)) as client:
        serve(client)
