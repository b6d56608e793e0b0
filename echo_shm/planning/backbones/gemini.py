"""Google's Gemini models, by the Google Gen AI SDK."""

from collections.abc import Sequence

from echo_shm.missing import needs
from echo_shm.planning.backbones.limits import Failure, Limiter, RemoteLimits, checked, failed_with_status, unreadable
from echo_shm.planning.backbones.protocol import Completion, Message

with needs("planning.backbones", "Google's Gen AI SDK", "google", "google.genai", extra="planning-gemini"):
    import google.genai as genai
    from google.genai import errors, types


def _explain(error: Exception) -> Failure | None:
    if isinstance(error, errors.APIError):
        return failed_with_status(error.code, str(error.message), getattr(error.response, "headers", None))
    if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"):
        return Failure(f"{type(error).__name__}: {error}", True)  # which of them depends on the SDK's version
    return Failure(f"{type(error).__name__}: {error}", True) if isinstance(error, OSError) else unreadable(error)


def _read(answer: "types.GenerateContentResponse") -> Completion:
    if not answer.candidates:
        blocked = answer.prompt_feedback and answer.prompt_feedback.block_reason
        raise ValueError("it has no candidates" + (f": the prompt was blocked: {blocked}" if blocked else ""))
    reason = answer.candidates[0].finish_reason
    ended = reason in (types.FinishReason.STOP, types.FinishReason.MAX_TOKENS)
    usage = answer.usage_metadata
    return checked(
        answer.text or "",
        reason,
        () if ended else (reason,),
        usage.prompt_token_count if usage else 0,
        (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0) if usage else 0,
        usage.cached_content_token_count if usage else 0,
    )


class GeminiBackbone:
    """A Gemini model: a :class:`RemoteBackbone`.

    Args:
        model: Its name.
        base_url: None: Google's.
        api_key: None: ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY``.
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
        options = types.HttpOptions(
            base_url=base_url,
            timeout=int(1000 * self.limiter.limits.request_timeout),
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        try:
            self._client = genai.Client(api_key=api_key, http_options=options)
        except ValueError as error:
            raise ValueError(f"no key for {model!r}: give api_key, or set GEMINI_API_KEY ({error})") from error

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float = 1.0, stop: str | None = None
    ) -> Completion:
        """See :meth:`RemoteBackbone.complete`. Tokens of the model's thoughts count as those of the answer."""
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        config = types.GenerateContentConfig(
            system_instruction=system or None,
            max_output_tokens=max_tokens,
            temperature=temperature,
            stop_sequences=None if stop is None else [stop],
        )
        contents = [
            types.Content(role="model" if one.role == "assistant" else "user", parts=[types.Part(text=one.text)])
            for one in messages
            if one.role != "system"
        ]

        async def ask() -> Completion:
            models = self._client.aio.models
            return _read(await models.generate_content(model=self.model, contents=contents, config=config))

        return await self.limiter.complete(messages, max_tokens, ask)

    async def close(self) -> None:
        """Ends its connections. Idempotent."""
        await self._client.aio.aclose()
