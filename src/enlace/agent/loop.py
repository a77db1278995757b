"""A conversation with a trained model: history, context and streaming."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from enlace import EnlaceError
from enlace.data.chat import Message, encode_prompt
from enlace.export.trained import Trained
from enlace.model.generate import Sampling, generate


@dataclass
class Chat:
    """Turns so far, and how the model answers the next one."""

    trained: Trained
    sampling: Sampling
    system: str  # first message of the conversation; empty for none
    turns: list[Message] = field(default_factory=list)
    dropped: int = 0  # turns that the last answer could not see, for lack of context

    def restart(self) -> None:
        """Forget the turns."""
        self.turns.clear()
        self.dropped = 0

    def reply(self, text: str) -> Iterator[str]:
        """Pieces of the answer to `text`, as they come; both turns join the history once it ends or is cut short.

        Raises:
            EnlaceError: `text` is empty, or does not fit the context by itself.
        """
        self.dropped = 0
        question = Message("user", text)
        prompt = self._prompt([*self.turns, question])
        decoder = self.trained.tokenizer.decode_stream()
        context_length = self.trained.context_length
        # Another seed at each turn, so that asking again can give another answer.
        sampling = dataclasses.replace(self.sampling, seed=self.sampling.seed + len(self.turns))
        pieces: list[str] = []
        try:
            for token in generate(self.trained.model, prompt, sampling, self.trained.stop_ids, context_length):
                if piece := decoder.push(token):
                    pieces.append(piece)
                    yield piece
            if rest := decoder.finish():
                pieces.append(rest)
                yield rest
        finally:
            if answer := "".join(pieces).strip():
                self.turns += [question, Message("assistant", answer)]

    def _prompt(self, turns: list[Message]) -> list[int]:
        """Ids of the newest turns that leave room for an answer; the oldest are dropped, two at a time."""
        room = min(self.sampling.max_new_tokens, self.trained.context_length // 4)
        system = [Message("system", self.system)] if self.system else []
        for start in range(0, len(turns), 2):
            ids = encode_prompt(self.trained.tokenizer, [*system, *turns[start:]])
            if len(ids) + room <= self.trained.context_length:
                self.dropped = start
                return ids
        raise EnlaceError(
            f"El mensaje es demasiado largo: el modelo lee {self.trained.context_length} tokens y hacen falta "
            f"{len(ids) + room}. Acórtalo."
        )
