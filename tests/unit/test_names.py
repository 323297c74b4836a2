"""The public names are imported on first use."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import casque


def test_every_public_name_has_a_home() -> None:
    assert sorted(casque._HOMES) == casque.__all__
    assert set(casque.__all__) <= set(dir(casque))
    everything: dict[str, object] = {}
    exec("from casque import *", everything)
    assert set(casque.__all__) <= set(everything)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Quue'"):
        casque.Quue  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(ImportError):
        from casque import Quue  # type: ignore[attr-defined] # noqa: F401


def test_importing_casque_loads_almost_nothing() -> None:
    look = """
import sys
import casque
print(*(name for name in sys.modules if name.startswith(("casque.", "msgspec", "asyncio"))))
"""
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []


def test_the_version_is_that_of_the_installed_package() -> None:
    assert casque.__version__ == version("casque")
