"""What could not be read, with its place: counted and told, or refused at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from enlace import EnlaceError

KEPT = 1000  # of each kind: where the text field is named wrong, every line is one


@dataclass(frozen=True)
class Fault:
    """One record, or a whole file, that was left out: `where` is "file" or "file:line"."""

    where: str
    reason: str
    whole_file: bool = False


@dataclass
class Faults:
    """The faults of one source, all counted and the first ones kept.

    `max_share` 0 refuses the first; else `check` refuses too many of them. `files` is how many the source has. Where
    they were unpacked into a folder that will be gone, `unpacked` is that folder and what to say in its place.
    """

    max_share: float = 0.0
    found: list[Fault] = field(default_factory=list)
    records: int = 0  # bad ones
    whole_files: int = 0  # bad ones
    files: int = 1
    unpacked: tuple[str, str] | None = None

    def add(self, where: str, reason: str, *, whole_file: bool = False) -> None:
        """Note a fault. Raises EnlaceError, naming it, where none is allowed."""
        if self.unpacked:
            where = where.replace(*self.unpacked)
        if self.max_share == 0:
            raise EnlaceError(f"{where}: {reason}")
        self.whole_files += whole_file
        self.records += not whole_file
        if (self.whole_files if whole_file else self.records) <= KEPT:
            self.found.append(Fault(where, reason, whole_file))

    def check(self, name: str, documents: int) -> None:
        """Raise EnlaceError when more than `max_share` of the records, or of the files, of source `name` are bad."""
        bad_of = ((self.records, documents + self.records, "registros"), (self.whole_files, self.files, "archivos"))
        for count, total, what in bad_of:
            if count > self.max_share * total:
                first = next(fault for fault in self.found if fault.whole_file == (what == "archivos"))
                raise EnlaceError(
                    f"«{name}»: no se pueden leer {count} de {total} {what}, más del "
                    f"{100 * self.max_share:g} % que permite max_bad_share. El primero: {first.where}: {first.reason}"
                )
