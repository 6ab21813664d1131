"""The orders of the gate beside keys, together: reviews of broken glass, absences, and how a tenant wants it."""

from __future__ import annotations

from governance.commands.absent import Absent
from governance.commands.gates import SetGate
from governance.commands.review import Review
from governance.store.unit import Database


class GateOrders:
    """Each of them is the only way to what it orders."""

    def __init__(self, database: Database) -> None:
        self.review = Review(database)
        self.absent = Absent(database)
        self.settings = SetGate(database)
