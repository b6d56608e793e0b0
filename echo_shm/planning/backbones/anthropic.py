"""Anthropic's models, by the Messages API."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from echo_shm.missing import needs
from echo_shm.planning.backbones.limits import Failure, Limiter, RemoteLimits, checked, failed_with_status, unreadable
from echo_shm.planning.backbones.protocol import Completion, Message

with needs("planning.backbones", "Anthropic's client", "anthropic", extra="planning-anthropic"):
    import anthropic

if TYPE_CHECKING:
    from anthropic.types import Message as Answer

#: Reasons for the end of an answer that is empty because something else took its place.
_NO_ENDS = ("refusal", "tool_use", "pause_turn")


def _explain(error: Exception) -> Failure | None:
    if isinstance(error, anthropic.APIStatusError):
        return failed_with_status(error.status_code, error.message, error.response.headers)
    if isinstance(error, anthropic.APIConnectionError):  # a timeout is one, too
        return Failure(f"{type(error).__name__}: {error.__cause__ or error}", True)
    if isinstance(error, anthropic.AnthropicError):
        return Failure(f"{type(error).__name__}: {error}", False)
    return unreadable(error)


def _read(answer: "Answer") -> Completion:
    text = "".join(block.text for block in answer.content if block.type == "text")
    usage = answer.usage
    cached = (usage.cache_read_input_tokens or 0) if usage else 0
    others = (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0) if usage else 0
    return checked(text, answer.stop_reason, _NO_ENDS, others + cached, usage.output_tokens if usage else 0, cached)


class AnthropicBackbone:
    """A model of Anthropic's: a :class:`RemoteBackbone`.

    Args:
        model: Its name.
        base_url: None: Anthropic's.
        api_key: None: ``ANTHROPIC_API_KEY``.
        limits: The client's own retries are off, so these are all.

    Raises:
        ValueError: There is no key.

    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        limits: RemoteLimits | None = None,
    ) -> None:
        self.model = model
        self.limiter = Limiter(limits or RemoteLimits(), _explain)
        timeout = self.limiter.limits.request_timeout
        self._client = anthropic.AsyncAnthropic(base_url=base_url, api_key=api_key, max_retries=0, timeout=timeout)
        # The client itself would say so with the first request. Newer ones read a file with credentials, too.
        if not any(getattr(self._client, name, None) for name in ("api_key", "auth_token", "_token_cache")):
            raise ValueError(f"no key for {model!r}: give api_key, or set ANTHROPIC_API_KEY")

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float = 1.0, stop: str | None = None
    ) -> Completion:
        """See :meth:`RemoteBackbone.complete`.

        A temperature of 1 is the server's default, and is not sent. Another one goes beside the client's arguments:
        its newer versions have none for it, and not every model takes one.
        """
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        asked: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "messages": [{"role": one.role, "content": one.text} for one in messages if one.role != "system"],
        }
        if system:
            asked["system"] = system
        if temperature != 1.0:
            asked["extra_body"] = {"temperature": temperature}
        if stop is not None:
            asked["stop_sequences"] = [stop]

        async def ask() -> Completion:
            return _read(await self._client.messages.create(**asked))

        return await self.limiter.complete(messages, max_tokens, ask)

    async def close(self) -> None:
        """Ends its connections. Idempotent."""
        await self._client.close()
