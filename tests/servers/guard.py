"""Runs a server and ends it when standard input closes, however its users ended.

`python guard.py command…`. SIGTERM ends both at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def wait() -> None:
        server.wait()
        os._exit(server.returncode or 1)  # it should not have ended

    threading.Thread(target=wait, daemon=True).start()
    try:
        sys.stdin.read()
    finally:
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    return 0


if __name__ == "__main__":
    os._exit(main())
