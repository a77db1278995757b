"""The part of OpenAI's chat protocol that is served: what is asked, checked, and how the answers are written."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from enlace import EnlaceError
from enlace.agent.search import Result
from enlace.agent.speakers import Finish
from enlace.data.chat import Message
from enlace.model.generate import Sampling


class _TextPart(BaseModel):
    type: Literal["text"]
    text: str


class _Turn(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart]

    def message(self) -> Message:
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return Message("system" if self.role == "developer" else self.role, text)


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _PlainText(BaseModel):
    type: Literal["text"]


class ChatRequest(BaseModel):
    """A request for an answer. What is not understood and would change the answer is refused, not ignored."""

    model_config = ConfigDict(allow_inf_nan=False)

    messages: list[_Turn] = Field(min_length=1)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    n: Literal[1] | None = None
    stop: Annotated[list[str], Field(max_length=0)] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: Literal[False] | None = None
    response_format: _PlainText | None = None

    @property
    def system(self) -> str | None:
        """The client's own system text; None where it sends none."""
        found = [turn.message().content for turn in self.messages if turn.role in ("system", "developer")]
        return "\n\n".join(found) if found else None

    @property
    def turns(self) -> list[Message]:
        """What was said, oldest first; the last is the question.

        Raises:
            EnlaceError: user and assistant do not take turns, or the last is not the user's.
        """
        turns = [turn.message() for turn in self.messages if turn.role not in ("system", "developer")]
        if [turn.role for turn in turns] != [("user", "assistant")[i % 2] for i in range(len(turns))] or not turns:
            raise EnlaceError("messages: tienen que alternar user y assistant, empezando por user.")
        if turns[-1].role != "user":
            raise EnlaceError("messages: el último tiene que ser de user.")
        return turns

    def sampling(self, default: Sampling) -> Sampling:
        """`default`, with what the client asks for."""
        asked = {
            "max_new_tokens": self.max_completion_tokens or self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
        }
        return Sampling(**(vars(default) | {name: value for name, value in asked.items() if value is not None}))


def parse_request(body: bytes) -> ChatRequest:
    """Raises EnlaceError naming what is wrong."""
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "la petición"
        raise EnlaceError(f"{where}: no se entiende o no se admite aquí.") from None


class Writer:
    """The answer to one request, whole or in pieces."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, text: str, finish: Finish, sources: Sequence[Result], usage: dict[str, int]) -> dict[str, Any]:
        """A `chat.completion`."""
        message = {"role": "assistant", "content": text, "annotations": citations(sources, len(text))}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def piece(self, delta: dict[str, Any], finish: Finish | None = None) -> dict[str, Any]:
        """A `chat.completion.chunk`."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """The last chunk, of a client that asked for it."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage}


def citations(sources: Sequence[Result], length: int) -> list[dict[str, Any]]:
    """Sources in the form of OpenAI's own web search; they are about the whole answer."""
    whole = {"start_index": 0, "end_index": length}
    return [{"type": "url_citation", "url_citation": {"url": s.url, "title": s.title} | whole} for s in sources]
