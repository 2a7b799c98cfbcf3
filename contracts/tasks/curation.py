"""Which prompts are worth learning from, declared: decided before anybody is paid to judge their answers."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.tasks.section import Misplaced, TaskSection

PersonalData = Literal["EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "PHONE_NUMBER", "US_SSN", "CRYPTO"]


class CurationRule(TaskSection):
    """What keeps a prompt out. By default nothing does; every refusal is named in the ledger and counted.

    Only what users wrote is looked at, never the answer: a filter that the policy can reach is one that it learns to use.
    """

    secrets: bool = False
    """Refuse prompts that hold keys, tokens or passwords."""
    personal_data: tuple[PersonalData, ...] = ()
    """Refuse prompts that hold these."""
    languages: tuple[str, ...] = ()
    """Learn from these only (ISO 639-1, such as "en"); without any, from all."""
    min_characters: int = Field(default=0, ge=0)
    """Of all that the user wrote."""
    max_characters: int | None = Field(default=None, ge=1)
    """Likewise."""
    max_repetition: float = Field(default=1.0, ge=0, le=1)
    """Largest share of words that repeat the three words before them."""
    duplicates: int | None = Field(default=None, ge=1)
    """How many equal prompts a window keeps; upper case and white space do not count."""
    near_duplicates: int | None = Field(default=None, ge=1)
    """How many similar prompts a window keeps."""
    similarity: float = Field(default=0.8, ge=0.5, lt=1)
    """From which estimated Jaccard similarity of their 5-character shingles prompts are similar."""
    window_seconds: float = Field(default=86_400.0, gt=0)
    """How long prompts are remembered."""
    topics: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Topics by example: a prompt belongs to the one whose examples it shares most n-grams with."""
    max_topic_share: float = Field(default=1.0, gt=0, le=1)
    """Of the prompts kept in a window."""
    max_language_share: float = Field(default=1.0, gt=0, le=1)
    """Likewise."""
    max_per_user: int | None = Field(default=None, ge=1)
    """How many prompts of one user (`user`, else the key's tenant) a window keeps."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError("max_characters must not be below min_characters")
        for name, examples in self.topics.items():
            if not any(example.strip() for example in examples):
                raise Misplaced('a topic needs an example at least, such as ["book a flight"]', "topics", name)
        return self

    @property
    def is_idle(self) -> bool:
        """Nothing can be refused: nobody need look at prompts."""
        return self.model_copy(update={"topics": {}, "similarity": 0.8, "window_seconds": 86_400.0}) == CurationRule()
