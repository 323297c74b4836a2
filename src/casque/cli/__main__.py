"""`python -m casque.cli`: the same as `queuectl`."""

from casque.cli.main import main

main()
