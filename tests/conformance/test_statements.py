"""The suite proves every statement of the contract that needs no bucket."""

from __future__ import annotations

import pytest

from casque.testing import StoreSuite

STATEMENTS = {
    *(f"E{n}" for n in range(1, 11)),
    "E4b",
    *(f"O{n}" for n in range(1, 9)),
    *(f"L{n}" for n in range(1, 16)),
    *(f"R{n}" for n in range(1, 10)),
    *(f"Q{n}" for n in range(1, 10)),
    "Q2b",
    *(f"K{n}" for n in range(1, 5)),
    *(f"G{n}" for n in range(1, 14)),
    "G4b",
    *(f"S{n}" for n in range(1, 6)),
}


def test_every_statement_is_proven_and_every_proof_names_one() -> None:
    proofs = {
        name: getattr(StoreSuite, name) for name in dir(StoreSuite) if name.startswith("test")
    }
    proven = {one for proof in proofs.values() for one in proof.statements}
    assert proven == STATEMENTS


def test_a_store_cannot_weaken_a_statement() -> None:
    weakened = {"test_one_bad_operation_fails_alone": lambda _: None}
    with pytest.raises(TypeError, match="must pass the suite unchanged"):
        type("Weakened", (StoreSuite,), weakened)
