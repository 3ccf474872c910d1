"""The ``kvyield`` command. Each command is a module of its own, loaded when it is run."""

from __future__ import annotations

import click

from kvyield import __version__
from kvyield.cli._run import LazyGroup

COMMANDS = {
    "observe": ("kvyield.cli.observe:observe", "Read an engine's log and post what its starts yielded."),
    "verify": (
        "kvyield.cli.verify:verify",
        "Send a long prompt to the running engine and check its answer and memory.",
    ),
    "report": ("kvyield.cli.report:report", "Observe, verify and post in one."),
    "watch": ("kvyield.cli.watch:watch", "Follow an engine's log and post every start as it comes."),
    "import": ("kvyield.cli.importing:import_logs", "Post the starts of old logs, files and folders, in parallel."),
    "recommend": ("kvyield.cli.recommend:recommend", "Ask for the memory flags that hold a prompt of a given length."),
    "advise": ("kvyield.cli.advise:advise", "Read logs and advise flags in one, with no service."),
    "tune": ("kvyield.cli.tune:tune", "Restart, measure and verify the engine until the target is verified."),
    "predict": ("kvyield.cli.predict:predict", "Ask what given flags would yield."),
    "history": ("kvyield.cli.history:history", "Show the ledger, newest start first."),
    "correct": ("kvyield.cli.correct:correct", "Correct wrong facts of a start in the ledger."),
    "spool": ("kvyield.cli.spooling:spool", "Show, send or drop what waits on disk."),
    "doctor": ("kvyield.cli.checkup:doctor", "Check service, token, engine, GPU and log, and say what to do."),
    "mcp": ("kvyield.cli.agents:mcp", "Serve the tools for agents over standard input and output."),
    "completion": ("kvyield.cli.completion:completion", "Print the completion script of a shell."),
}

EPILOG = """
Exit codes: 0 done, also when the service is away and the observation waits in the spool (a note says so;
--spooled-exit-code asks for another); 1 something failed; 2 wrong usage; 3 the service refused; 4 the service cannot
be reached and the command needs its answer; 5 the advice is worse than --require allows; 70 a bug in kvyield; 130
interrupted.

Settings: options, then KVYIELD_URL, KVYIELD_TOKEN, KVYIELD_SPOOL and KVYIELD_SERVER_KEY (the engine's API key), then
~/.config/kvyield/config.toml.
"""


@click.group(cls=LazyGroup, lazy=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvyield")
def main() -> None:
    """Which memory flags to restart an LLM engine with: reads the engine's log, posts its starts, asks for advice."""
