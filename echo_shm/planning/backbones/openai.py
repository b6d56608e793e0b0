"""Servers that speak OpenAI's chat completions: OpenAI's own, vLLM, llama.cpp, Ollama and others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from echo_shm.missing import needs
from echo_shm.planning.backbones.limits import Failure, Limiter, RemoteLimits, checked, failed_with_status, unreadable
from echo_shm.planning.backbones.protocol import Completion, Message

with needs("planning.backbones", "OpenAI's client", "openai", extra="planning-openai"):
    import openai

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

#: Reasons for the end of an answer that is empty because something else took its place.
_NO_ENDS = ("content_filter", "tool_calls", "function_call")


def _explain(error: Exception) -> Failure | None:
    if isinstance(error, openai.APIStatusError):
        return failed_with_status(error.status_code, error.message, error.response.headers)
    if isinstance(error, openai.APIConnectionError):  # a timeout is one, too
        return Failure(f"{type(error).__name__}: {error.__cause__ or error}", True)
    if isinstance(error, openai.OpenAIError):
        return Failure(f"{type(error).__name__}: {error}", False)
    return unreadable(error)


def _read(answer: "ChatCompletion") -> Completion:
    choice, usage = answer.choices[0], answer.usage
    message = choice.message
    if not message.content and message.refusal:
        raise ValueError(f"the model refused: {message.refusal}")
    details = usage.prompt_tokens_details if usage else None
    return checked(
        message.content,
        choice.finish_reason,
        _NO_ENDS,
        usage.prompt_tokens if usage else 0,
        usage.completion_tokens if usage else 0,
        details.cached_tokens if details else 0,
    )


class OpenAIBackbone:
    """A model of such a server: a :class:`RemoteBackbone`.

    Args:
        model: Its name there.
        base_url: Of the server, with ``/v1``. None: OpenAI's, or ``OPENAI_BASE_URL``.
        api_key: None: ``OPENAI_API_KEY``. A server of your own may take any.
        limits: The client's own retries are off, so these are all.
        token_limit: What the server calls the limit on an answer. None: ``"max_completion_tokens"`` without
            ``base_url``, else ``"max_tokens"``.

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
        token_limit: Literal["max_tokens", "max_completion_tokens"] | None = None,
    ) -> None:
        self.model = model
        self.limiter = Limiter(limits or RemoteLimits(), _explain)
        timeout = self.limiter.limits.request_timeout
        try:
            self._client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=timeout)
        except openai.OpenAIError as error:
            raise ValueError(f"no key for {model!r}: give api_key, or set OPENAI_API_KEY ({error})") from error
        self._token_limit = token_limit or ("max_tokens" if base_url else "max_completion_tokens")

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float = 1.0, stop: str | None = None
    ) -> Completion:
        """See :meth:`RemoteBackbone.complete`. A temperature of 1 is the server's default, and is not sent."""
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            self._token_limit: max_tokens,
        }
        if temperature != 1.0:
            asked["temperature"] = temperature
        if stop is not None:
            asked["stop"] = stop

        async def ask() -> Completion:
            return _read(await self._client.chat.completions.create(**asked))

        return await self.limiter.complete(messages, max_tokens, ask)

    async def close(self) -> None:
        """Ends its connections. Idempotent."""
        await self._client.close()
