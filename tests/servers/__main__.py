"""Install the servers that the tests run against, and print how long that took.

`python -m tests.servers`. It names a server that it cannot install. The tests of that server are
then skipped; with CI set in the environment they fail.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from tests.servers.installed import LIBFAKETIME, Package, UnavailableError, cache
from tests.servers.others import AZURITE, MINISTACK, SEAWEEDFS


def install(package: Package) -> str:
    began = time.monotonic()
    try:
        package.install()
    except (UnavailableError, OSError) as error:
        return f"  {package.name} {package.version}: {error}"
    return f"  {package.name} {package.version}: {time.monotonic() - began:.0f} s"


def main() -> None:
    all_of_them = (AZURITE, LIBFAKETIME, MINISTACK, SEAWEEDFS)
    missing = [one for one in all_of_them if not one.folder.is_dir()]
    if not missing:
        return
    print(f"installing {len(missing)} servers for the tests into {cache()}, once", flush=True)
    began = time.monotonic()
    with ThreadPoolExecutor() as together:
        for told in together.map(install, missing):
            print(told, flush=True)
    print(f"  all of them: {time.monotonic() - began:.0f} s", flush=True)
    if any(not one.folder.is_dir() for one in missing):
        print("  the tests of the missing servers will be skipped (with CI set they fail)")


if __name__ == "__main__":
    main()
