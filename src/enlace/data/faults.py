"""What could not be read, with its place: counted and told, or refused at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from enlace import EnlaceError


@dataclass(frozen=True)
class Fault:
    """One record, or a whole file, that was left out: `where` is "file" or "file:line"."""

    where: str
    reason: str
    whole_file: bool = False


@dataclass
class Faults:
    """The faults of one source. `max_share` 0 refuses the first; else `check` refuses too many of them."""

    max_share: float = 0.0
    found: list[Fault] = field(default_factory=list)

    def add(self, where: str, reason: str, *, whole_file: bool = False) -> None:
        """Note a fault. Raises EnlaceError, naming it, where none is allowed."""
        if self.max_share == 0:
            raise EnlaceError(f"{where}: {reason}")
        self.found.append(Fault(where, reason, whole_file))

    def check(self, name: str, documents: int, files: int) -> None:
        """Raise EnlaceError when more than `max_share` of the records, or of the files, of source `name` are bad."""
        bad_files = sum(fault.whole_file for fault in self.found)
        bad = len(self.found) - bad_files
        for count, total, what in ((bad, documents + bad, "registros"), (bad_files, files, "archivos")):
            if count > self.max_share * total:
                first = next(fault for fault in self.found if fault.whole_file == (what == "archivos"))
                raise EnlaceError(
                    f"«{name}»: no se pueden leer {count} de {total} {what}, más del "
                    f"{100 * self.max_share:g} % que permite max_bad_share. El primero: {first.where}: {first.reason}"
                )
