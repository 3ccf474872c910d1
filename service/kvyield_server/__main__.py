"""``python -m kvyield_server`` is ``kvyield-server``."""

from kvyield_server.cli import main

main(prog_name="kvyield-server")
