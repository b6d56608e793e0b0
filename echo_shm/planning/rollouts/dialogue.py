"""One rollout's side of a backbone: it reads observations and answers, whichever kind the backbone is of."""

import asyncio
from typing import Protocol

import numpy as np

from echo_shm.planning.backbones.protocol import BackboneError, LocalBackbone, Message, RemoteBackbone
from echo_shm.planning.backbones.tokenizers import Tokenizer
from echo_shm.planning.rollouts.blocks import as_prefix, as_tokens
from echo_shm.planning.rollouts.config import Answer, Counts, Planned, RolloutConfig, State
from echo_shm.planning.rollouts.decoder import LocalDecoder
from echo_shm.replay.validation import integer


class Dialogue(Protocol):
    """A conversation with a backbone."""

    def read(self, text: str) -> list[int] | None:
        """Takes what the environment shows. Returns its tokens; None if there is no room for it and an answer."""
        ...

    async def answer(self) -> Answer:
        """The backbone's answer, which is part of the conversation then.

        Raises:
            BackboneError: It failed.

        """
        ...

    def close(self) -> None:
        """Gives back what it holds. Idempotent."""
        ...


def checked_state(state: State, backbone: LocalBackbone | RemoteBackbone) -> State:
    """The state of a user. Tokens become a list, and a prefix a copy.

    Raises:
        TypeError: The backbone takes no such state.
        ValueError: There are no such tokens, or the prefix cannot be used.

    """
    if isinstance(state, Planned):
        if isinstance(state.state, Planned):
            raise TypeError("state.state is Planned: use text or tokens")
        prefix = as_prefix("prefix", state.prefix, backbone)
        inner = checked_state(state.state, backbone)
        assert not isinstance(inner, Planned)
        return Planned(inner, prefix)
    if isinstance(state, str):
        return state
    if not isinstance(backbone, LocalBackbone):
        raise TypeError(f"state is {type(state).__name__}: a remote backbone takes text")
    return as_tokens("state", state, backbone.vocab_size)


class LocalDialogue:
    """With a local backbone: one sequence of tokens."""

    def __init__(
        self,
        decoder: LocalDecoder,
        tokenizer: Tokenizer,
        state: State,
        reward: float,
        rng: np.random.Generator,
        temperature: float,
    ) -> None:
        self._decoder, self._tokenizer = decoder, tokenizer
        self._reward, self._rng, self._temperature = reward, rng, temperature
        prefix = None
        if isinstance(state, Planned):
            state, prefix = state
        self._unread = tokenizer.encode(state) if isinstance(state, str) else list(state)
        self._sequence = decoder.open(prefix)

    def read(self, text: str) -> list[int] | None:
        """The state comes before the first text."""
        tokens = [*self._unread, *self._tokenizer.encode(text)]
        if len(self._sequence.tokens) + len(tokens) >= self._decoder.max_length:
            return None
        self._unread = []
        self._sequence.append(tokens)
        return tokens

    async def answer(self) -> Answer:
        """Decoded token by token."""
        if not self._sequence.tokens:
            raise ValueError("there is nothing to answer to: the state and the observation are empty")
        return await self._decoder.answer(self._sequence, self._reward, self._rng, self._temperature)

    def close(self) -> None:
        """Gives the blocks back."""
        self._decoder.close_sequence(self._sequence)


class RemoteDialogue:
    """With a server: messages."""

    def __init__(
        self, backbone: RemoteBackbone, state: str, config: RolloutConfig, temperature: float, counts: Counts
    ) -> None:
        self._backbone, self._config, self._temperature, self._counts = backbone, config, temperature, counts
        self._messages = [Message("system", state)] if state else []

    def read(self, text: str) -> list[int]:
        """Observations are messages of the user; so is a state that nothing follows."""
        if text:
            self._messages.append(Message("user", text))
        elif self._messages and self._messages[-1].role == "system":
            self._messages[-1] = Message("user", self._messages[-1].text)
        return []

    async def answer(self) -> Answer:
        """What the server says."""
        try:
            completion = await self._backbone.complete(
                list(self._messages), max_tokens=self._config.max_action_tokens, temperature=self._temperature
            )
            text, tokens, cached = completion.text, completion.input_tokens, completion.cached_tokens
            if not isinstance(text, str):
                raise TypeError(f"the text is {type(text).__name__}: a string was expected")
            tokens, cached = integer("input_tokens", tokens, 0), integer("cached_tokens", cached, 0)
            length = integer("output_tokens", completion.output_tokens, 0)
            self._counts.tokens += length
        except (BackboneError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise BackboneError(f"the backbone failed: {type(error).__name__}: {error}") from error
        self._messages.append(Message("assistant", text))
        return Answer(text, [], [], tokens, min(cached, tokens), 0, length)

    def close(self) -> None:
        """Nothing is held."""
