"""What share of the held-out questions a version answers right, by what users hold. Over HTTP; the requests are not logged."""

from __future__ import annotations

import asyncio
from itertools import islice

import openai

from benchmarks.products.questions import ExtraProduct, ProductQuestion, stream

NUM_HELD_OUT = 500
_CONCURRENCY = 32
_MAX_TOKENS = 32


def accuracy_of(
    product: ExtraProduct, url: str, operator_key: str, version: int, temperature: float, *, number: int = NUM_HELD_OUT
) -> float:
    """Ask `product@vN` the first held-out questions once. Temperature 0 is greedy."""
    questions = list(islice(stream(product, "held_out", 0), number))
    return asyncio.run(
        _ask_all(product, questions, url, operator_key, model=f"{product.name}@v{version}", temperature=temperature)
    )


async def _ask_all(
    product: ExtraProduct, questions: list[ProductQuestion], url: str, key: str, *, model: str, temperature: float
) -> float:
    gate, headers = asyncio.Semaphore(_CONCURRENCY), {"x-millrace-purpose": "rollout"}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, default_headers=headers) as client:

        async def is_right(question: ProductQuestion) -> bool:
            async with gate:
                answer = await client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": question.text}],
                    temperature=temperature,
                    max_tokens=_MAX_TOKENS,
                    store=False,
                )
            return product.is_right(question, answer.choices[0].message.content or "")

        found = await asyncio.gather(*map(is_right, questions))
    return sum(found) / len(found)
