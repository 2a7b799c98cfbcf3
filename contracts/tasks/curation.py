"""The section [curation]: which prompts are worth learning from. Decided before judges are paid for their answers."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.tasks.section import Misplaced, TaskSection

PersonalData = Literal["EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "PHONE_NUMBER", "US_SSN", "CRYPTO"]


class CurationRule(TaskSection):
    """Rules that refuse a prompt; by default there are none. The ledger names and counts every refusal.

    They read only the user's text, never the answer: the policy would learn to exploit a filter of its answers.
    """

    secrets: bool = False
    """Refuse prompts that contain keys, tokens or passwords."""
    personal_data: tuple[PersonalData, ...] = ()
    """Refuse prompts that contain these kinds of personal data."""
    languages: tuple[str, ...] = ()
    """Learn only from these languages (ISO 639-1, such as "en"). Default: all."""
    min_characters: int = Field(default=0, ge=0)
    """Minimum length of the user's text."""
    max_characters: int | None = Field(default=None, ge=1)
    """Maximum length of the user's text."""
    max_repetition: float = Field(default=1.0, ge=0, le=1)
    """Largest share of words that repeat the three words before them."""
    duplicates: int | None = Field(default=None, ge=1)
    """How many equal prompts a window keeps, ignoring case and white space."""
    near_duplicates: int | None = Field(default=None, ge=1)
    """How many similar prompts a window keeps."""
    similarity: float = Field(default=0.8, ge=0.5, lt=1)
    """Prompts are similar from this estimated Jaccard similarity of their 5-character shingles on."""
    window_seconds: float = Field(default=86_400.0, gt=0)
    """How long prompts are remembered."""
    topics: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Topics by example: a prompt belongs to the one whose examples it shares most n-grams with."""
    max_topic_share: float = Field(default=1.0, gt=0, le=1)
    """Largest share of one topic among the prompts that a window keeps."""
    max_language_share: float = Field(default=1.0, gt=0, le=1)
    """The same for one language."""
    max_per_user: int | None = Field(default=None, ge=1)
    """How many prompts of one user (`user`, else the key's tenant) a window keeps."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError("max_characters must not be below min_characters")
        for name, examples in self.topics.items():
            if not any(example.strip() for example in examples):
                raise Misplaced('a topic needs at least one example, such as ["book a flight"]', "topics", name)
        return self

    @property
    def is_idle(self) -> bool:
        """True if these rules refuse nothing, so that prompts need not be read."""
        return self.model_copy(update={"topics": {}, "similarity": 0.8, "window_seconds": 86_400.0}) == CurationRule()
