"""The web server of the house: the page for the family, and OpenAI's protocol for other programs.

The model answers one question at a time, in a thread of its own; who waits is let in fairly. Nothing is kept here: the
page holds its conversation and sends it with each question. An answer that nobody waits for any more stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from enlace import EnlaceError
from enlace.agent.guard import Guard, refusal
from enlace.agent.loop import Chat, Event, Finished, Read, Remembered, Said, Searched, Searching
from enlace.agent.openai_api import ChatRequest, Writer, citations, parse_request
from enlace.agent.search import Result
from enlace.agent.speakers import SpeakerFailed
from enlace.agent.turns import FairQueue, QueueFull
from enlace.config.schema import ServeConfig

PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_BODY_SECONDS = 20.0  # to send a request in
_READ_SECONDS = 20.0  # to take a piece of the answer: a phone that fell asleep must not keep the others waiting

T = TypeVar("T")


def make_app(chat: Chat, model: str, serve: ServeConfig, host: str, token: str | None) -> Starlette:
    """The application.

    Args:
        chat: who answers, with what it searches and remembers; each question gets a copy with its own turns.
        model: the name that other programs know it by.
        host: where it listens: decides which names it goes by, and whether `token` is asked for.
    """
    house = _House(chat, model, serve)
    pages = [Route("/", _file("index.html"))] + [
        Route(f"/{path.name}", _file(path.name)) for path in PAGE.iterdir() if path.suffix in (".css", ".js", ".svg")
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        house.worker.shutdown(wait=False, cancel_futures=True)

    return Starlette(
        routes=[
            *pages,
            Route("/api/chat", house.page_chat, methods=["POST"]),
            Route("/api/memories", house.forget, methods=["DELETE"]),
            Route("/v1/models", house.models),
            Route("/v1/chat/completions", house.completions, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, host=host, token=token)],
        exception_handlers={EnlaceError: _refused, 404: _unknown, 405: _unknown, Exception: _broken},  # type: ignore[dict-item]
        lifespan=lifespan,
    )


class _House:
    """The endpoints."""

    def __init__(self, chat: Chat, model: str, serve: ServeConfig) -> None:
        self._chat, self._model, self._serve = chat, model, serve
        self._queue = FairQueue(serve.waiting)
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="modelo")

    async def models(self, _: Request) -> Response:
        """The only one."""
        return JSONResponse({"object": "list", "data": [{"id": self._model, "object": "model", "owned_by": "casa"}]})

    async def completions(self, request: Request) -> Response:
        """OpenAI's chat. It searches as the page does, but other programs' questions are no memories of the house."""
        asked = parse_request(await self._body(request))
        chat, question = self._conversation(asked, memory=False)
        answer = self._answer(request, chat, question)
        if not asked.stream:
            return await _unless_gone(request.receive, self._whole(chat, answer)) or Response(status_code=499)
        # The first event before the headers: what is wrong with the question is said with its status.
        first = await _unless_gone(request.receive, anext(answer))
        if first is None:
            return Response(status_code=499)
        return _Stream(self._chunks(chat, first, answer, asked))

    async def page_chat(self, request: Request) -> Response:
        """The page's question: everything that happens until it is answered."""
        asked = parse_request(await self._body(request))
        chat, question = self._conversation(asked, memory=True)
        return _Stream(self._page_events(self._answer(request, chat, question)))

    async def forget(self, request: Request) -> Response:
        """Forget the memories of these ids, or all of them."""
        try:
            ids = _ToForget.model_validate_json(await self._body(request)).ids
        except ValidationError:
            raise EnlaceError('Se esperaba {"ids": [números]} o {"ids": "all"}.') from None
        memory = self._chat.memory
        if memory is None:
            return JSONResponse({"forgotten": 0})

        def forget() -> int:
            chosen = [e.id for e in memory.episodes() if e.id is not None] if ids == "all" else ids
            return memory.forget(chosen)

        return JSONResponse({"forgotten": await asyncio.to_thread(forget)})

    def _conversation(self, asked: ChatRequest, *, memory: bool) -> tuple[Chat, str]:
        *earlier, question = asked.turns
        agent = self._chat.agent
        if asked.system is not None:
            agent = agent.model_copy(update={"system": asked.system})
        chat = dataclasses.replace(
            self._chat,
            agent=agent,
            sampling=asked.sampling(self._chat.sampling),
            memory=self._chat.memory if memory else None,
            turns=earlier,
        )
        return chat, question.content

    async def _body(self, request: Request) -> bytes:
        """The body, as long as it is JSON, not too large and does not take for ever."""
        limit = self._serve.request_kib * 1024
        if request.headers.get("content-type", "").partition(";")[0].strip().casefold() != "application/json":
            raise _Refused(415, "Se esperaba application/json.")
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for piece in request.stream():
                    body += piece
                    if len(body) > limit:
                        raise _Refused(413, f"La petición pasa de {self._serve.request_kib} KiB. Acórtala.")
        except TimeoutError:
            raise _Refused(408, "La petición tarda demasiado en llegar.") from None
        except ClientDisconnect:
            raise _Refused(400, "La petición se cortó.") from None
        return bytes(body)

    async def _answer(self, request: Request, chat: Chat, question: str) -> AsyncGenerator[Event, None]:
        """What happens, once it is this client's turn; closing it stops the model."""
        client = request.client.host if request.client else ""
        async with self._queue.turn(client), aclosing(self._in_thread(chat.reply(question))) as events:
            async for event in events:
                yield event

    async def _in_thread(self, events: Iterator[Event]) -> AsyncGenerator[Event, None]:
        loop = asyncio.get_running_loop()
        try:
            while (event := await loop.run_in_executor(self.worker, next, events, None)) is not None:
                yield event
        finally:
            # The worker has one thread: this waits for the step under way, and the next question for this.
            self.worker.submit(events.close)  # type: ignore[attr-defined]

    async def _whole(self, chat: Chat, answer: AsyncGenerator[Event, None]) -> Response:
        text, reason, read = "", "stop", None
        async with aclosing(answer):
            async for event in answer:
                match event:
                    case Said(piece):
                        text += piece
                    case Finished(reason):
                        pass
                    case Read():
                        read = event
        writer = Writer(self._model)
        return JSONResponse(writer.whole(text, reason, _sources(read), _usage(chat, read, text)))  # type: ignore[arg-type]

    async def _chunks(
        self, chat: Chat, first: Event, answer: AsyncGenerator[Event, None], asked: ChatRequest
    ) -> AsyncGenerator[str, None]:
        writer, text, read = Writer(self._model), "", first if isinstance(first, Read) else None
        yield _data(writer.piece({"role": "assistant", "content": ""}))
        async with aclosing(answer):
            try:
                async for event in answer:
                    match event:
                        case Said(piece):
                            text += piece
                            yield _data(writer.piece({"content": piece}))
                        case Read():
                            read = event
                        case Finished(reason):
                            if found := _sources(read):
                                yield _data(writer.piece({"annotations": citations(found, len(text))}))
                            yield _data(writer.piece({}, reason))
            except EnlaceError as error:
                yield _data({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
                return
        if asked.stream_options and asked.stream_options.include_usage:
            yield _data(writer.usage(_usage(chat, read, text)))
        yield "data: [DONE]\n\n"

    async def _page_events(self, answer: AsyncGenerator[Event, None]) -> AsyncGenerator[str, None]:
        if ahead := self._queue.ahead:
            yield _data({"type": "waiting", "ahead": ahead})
        async with aclosing(answer):
            try:
                async for event in answer:
                    yield _data(_for_page(event))
            except EnlaceError as error:
                yield _data({"type": "error", "message": str(error)})


class _ToForget(BaseModel):
    ids: Literal["all"] | list[Annotated[int, Field(strict=True, ge=0, lt=2**63)]]


class _Refused(EnlaceError):
    """A request that is refused with a status of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Stream(Response):
    """Server-sent events, until they end or nobody reads them any more."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(headers=_HEADERS | {"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with contextlib.suppress(TimeoutError):
            await _unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events):
            async for event in self._events:
                async with asyncio.timeout(_READ_SECONDS):
                    await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, T] | Awaitable[T]) -> T | None:
    """The result of `work`; if the client goes away first, it is cancelled, and the result is None."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working: asyncio.Future[T] = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone())
    both: tuple[asyncio.Future[Any], ...] = (working, leaving)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


def _for_page(event: Event) -> dict[str, Any]:
    match event:
        case Remembered(episodes):
            return {"type": "remembered", "memories": [{"id": e.id, "text": e.text, "time": e.time} for e in episodes]}
        case Searching(query):
            return {"type": "searching", "query": query}
        case Searched(query, outcome):
            return {"type": "searched", "query": query, "kind": outcome.kind, "detail": outcome.detail}
        case Read(context):
            sources = [{"title": s.title, "url": s.url, "host": s.host} for s in context.sources]
            return {"type": "read", "sources": sources, "dropped": context.dropped_turns}
        case Said(text):
            return {"type": "text", "text": text}
        case Finished(reason):
            return {"type": "finished", "reason": reason}


def _sources(read: Read | None) -> tuple[Result, ...]:
    return read.context.sources if read else ()


def _usage(chat: Chat, read: Read | None, text: str) -> dict[str, int]:
    """Tokens, as the model counts them."""
    prompt = sum(part.tokens for part in read.context.parts) + chat.speaker.overhead if read else 0
    said = chat.speaker.count_text(text)
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


def _data(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    content, kind = (PAGE / name).read_bytes(), _TYPES[Path(name).suffix]
    return partial(_respond, content, kind)


async def _respond(content: bytes, kind: str, _: Request) -> Response:
    return Response(content, media_type=kind, headers=_HEADERS)


async def _refused(_: Request, error: EnlaceError) -> Response:
    if isinstance(error, QueueFull):
        return refusal(503, str(error), "busy")
    if isinstance(error, SpeakerFailed):
        return refusal(502, str(error))
    return refusal(error.status if isinstance(error, _Refused) else 400, str(error))


async def _unknown(request: Request, error: Any) -> Response:
    return refusal(error.status_code, f"Aquí no hay nada en {request.method} {request.url.path}.")


async def _broken(_: Request, error: Exception) -> Response:
    return refusal(500, "Este equipo ha fallado al responder; lo que pasó está donde se arrancó enlace serve.")
