"""The teacher behind any OpenAI-compatible chat server of one's own network: llama.cpp, vLLM, ollama.

Such a server has no batches, so this client keeps them itself, in a folder of the job:

    <batch id>.requests.jsonl    written at once by `crear`: the batch is accepted when it is on disk
    <batch id>.answers.jsonl     appended to, one answer a line, each on disk before the next request takes its place
    <batch id>.canceled          there is such a file once somebody cancelled
    LOCK                         held while asking

`crear` asks nothing. `estado` does the work: from the second look on it sets a thread of this process asking, and waits
a moment for it; the first look only counts, so that a person who wonders how things stand gets an answer, not a
night's work. So the work runs while `collect` waits, and stops with it, however that happens: an answer that is on disk
is never asked for again, one that was on its way is.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enlace import EnlaceError
from enlace.data.distill.errors import DistillError
from enlace.data.distill.records import Record, append_records, read_records, record_line
from enlace.data.distill.requests import Peticion
from enlace.durable import locked, write_atomic

if TYPE_CHECKING:
    from enlace.config.schema import DistillConfig
    from enlace.data.distill.chat_completions import ChatServer

_LOOK_SECONDS = 1.0  # how long `estado` waits for a batch to end before it tells how far it is


class ClienteCompatible:
    """The batch protocol over a chat server. Making one and filling it need no server; `estado` does."""

    idempotente = True

    def __init__(self, config: DistillConfig, raiz: Path) -> None:
        """`config.server` says where to ask and how; `raiz` is the folder of the batches and of their answers."""
        if config.server is None:
            raise DistillError("El profesor «compatible» necesita server.base_url en su archivo de configs/distill/.")
        self._config, self._server = config, config.server
        self._raiz = Path(raiz)
        self._lotes: dict[str, _Lote] = {}
        self._queue: deque[_Lote] = deque()
        self._thread: threading.Thread | None = None
        self._stop: Any = None
        self._problem: Exception | None = None

    def construir_params(self, peticion: Peticion) -> dict[str, Any]:
        """The body of one question."""
        system = [{"role": "system", "content": peticion.system}] if peticion.system else []
        params: dict[str, Any] = {
            "model": self._config.model,
            "max_tokens": self._config.max_tokens,
            "messages": [*system, {"role": "user", "content": peticion.user}],
        }
        if self._server.temperature is not None:
            params["temperature"] = self._server.temperature
        if peticion.schema is not None:
            named = {"name": "respuesta", "strict": True, "schema": peticion.schema}
            params["response_format"] = {"type": "json_schema", "json_schema": named}
        return params

    def identidad(self) -> dict[str, Any]:
        """What may not change within a job: the model and the parameters that decide its answers."""
        return {
            "model": self._config.model,
            "max_tokens": self._config.max_tokens,
            "temperature": self._server.temperature,
        }

    def cuenta(self) -> dict[str, Any]:
        """Nothing: the answers lie here, and the same model may go on at another address."""
        return {}

    def crear(self, pedidos: list[dict[str, Any]]) -> str:
        """Put a batch on disk, to be answered later.

        Its id is the hash of what it asks, and a number: a batch that has ended is not the one that asks the same
        again, and a batch that was put twice because nobody noted the first time is one.
        """
        data = b"".join(map(record_line, pedidos))
        digest = hashlib.sha256(data).hexdigest()[:32]
        number = 1
        while (lote := _Lote(self._raiz, f"compatible-{digest}-{number}")).exists and lote.read().ended:
            number += 1
        if not lote.exists:
            write_atomic(lote.requests, data)
        return lote.id

    def estado(self, batch_id: str) -> dict[str, Any]:
        """How many requests are in each state, on disk; looked at again, the batch goes on being answered.

        Raises:
            DistillError: nobody listens at the address, or the model or the key is wrong. Nothing is lost.
        """
        if batch_id not in self._lotes:
            self._lotes[batch_id] = _Lote(self._raiz, batch_id).read()
        elif not self._lotes[batch_id].ended:
            self._go_on(self._lotes[batch_id])
        lote = self._lotes[batch_id]
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        return lote.state()

    def resultados(self, batch_id: str) -> Iterator[dict[str, Any]]:
        """The answers of a batch, in the order in which they came; then what was cancelled."""
        lote = _Lote(self._raiz, batch_id).read()
        yield from read_records(lote.answers)
        if lote.canceled:
            for pedido in read_records(lote.requests):
                if pedido["custom_id"] not in lote.answered:
                    yield {"custom_id": pedido["custom_id"], "type": "canceled", "error_type": "canceled"}

    def cancelar(self, batch_id: str) -> None:
        """Ask nothing more; what was answered stays."""
        write_atomic(_Lote(self._raiz, batch_id).read().mark, b"")

    def cerrar(self) -> None:
        """Stop asking, and wait until that is so. What was on its way will be asked again another time."""
        if self._thread is not None and self._thread.is_alive() and self._stop is not None:
            self._stop()
            self._thread.join(timeout=10)

    def _go_on(self, lote: _Lote) -> None:
        for known in self._lotes.values():  # all of them, so that those who ask never wait for the end of one batch
            if not known.queued and not known.ended:
                known.queued = True
                known.rest.clear()
                self._queue.append(known)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="enlace-compatible", daemon=True)
            atexit.register(self.cerrar)
            self._thread.start()
        lote.rest.wait(_LOOK_SECONDS)

    def _work(self) -> None:
        """The thread: answer what is queued, until nothing is left or something is wrong for all."""
        import asyncio

        try:
            with locked(self._raiz / "LOCK", f"{self._raiz}: otro proceso está preguntando. Espera a que acabe"):
                asyncio.run(self._answer_all())
        except (asyncio.CancelledError, KeyboardInterrupt):
            pass
        except BaseExceptionGroup as group:
            self._problem = _first(group)
        except DistillError as error:
            self._problem = error
        except EnlaceError as error:
            self._problem = DistillError(str(error))
        except Exception as error:
            self._problem = error
        finally:
            atexit.unregister(self.cerrar)
            self._queue.clear()
            for lote in self._lotes.values():
                lote.queued = False
                lote.rest.set()

    async def _answer_all(self) -> None:
        import asyncio

        from enlace.data.distill.chat_completions import KEY, ChatServer

        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
        async with ChatServer(self._server, self._config.model, os.environ.get(KEY, "")) as server:
            await server.greet()
            pending = self._pending()
            async with asyncio.TaskGroup() as group:
                for _ in range(self._server.concurrency):
                    group.create_task(_answer_each(pending, server))

    def _pending(self) -> Iterator[tuple[_Lote, Record]]:
        """What is to be asked, batch after batch, shared by those who ask."""
        while self._queue:
            lote = self._queue.popleft().read()  # again: another process may have gone on since
            for pedido in read_records(lote.requests):
                if lote.canceled:
                    break
                if pedido["custom_id"] not in lote.answered:
                    yield lote, pedido
            if lote.ended:
                lote.rest.set()


class _Lote:
    """One batch on disk, and what is known of it."""

    def __init__(self, raiz: Path, id: str) -> None:
        self.id = id
        self.requests, self.answers, self.mark = (
            raiz / f"{id}.{kind}" for kind in ("requests.jsonl", "answers.jsonl", "canceled")
        )
        self.asked = 0
        self.answered: set[str] = set()
        self.types: Counter[str] = Counter()
        self.queued = False
        self.rest = threading.Event()  # set when there is nothing to wait for

    @property
    def exists(self) -> bool:
        return self.requests.exists()

    @property
    def canceled(self) -> bool:
        return self.mark.exists()

    @property
    def ended(self) -> bool:
        return len(self.answered) >= self.asked or self.canceled

    def read(self) -> _Lote:
        """Count again what is on disk."""
        if not self.exists:
            raise DistillError(f"{self.requests}: falta el lote {self.id}. Recupera la carpeta de una copia.")
        self.asked = sum(1 for _ in read_records(self.requests))
        self.answered, self.types = set(), Counter()
        for row in read_records(self.answers):
            self._count(row)
        return self

    def write(self, row: Record) -> None:
        """An answer costs seconds of a GPU, the fsync in here a few milliseconds."""
        if not self.canceled:
            append_records(self.answers, [row])
            self._count(row)
            if self.ended:
                self.rest.set()

    def state(self) -> dict[str, Any]:
        left = self.asked - len(self.answered)
        return {
            "processing_status": "ended" if self.ended else "in_progress",
            "succeeded": self.types["succeeded"],
            "errored": self.types["errored"],
            "processing": 0 if self.canceled else left,
            "canceled": left if self.canceled else 0,
            "expired": 0,
        }

    def _count(self, row: Record) -> None:
        if row["custom_id"] not in self.answered:
            self.answered.add(row["custom_id"])
            self.types[row["type"]] += 1


async def _answer_each(pending: Iterator[tuple[_Lote, Record]], server: ChatServer) -> None:
    for lote, pedido in pending:
        lote.write(await server.answer(pedido["custom_id"], pedido["params"]))


def _first(group: BaseExceptionGroup[BaseException]) -> Exception:
    """Those who ask together fail together, of the same thing."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(str(error))
